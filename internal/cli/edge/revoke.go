package edge

import (
	"context"
	"errors"
	"fmt"
	"io"
	"strings"
	"time"

	"github.com/spf13/cobra"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/fairlead/fairlead/api/v1alpha1"
	"github.com/fairlead/fairlead/internal/cli/management"
	"github.com/fairlead/fairlead/internal/cli/output"
	"github.com/fairlead/fairlead/pkg/diagnose/collect"
	"github.com/fairlead/fairlead/pkg/model"
	"github.com/fairlead/fairlead/pkg/observed"
)

const edgeRevokeHelp = `
Revoke an edge: add its node name to spec.revokedEdges of its Tunnel, and wait until its tunnels are closed. A
revoked edge gets no certificate, no configuration and no tunnel, and the token that it enrolled with becomes
invalid. Other edges are not affected. "fairlead edge list -A" shows node names. With --cluster or --network,
the edge need not be on record.

Each gateway compares its records with the sockets of its kernel. The command prints how many connections each
gateway closed. It fails if a gateway does not prove in time that no connection is left, or reports that its
records are incomplete; the edge remains revoked.

With --network, the permissions of the operator of that RemoteNetwork are enough. If they do not include asking
the gateways, the record of the controller decides: all gateways have reported that they have no tunnel of it.

Needs: list, get and patch on Tunnels; in the namespace of the installation, list on Pods and create on
pods/portforward. With --network: get and patch on the Tunnel NETWORK.network.
Changes: spec.revokedEdges of the Tunnel.
Exit codes: 0 the edge is revoked and its tunnels are closed; 1 a gateway has not proven it, or the command
failed; 2 the command line is invalid.`

func edgeRevokeCommand() *cobra.Command {
	var f edgeFlags
	var servers management.ServersFlags
	cmd := &cobra.Command{
		Use:   "revoke NODE",
		Short: "Revoke an edge and close its tunnels",
		Example: "  fairlead edge revoke edge-abcdefghijklmnop\n  fairlead edge revoke edge-abcdefghijklmnop -n prod " +
			"--cluster c1\n  fairlead edge revoke edge-abcdefghijklmnop -n prod --network site1",
		Long: strings.TrimSpace(edgeRevokeHelp),
		Args: cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			return runEdgeRevoke(cmd, args[0], f, servers)
		},
	}
	f.AddTo(cmd.Flags())
	servers.AddTo(cmd)
	cmd.Flags().
		StringVarP(&f.Namespace, "namespace", "n", "", "namespace of the edge's Cluster (default: search all namespaces)")
	cmd.Flags().StringVar(&f.cluster, "cluster", "", "name of the edge's Cluster")
	cmd.Flags().StringVar(&f.network, "network", "", "name of the edge's RemoteNetwork")
	cmd.MarkFlagsMutuallyExclusive("cluster", "network")
	cmd.Flags().DurationVar(&f.timeout, "timeout", time.Minute, "how long to wait until its tunnels are closed")
	return cmd
}

// runEdgeRevoke revokes an edge and waits until the gateways have proven that its tunnels are closed.
func runEdgeRevoke(cmd *cobra.Command, node string, f edgeFlags, servers management.ServersFlags) error {
	if err := model.ValidateNodeName(node); err != nil {
		return output.UsageError("%w", err)
	}
	for flag, value := range map[string]string{"cluster": f.cluster, "network": f.network} {
		if value != "" && f.Namespace == "" {
			return output.UsageError("--%s needs --namespace", flag)
		}
	}
	m, err := f.Open()
	if err != nil {
		return err
	}
	begin := time.Now()
	tunnel, err := findTunnel(cmd.Context(), m, node, f)
	if err != nil {
		return err
	}
	if err := revoke(cmd.Context(), m, client.ObjectKeyFromObject(tunnel), node); err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(cmd.Context(), f.timeout)
	defer cancel()
	cut, cutErr := waitCut(ctx, cmd.OutOrStdout(), m, tunnel, node, begin)
	if cutErr != nil { // the gateways' reasons are printed once
		ctx, cancel = context.WithTimeout(cmd.Context(), lastProof)
		defer cancel()
	}
	prove := func(ctx context.Context) ([]collect.GatewayProof, error) {
		s, err := servers.Connect(ctx, m)
		if err != nil {
			return nil, err
		}
		defer s.Close()
		return s.Prove(ctx, model.EdgeRef{Node: node, ID: tunnel.HeldID()})
	}
	if cut && f.network != "" {
		if _, err := prove(ctx); apierrors.IsForbidden(err) {
			_, err = fmt.Fprintf(
				cmd.OutOrStdout(), "gateways were not asked for a proof, which takes permissions in namespace %s\n",
				servers.Installation,
			)
			return err
		}
	}
	return errors.Join(cutErr, waitProven(ctx, cmd.OutOrStdout(), prove))
}

