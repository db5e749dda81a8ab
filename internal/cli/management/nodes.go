package management

import (
	"context"
	"slices"

	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/fairlead/fairlead/api/v1alpha1"
	"github.com/fairlead/fairlead/pkg/diagnose/collect"
	"github.com/fairlead/fairlead/pkg/model"
)

// NodesOf returns the names of gateways, and of edges whose tunnel is in a namespace; an empty one: of all edges. An
// error means that the tunnels cannot be read, and then it returns gateways alone.
func (c *Client) NodesOf(ctx context.Context, nodes []collect.Node, namespace string) (names []string, err error) {
	tunnels := &v1alpha1.TunnelList{}
	if namespace != "" {
		err = c.List(ctx, tunnels, client.InNamespace(namespace))
	}
	own := map[string]bool{}
	for i := range tunnels.Items {
		own[tunnels.Items[i].HeldID()] = true
	}
	for i := range nodes {
		n := &nodes[i]
		if (namespace == "" || n.Role == model.RoleGateway || own[n.ID]) && !slices.Contains(names, n.Name) {
			names = append(names, n.Name)
		}
	}
	return names, err
}
