package hub

import (
	"context"
	"slices"

	"github.com/fairlead/fairlead/pkg/model"
	reportv1 "github.com/fairlead/fairlead/pkg/report/v1"
)

// Peers implements the service.
func (h *Hub) Peers(ctx context.Context, request *reportv1.PeersRequest) (*reportv1.PeersAnswer, error) {
	subject, err := caller(ctx, h.domain, model.RoleGateway, h.now())
	if err == nil {
		err = h.admission.Admit(subject)
	}
	if err != nil {
		h.refused(subject, err)
		return nil, err
	}
	ids := make(map[string]bool, len(request.GetTunnelIds()))
	for _, id := range request.GetTunnelIds() {
		ids[id] = true
	}
	answer := &reportv1.PeersAnswer{Gateways: h.admission.Gateways()}
	h.mu.Lock()
	defer h.mu.Unlock()
	h.admitted()
	answer.Settled = h.settled()
	for name, g := range h.gateways {
		if name == subject.Node {
			continue
		}
		if !g.connected { // its current tunnels are not known
			if slices.Contains(answer.GetGateways(), name) && h.now().Sub(g.since) < h.times.Silent {
				answer.Settled = false
			}
			continue
		}
		peer := g.peer(name, ids)
		answer.Settled = answer.GetSettled() && !peer.GetIncomplete()
		answer.Peers = append(answer.Peers, peer)
	}
	return answer, nil
}

// peer returns the state of a gateway that reports, with the edges of these tunnel ids, or all if ids is empty.
func (g *gateway) peer(name string, ids map[string]bool) *reportv1.Peer {
	peer := &reportv1.Peer{Gateway: name, Ready: g.ready, Incomplete: g.incomplete != ""}
	for key, c := range g.counts {
		if c.n == 0 || len(ids) > 0 && !ids[key.id] {
			continue // without a tunnel: an apiserver, or an edge that has a hole
		}
		peer.Edges = append(peer.Edges, &reportv1.Edge{Node: key.node, TunnelId: key.id})
	}
	return peer
}
