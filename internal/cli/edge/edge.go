// Package edge is the command group edge: a list of the edges of Tunnels, and the revocation of an edge with its proof.
package edge

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/util/duration"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/fairlead/fairlead/api/v1alpha1"
	"github.com/fairlead/fairlead/internal/cli/management"
	"github.com/fairlead/fairlead/internal/cli/output"
	"github.com/fairlead/fairlead/internal/command"
	"github.com/fairlead/fairlead/pkg/model"
	"github.com/fairlead/fairlead/pkg/observed"
)

// edgeFlags are the flags of the edge commands.
type edgeFlags struct {
	management.Flags
	all     bool
	cluster string
	network string
	timeout time.Duration
}

// Command returns the command group edge.
func Command() *cobra.Command {
	return command.Group("edge", "List and revoke edges", edgeListCommand(), edgeRevokeCommand())
}

func edgeListCommand() *cobra.Command {
	var f edgeFlags
	var o output.Options
	cmd := &cobra.Command{
		Use:   "list [CLUSTER|TUNNEL]",
		Short: "List edges",
		Long: strings.TrimSpace(`
List the edges that the Tunnels of a namespace have on record: network, role, state, connections to each
gateway, certificate, health of the apiserver and version. With a name, list those of one Cluster, with its
networks and apiservers, or of one Tunnel, such as site1.network.

  ROLE     is
  edge     an edge of the Cluster, or of a RemoteNetwork, which NETWORK names
  egress   an Envoy beside an apiserver; it has no tunnels, and is connected if it reports

Needs: list on Tunnels, and watch for --watch; with the name of a Tunnel, get on that Tunnel is enough.
Changes: nothing.
Exit codes: 0 success, whatever the state of the edges; 1 the command failed; 2 the command line is invalid.`),
		Example: "  fairlead edge list -A\n  fairlead edge list -n prod c1\n  fairlead edge list -n prod site1.network\n" +
			"  fairlead edge list -A --watch",
		Args: cobra.MaximumNArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			m, err := f.Open()
			if err != nil {
				return err
			}
			namespace := m.Namespace
			if f.all {
				namespace = ""
			}
			from, changes, err := m.Reader(cmd.Context(), o.Watch, namespace, &v1alpha1.Tunnel{})
			if err != nil {
				return err
			}
			return o.Show(cmd, func(ctx context.Context) (output.View, error) {
				tunnels, err := listTunnels(ctx, from, namespace, args)
				return edgesView(tunnels, time.Now()), err
			}, changes)
		},
	}
	f.AddTo(cmd.Flags())
	o.AddWatchTo(cmd)
	cmd.Flags().
		StringVarP(&f.Namespace, "namespace", "n", "", "namespace of the Clusters (default: the namespace of the context)")
	cmd.Flags().BoolVarP(&f.all, "all-namespaces", "A", false, "list the edges of all namespaces")
	cmd.MarkFlagsMutuallyExclusive("namespace", "all-namespaces")
	return cmd
}

// listTunnels lists the Tunnels of a namespace, or of all namespaces if it is empty. With a name it returns the Tunnel
// of that name and the others of that Cluster, or an error if there is none.
func listTunnels(ctx context.Context, from client.Reader, namespace string, name []string) ([]v1alpha1.Tunnel, error) {
	var tunnels v1alpha1.TunnelList
	err := from.List(ctx, &tunnels, client.InNamespace(namespace))
	if apierrors.IsForbidden(err) && len(name) == 1 && namespace != "" { // such as the operator of one network
		var one v1alpha1.Tunnel
		if from.Get(ctx, client.ObjectKey{Namespace: namespace, Name: name[0]}, &one) == nil {
			return []v1alpha1.Tunnel{one}, nil
		}
	}
	if err != nil {
		return nil, fmt.Errorf("listing Tunnels: %w", err)
	}
	if len(name) == 1 {
		tunnels.Items = slices.DeleteFunc(
			tunnels.Items, func(t v1alpha1.Tunnel) bool { return t.Name != name[0] && t.ClusterName() != name[0] },
		)
		if len(tunnels.Items) == 0 {
			return nil, fmt.Errorf( //nolint:staticcheck // Tunnel is a kind
				"Tunnel %s not found in %s: `kubectl get clusters,tunnels -A` lists all",
				name[0],
				inNamespace(namespace),
			)
		}
	}
	slices.SortFunc(tunnels.Items, func(a, b v1alpha1.Tunnel) int {
		return cmp.Or(
			strings.Compare(a.Namespace, b.Namespace), strings.Compare(a.ClusterName(), b.ClusterName()),
			strings.Compare(a.Name, b.Name),
		)
	})
	return tunnels.Items, nil
}

