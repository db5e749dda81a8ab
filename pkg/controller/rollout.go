package controller

import (
	"context"
	"fmt"
	"slices"

	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/fairlead/fairlead/api/v1alpha1"
	"github.com/fairlead/fairlead/pkg/controller/reconciler"
	"github.com/fairlead/fairlead/pkg/controller/waves"
	reportview "github.com/fairlead/fairlead/pkg/report/view"
	"github.com/fairlead/fairlead/pkg/rollout"
)

// setupRollout adds the reconciler of rollouts, which uses the announcements of the xds-servers.
func setupRollout(p reconciler.Deps, mgr ctrl.Manager, view *reportview.View) error {
	r := waves.New(waves.Config{
		Namespace: p.Config.Namespace, Client: p.Client, Live: p.Live, Recorder: p.Recorder, Log: p.Log, Fleet: view.Fleet,
		Immediate: p.Config.RolloutImmediate, Soak: p.Config.RolloutSoak, Gone: goneEdge(p),
	})
	if p.Config.Metrics != nil {
		if err := p.Config.Metrics.Register(r.Metrics()); err != nil {
			return fmt.Errorf("registering figures of rollouts: %w", err)
		}
	}
	return mgr.Add(reconciler.Leading{Run: r.Run})
}

// goneEdge reports whether an edge has ended for good: no Tunnel has its id, or the Tunnel revokes the edge. It
// returns false while that is not known.
func goneEdge(p reconciler.Deps) func(ctx context.Context, n rollout.Node) bool {
	return func(ctx context.Context, n rollout.Node) bool {
		var tunnels v1alpha1.TunnelList
		if err := p.Client.List(ctx, &tunnels, client.MatchingFields{reconciler.TunnelIDIndex: n.ID}); err != nil {
			return false
		}
		return !slices.ContainsFunc(tunnels.Items, func(t v1alpha1.Tunnel) bool {
			return t.HeldID() == n.ID && !slices.Contains(t.Spec.RevokedEdges, n.Name)
		})
	}
}
