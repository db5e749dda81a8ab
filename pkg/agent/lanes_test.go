package agent

import (
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/fairlead/fairlead/internal/envoytest"
	"github.com/fairlead/fairlead/pkg/model"
)

// TestLanesBelongToTheirEdge: agents accept the resources of lanes, open the first for a client, admit their tunnels,
// and count and revoke them with the edge's.
func TestLanesBelongToTheirEdge(t *testing.T) {
	const lanes = 3
	all := model.TunnelsPerWorker + model.TunnelsInLanes(1)
	gateway, edge, a := newPair(t)
	gateway.lanes = lanes
	gateway.serve()
	gateway.agent()
	edge.agent()
	edge.works(a)
	edge.ready()
	node := edge.state("it has a node name", func(s state) error {
		if s.Memberships[0].Node == "" {
			return errors.New("it has none")
		}
		return nil
	}).Memberships[0].Node
	proves := func(what string, want func(open, closed int, denied bool) bool) {
		t.Helper()
		envoytest.Eventually(t, what, func() error {
			gateway.mu.Lock()
			hub := gateway.hub
			gateway.mu.Unlock()
			proofs := hub.Prove(t.Context(), model.EdgeRef{Node: node, ID: edgeSubject.ID})
			if len(proofs) != 1 || proofs[0].Problem != nil {
				return fmt.Errorf("got %v", proofs)
			}
			if p := proofs[0].Proof; !want(int(p.GetOpen()), int(p.GetClosed()), p.GetDenied()) || p.GetIncomplete() != "" {
				return fmt.Errorf("got %v", p)
			}
			return nil
		})
	}
	proves("an edge without clients has no lanes", func(open, _ int, _ bool) bool {
		return open == model.TunnelsPerWorker
	})
	cut := edge.stream(a, 20*time.Second) // until the edge is revoked
	proves("the gateway counts the tunnels of lanes as the edge's", func(open, _ int, _ bool) bool { return open >= all })
	edge.revoke(edgeSubject.ID, node)
	proves("all of them are closed", func(open, closed int, denied bool) bool {
		return open == 0 && closed >= all && denied
	})
	if err := cut(); err == nil {
		t.Error("the stream did not end")
	}
}
