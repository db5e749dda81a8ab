package main

import (
	"cmp"
	"fmt"
	"io"
	"slices"
	"strings"
	"text/tabwriter"
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
	cmd := &cobra.Command{
		Use:     "list [CLUSTER]",
		Short:   "List the edges of a namespace, of one Cluster, or all of them",
		Example: "  fairlead edge list -A\n  fairlead edge list -n prod c1",
		Args:    cobra.MaximumNArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			c, namespace, err := f.client()
			if err != nil {
				return err
			}
			options := []client.ListOption{client.InNamespace(namespace)}
			if f.all {
				options = nil
			}
			var tunnels v1alpha1.TunnelList
			if err := c.List(cmd.Context(), &tunnels, options...); err != nil {
				return fmt.Errorf("listing Tunnels: %w", err)
			}
			if len(args) == 1 {
				tunnels.Items = slices.DeleteFunc(tunnels.Items, func(t v1alpha1.Tunnel) bool { return t.Name != args[0] })
				if len(tunnels.Items) == 0 {
					return fmt.Errorf("there is no Tunnel %s in namespace %s", args[0], namespace)
				}
			}
			return printEdges(cmd.OutOrStdout(), tunnels.Items, time.Now())
		},
	}
	f.addTo(cmd.Flags())
	cmd.Flags().StringVarP(&f.namespace, "namespace", "n", "", "namespace of the Clusters; by default that of the context")
	cmd.Flags().BoolVarP(&f.all, "all-namespaces", "A", false, "list those of all namespaces")
	cmd.MarkFlagsMutuallyExclusive("namespace", "all-namespaces")
	return cmd
}

func printEdges(out io.Writer, tunnels []v1alpha1.Tunnel, now time.Time) error {
	slices.SortFunc(tunnels, func(a, b v1alpha1.Tunnel) int {
		return cmp.Or(strings.Compare(a.Namespace, b.Namespace), strings.Compare(a.Name, b.Name))
	})
	w := tabwriter.NewWriter(out, 0, 0, 3, ' ', 0)
	_, _ = fmt.Fprintln(w, "NAMESPACE\tCLUSTER\tNODE\tHOST\tSTATE\tTUNNELS\tSEEN\tCERTIFICATE\tAPISERVER\tVERSION")
	for i := range tunnels {
		t := &tunnels[i]
		for j := range t.Status.Edges {
			e := &t.Status.Edges[j]
			_, _ = fmt.Fprintln(w, strings.Join([]string{
				t.Namespace, t.Name, nodeOf(e), orDash(e.Host), state(t, e, now), tunnelsOf(e), ago(e, now), untilEnd(e, now), apiServer(e), orDash(e.Version),
			}, "\t"))
		}
	}
	return w.Flush()
}

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

func apiServer(e *v1alpha1.EdgeStatus) string {
	switch {
	case e.APIServer == nil:
		return "-"
	case e.APIServer.Healthy:
		return "healthy"
	}
	return "unhealthy"
}

func orDash(s string) string { return cmp.Or(s, "-") }
