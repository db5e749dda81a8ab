package hub

import (
	"context"

	"github.com/fairlead/fairlead/pkg/model"
	reportv1 "github.com/fairlead/fairlead/pkg/report/v1"
)

// Peers implements the service.
func (h *Hub) Peers(ctx context.Context, _ *reportv1.PeersRequest) (*reportv1.PeersAnswer, error) {
	subject, err := caller(ctx, h.domain, model.RoleGateway, h.now())
	if err == nil {
		err = h.admission.Admit(subject)
	}
	if err != nil {
		h.refused(subject, err)
		return nil, err
	}
	answer := &reportv1.PeersAnswer{Gateways: h.admission.Gateways()}
	h.mu.Lock()
	defer h.mu.Unlock()
	h.admitted()
	answer.Settled = !h.now().Before(h.ready.Add(h.settle))
	for name, g := range h.gateways {
		if name == subject.Node || !g.connected {
			continue // its current tunnels are not known
		}
		peer := &reportv1.Peer{Gateway: name, Ready: g.ready}
		if g.ready {
			for key, c := range g.counts {
				if c.n == 0 {
					continue // apiservers choose a gateway
				}
				peer.Edges = append(peer.Edges, &reportv1.Edge{Node: key.node, TunnelId: key.id})
			}
		}
		answer.Peers = append(answer.Peers, peer)
	}
	return answer, nil
}