// findTunnel returns the named Tunnel, or the only Tunnel that has recorded a node.
func findTunnel(ctx context.Context, c client.Client, node string, f edgeFlags) (*v1alpha1.Tunnel, error) {
	name := f.cluster
	if f.network != "" {
		name = f.network + v1alpha1.NetworkTunnelSuffix
	}
	if name != "" {
		var tunnel v1alpha1.Tunnel
		if err := c.Get(ctx, client.ObjectKey{Namespace: f.Namespace, Name: name}, &tunnel); err != nil {
			return nil, fmt.Errorf("reading Tunnel: %w", err)
		}
		return &tunnel, nil
	}
	var all v1alpha1.TunnelList
	if err := c.List(ctx, &all, client.InNamespace(f.Namespace)); err != nil {
		return nil, fmt.Errorf("listing Tunnels: %w", err)
	}
	var found []*v1alpha1.Tunnel
	var names []string
	for i := range all.Items {
		t := &all.Items[i]
		if edgeOf(t, node) != nil || observed.IsRevoked(t, node) {
			found, names = append(found, t), append(names, t.Namespace+"/"+t.Name)
		}
	}
	switch {
	case len(found) == 0 && f.Namespace == "":
		return nil, fmt.Errorf(
			"no Tunnel has an edge %s on record: see `fairlead edge list -A`, or select its Cluster with --namespace and "+
				"--cluster",
			node,
		)
	case len(found) == 0:
		return nil, fmt.Errorf(
			"no Tunnel in namespace %s has an edge %s on record: see `fairlead edge list -A`, or select its Cluster with "+
				"--cluster",
			f.Namespace,
			node,
		)
	case len(found) > 1:
		return nil, fmt.Errorf(
			"several Tunnels have an edge %s on record, %s: select one with --namespace and --cluster", node,
			strings.Join(names, ", "),
		)
	}
	return found[0], nil
}

// edgeOf returns an edge as it is on record; nil: it is not.
func edgeOf(t *v1alpha1.Tunnel, node string) *observed.Edge {
	for _, e := range observed.Recorded(t, time.Now()) {
		if e.Node == node {
			return &e
		}
	}
	return nil
}

// revoke adds a node to the revoked nodes. It retries as often as the Tunnel has been changed concurrently.
func revoke(ctx context.Context, c client.Client, key client.ObjectKey, node string) error {
	for {
		var tunnel v1alpha1.Tunnel
		if err := c.Get(ctx, key, &tunnel); err != nil {
			return fmt.Errorf("reading Tunnel: %w", err)
		}
		if observed.IsRevoked(&tunnel, node) {
			return nil
		}
		want := tunnel.DeepCopy()
		want.Spec.RevokedEdges = append(want.Spec.RevokedEdges, node)
		err := c.Patch(ctx, want, client.MergeFromWithOptions(&tunnel, client.MergeFromWithOptimisticLock{}))
		if err == nil || !apierrors.IsConflict(err) {
			if err != nil {
				return fmt.Errorf("revoking %s in Tunnel %s: %w", node, key, err)
			}
			return nil
		}
	}
}

// waitCut waits until the controller has recorded that every gateway which had a tunnel of the edge has reported that
// it has none any longer, and returns whether that is on record. A gateway that does not report keeps the wait open,
// however long that takes.
func waitCut(
	ctx context.Context, out io.Writer, c client.Client, tunnel *v1alpha1.Tunnel, node string, begin time.Time,
) (cut bool, err error) {
	key := client.ObjectKeyFromObject(tunnel)
	again := time.NewTicker(management.PollInterval)
	defer again.Stop()
	what := "the controller has not processed it: check that it runs"
	for {
		var now v1alpha1.Tunnel
		err := c.Get(ctx, key, &now)
		if apierrors.IsNotFound(err) {
			_, err = fmt.Fprintf(out, "revoked %s: its Tunnel %s is gone\n", node, key)
			return false, err
		}
		if err == nil {
			switch edge := edgeOf(&now, node); {
			case edge == nil:
				_, err := fmt.Fprintf(
					out, "revoked %s in Tunnel %s; it is not on record, so it is not known whether it has tunnels\n", node, key,
				)
				return false, err
			case edge.RevokedAt.IsZero():
			case len(edge.Gateways) > 0:
				what = "these gateways have not confirmed that its tunnels are closed: " + observed.TunnelsByGateway(
					edge.Gateways,
				) + " (the tunnels of a removed gateway are closed)"
			case !edge.Cut():
				what = "it is not known whether its tunnels are closed: not all gateways report to the controller"
			default:
				_, err := fmt.Fprintf(
					out, "revoked %s in Tunnel %s: no gateway has a tunnel of it after %s\n", node, key,
					time.Since(begin).Round(100*time.Millisecond),
				)
				return true, err
			}
		}
		select {
		case <-ctx.Done():
			return false, fmt.Errorf("%s is revoked in Tunnel %s, but %s: %w", node, key, what, errors.Join(ctx.Err(), err))
		case <-again.C:
		}
	}
}
