package cli

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/util/duration"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/fairlead/fairlead/api/v1alpha1"
	"github.com/fairlead/fairlead/pkg/model"
)

// edgeFlags are the command line of the edge commands.
type edgeFlags struct {
	managementFlags
	all     bool
	cluster string
	timeout time.Duration
}

func edgeCommand() *cobra.Command {
	return group("edge", "Look at edges, and revoke them", edgeListCommand(), edgeRevokeCommand())
}

func edgeListCommand() *cobra.Command {
	var f edgeFlags
	var o output
	cmd := &cobra.Command{
		Use:     "list [CLUSTER]",
		Short:   "List the edges of a namespace, of one Cluster, or all of them",
		Example: "  fairlead edge list -A\n  fairlead edge list -n prod c1\n  fairlead edge list -A --watch",
		Args:    cobra.MaximumNArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			m, err := f.open()
			if err != nil {
				return err
			}
			namespace := m.namespace
			if f.all {
				namespace = ""
			}
			from, changes, err := m.reader(cmd.Context(), o.watch, namespace, &v1alpha1.Tunnel{})
			if err != nil {
				return err
			}
			return o.show(cmd, func(ctx context.Context) (view, error) {
				tunnels, err := listTunnels(ctx, from, namespace, args)
				return edgesView(tunnels, time.Now()), err
			}, changes)
		},
	}
	f.addTo(cmd.Flags())
	o.addWatchTo(cmd)
	cmd.Flags().StringVarP(&f.namespace, "namespace", "n", "", "namespace of the Clusters; by default that of the context")
	cmd.Flags().BoolVarP(&f.all, "all-namespaces", "A", false, "list those of all namespaces")
	cmd.MarkFlagsMutuallyExclusive("namespace", "all-namespaces")
	return cmd
}

// listTunnels lists the Tunnels of a namespace, or of all if it is empty; with a name the one of that name, which has to be there.
func listTunnels(ctx context.Context, from client.Reader, namespace string, name []string) ([]v1alpha1.Tunnel, error) {
	var tunnels v1alpha1.TunnelList
	if err := from.List(ctx, &tunnels, client.InNamespace(namespace)); err != nil {
		return nil, fmt.Errorf("listing Tunnels: %w", err)
	}
	if len(name) == 1 {
		tunnels.Items = slices.DeleteFunc(tunnels.Items, func(t v1alpha1.Tunnel) bool { return t.Name != name[0] })
		if len(tunnels.Items) == 0 {
			return nil, fmt.Errorf("there is no Tunnel %s in %s: `kubectl get clusters,tunnels -A` shows what there is", name[0], inNamespace(namespace))
		}
	}
	slices.SortFunc(tunnels.Items, func(a, b v1alpha1.Tunnel) int {
		return cmp.Or(strings.Compare(a.Namespace, b.Namespace), strings.Compare(a.Name, b.Name))
	})
	return tunnels.Items, nil
}

func inNamespace(namespace string) string {
	if namespace == "" {
		return "any namespace"
	}
	return "namespace " + namespace
}

// edgeRow is one edge, for machines.
type edgeRow struct {
	Namespace string `json:"namespace"`
	Cluster   string `json:"cluster"`
	Node      string `json:"node"`
	State     string `json:"state"`
	v1alpha1.EdgeStatus
}

func edgesView(tunnels []v1alpha1.Tunnel, now time.Time) view {
	t := &table{columns: columns("NAMESPACE", "CLUSTER", "NODE", "HOST", "STATE", "TUNNELS", "SEEN~", "CERTIFICATE~", "APISERVER", "VERSION", "FORM+", "ENROLLED+~", "LAST ERROR+")}
	all := []edgeRow{}
	for i := range tunnels {
		tunnel := &tunnels[i]
		for j := range tunnel.Status.Edges {
			e := &tunnel.Status.Edges[j]
			r := edgeRow{tunnel.Namespace, tunnel.Name, nodeOf(e), state(tunnel, e, now), *e}
			all = append(all, r)
			t.add(r.Namespace+"/"+r.Cluster+" "+r.Node, r, plain(r.Namespace), plain(r.Cluster), plain(r.Node), plain(orDash(e.Host)), in(edgeMoods[r.State], r.State), plain(tunnelsOf(e)),
				plain(ago(e, now)), plain(untilEnd(e, now)), apiServer(e), plain(orDash(e.Version)), plain(orDash(e.Form)), plain(age(e.EnrolledAt.Time, now)), plain(orDash(e.LastError)))
		}
	}
	return view{Data: map[string]any{"edges": all}, Table: t, Empty: "no edge is enrolled"}
}

// edgeMoods are how the states of edges look.
var edgeMoods = map[string]mood{"connected": moodGood, "away": moodWarning, "expired": moodBad, "revoked": moodFaint, "unknown": moodFaint}

func nodeOf(e *v1alpha1.EdgeStatus) string {
	node, _ := model.ParseNodeID(e.NodeID)
	return node
}

// state is one word for an edge.
func state(t *v1alpha1.Tunnel, e *v1alpha1.EdgeStatus, now time.Time) string {
	ready := meta.FindStatusCondition(t.Status.Conditions, v1alpha1.ConditionTunnelReady)
	switch {
	case slices.Contains(t.Spec.RevokedEdges, nodeOf(e)) || e.RevokedAt != nil:
		return "revoked"
	case len(e.Gateways) > 0:
		return "connected"
	case !now.Before(e.CertificateNotAfter.Time):
		return "expired"
	case ready == nil || ready.Status == "Unknown":
		return "unknown"
	}
	return "away"
}

func tunnelsOf(e *v1alpha1.EdgeStatus) string {
	var all []string
	for _, g := range e.Gateways {
		all = append(all, fmt.Sprintf("%s:%d", g.Name, g.Tunnels))
	}
	return orDash(strings.Join(all, ","))
}

func ago(e *v1alpha1.EdgeStatus, now time.Time) string {
	if e.LastSeen == nil {
		return "-"
	}
	return duration.HumanDuration(max(0, now.Sub(e.LastSeen.Time))) + " ago"
}

func untilEnd(e *v1alpha1.EdgeStatus, now time.Time) string {
	left := e.CertificateNotAfter.Sub(now)
	if left <= 0 {
		return "ended " + duration.HumanDuration(-left) + " ago"
	}
	return "for " + duration.HumanDuration(left)
}

func apiServer(e *v1alpha1.EdgeStatus) cell {
	switch {
	case e.APIServer == nil:
		return plain("-")
	case e.APIServer.Healthy:
		return in(moodGood, "healthy")
	}
	return in(moodBad, "unhealthy")
}

func orDash(s string) string { return cmp.Or(s, "-") }
