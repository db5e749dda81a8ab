package proxy

import (
	"context"
	"net"

	"k8s.io/client-go/rest"

	"github.com/fairlead/fairlead/internal/portforward"
)

// Gateway is one gateway that is ready. A port-forward of the management cluster leads to it.
type Gateway struct{ pod *portforward.Pod }

// EachGateway returns the gateways of an installation that are ready. It is an error if there is none, or if the user
// may not list them.
func EachGateway(ctx context.Context, config *rest.Config, namespace string) ([]Gateway, error) {
	pods, err := (&gateways{rest: config, namespace: namespace}).ready(ctx, true)
	all := make([]Gateway, 0, len(pods))
	for _, pod := range pods {
		all = append(all, Gateway{pod})
	}
	return all, err
}

// Name returns the name of its Pod.
func (g Gateway) Name() string { return g.pod.Name }

// Connect opens a connection through this gateway to authority, a host:port with a name of a tunnel.
func (g Gateway) Connect(ctx context.Context, authority string) (net.Conn, error) {
	conn, err := connectThrough(ctx, g.pod, authority)
	if err != nil {
		return nil, err
	}
	return conn, nil
}