func inNamespace(namespace string) string {
	if namespace == "" {
		return "any namespace"
	}
	return "namespace " + namespace
}

// edgeRow is one edge, for machines. It embeds the record as it is in the Tunnel, so that a script reads the same
// fields in both.
type edgeRow struct {
	Namespace string         `json:"namespace"`
	Cluster   string         `json:"cluster"`
	Network   string         `json:"network,omitempty"` // of the RemoteNetwork, if it is an edge of one
	Role      string         `json:"role"`              // edge or egress
	Tunnel    string         `json:"tunnel"`            // its name
	Node      string         `json:"node"`
	State     observed.State `json:"state"`
	v1alpha1.EdgeStatus
}

func edgesView(tunnels []v1alpha1.Tunnel, now time.Time) output.View {
	t := &output.Table{
		Columns: output.Columns(
			"NAMESPACE", "CLUSTER", "NETWORK", "ROLE", "NODE", "HOST", "STATE", "TUNNELS", "SEEN~", "CERTIFICATE~", "APISERVER",
			"VERSION", "FORM+", "ENROLLED+~", "LAST ERROR+",
		),
	}
	all := []edgeRow{}
	for i := range tunnels {
		tunnel := &tunnels[i]
		for j, e := range observed.Recorded(tunnel, now) {
			r := edgeRow{
				Namespace: tunnel.Namespace, Cluster: tunnel.ClusterName(), Network: tunnel.Spec.Network, Role: roleOf(tunnel),
				Tunnel: tunnel.Name, Node: e.Node, State: e.State, EdgeStatus: tunnel.Status.Edges[j],
			}
			all = append(all, r)
			t.Add(
				r.Namespace+"/"+r.Tunnel+" "+r.Node,
				r,
				output.Plain(r.Namespace),
				output.Plain(output.OrDash(r.Cluster)),
				output.Plain(output.OrDash(r.Network)),
				output.Plain(r.Role),
				output.Plain(r.Node),
				output.Plain(output.OrDash(e.Host)),
				output.Styled(StateStyles[r.State], string(r.State)),
				output.Plain(output.OrDash(observed.TunnelsByGateway(e.Gateways))),
				output.Plain(
					ago(&e, now),
				),
				output.Plain(untilEnd(&e, now)),
				APIServer(&e),
				output.Plain(output.OrDash(e.Version)),
				output.Plain(output.OrDash(e.Form)),
				output.Plain(output.Age(e.Enrolled, now)),
				output.Plain(output.OrDash(e.LastError)),
			)
		}
	}
	return output.View{Data: map[string]any{"edges": all}, Table: t, Empty: "no edge is enrolled"}
}

// roleOf returns the role of the nodes of a Tunnel, as in their certificates.
func roleOf(t *v1alpha1.Tunnel) string {
	if t.Spec.EgressOf != "" {
		return string(model.RoleEgress)
	}
	return string(model.RoleEdge)
}

// StateStyles are the styles of the states of edges.
var StateStyles = map[observed.State]output.Style{
	observed.Connected: output.StyleGood, observed.Away: output.StyleWarning, observed.Expired: output.StyleBad,
	observed.Revoked: output.StyleFaint, observed.Unknown: output.StyleFaint,
}

func ago(e *observed.Edge, now time.Time) string {
	if e.LastSeen.IsZero() {
		return "-"
	}
	return duration.HumanDuration(max(0, now.Sub(e.LastSeen))) + " ago"
}

func untilEnd(e *observed.Edge, now time.Time) string {
	left := e.NotAfter.Sub(now)
	if left <= 0 {
		return "ended " + duration.HumanDuration(-left) + " ago"
	}
	return "for " + duration.HumanDuration(left)
}

// APIServer is the cell with what an edge finds of its apiserver.
func APIServer(e *observed.Edge) output.Cell {
	switch e.Health() {
	case observed.Healthy:
		return output.Styled(output.StyleGood, string(observed.Healthy))
	case observed.Unhealthy:
		return output.Styled(output.StyleBad, string(observed.Unhealthy))
	}
	return output.Plain("-")
}
