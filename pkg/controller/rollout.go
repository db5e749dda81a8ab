package controller

import (
	"context"
	"fmt"
	"slices"

	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/fairlead/fairlead/api/v1alpha1"
	"github.com/fairlead/fairlead/pkg/controller/waves"
	"github.com/fairlead/fairlead/pkg/report"
	"github.com/fairlead/fairlead/pkg/rollout"
)

// setupRollout adds what decides about rollouts, by what the xds-servers announce.
func (p parts) setupRollout(mgr ctrl.Manager, view *report.View) error {
	r := waves.New(waves.Config{
		Namespace: p.config.Namespace, Client: p.client, Live: p.live, Recorder: p.recorder, Log: p.log, Fleet: view.Fleet,
		Immediate: p.config.RolloutImmediate, Soak: p.config.RolloutSoak, Gone: p.goneEdge,
	})
	if p.config.Metrics != nil {
		if err := p.config.Metrics.Register(r.Metrics()); err != nil {
			return fmt.Errorf("registering figures of rollouts: %w", err)
		}
	}
	return mgr.Add(leading{r.Run})
}

// goneEdge reports whether an edge is no edge any more: no Tunnel has its id, or the Tunnel revokes the edge. While
// that is not known it is false.
func (p parts) goneEdge(ctx context.Context, n rollout.Node) bool {
	var tunnels v1alpha1.TunnelList
	if err := p.client.List(ctx, &tunnels, client.MatchingFields{tunnelIDIndex: n.ID}); err != nil {
		return false
	}
	return !slices.ContainsFunc(tunnels.Items, func(t v1alpha1.Tunnel) bool {
		return t.HeldID() == n.ID && !slices.Contains(t.Spec.RevokedEdges, n.Name)
	})
}
