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
	for i, edges := range h.peers(answer, subject.Node, ids) {
		messages := make([]*reportv1.Edge, len(edges))
		for j, e := range edges {
			messages[j] = &reportv1.Edge{Node: e.node, TunnelId: e.id}
		}
		answer.Peers[i].Edges = messages
	}
	return answer, nil
}

// peers adds the gateways that report to an answer, without the one that asks. It returns the edges of each, so that
// their messages, of which there may be 100,000 for each gateway, are built without the lock.
func (h *Hub) peers(answer *reportv1.PeersAnswer, asks string, ids map[string]bool) (edges [][]pair) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.admitted()
	answer.Settled = h.settled()
	for name, g := range h.gateways {
		if name == asks {
			continue
		}
		if !g.connected { // its current tunnels are not known
			if slices.Contains(answer.GetGateways(), name) && h.now().Sub(g.since) < h.times.Silent {
				answer.Settled = false
			}
			continue
		}
		answer.Settled = answer.GetSettled() && g.incomplete == ""
		answer.Peers = append(answer.Peers, &reportv1.Peer{
			Gateway: name, Ready: g.ready, Incomplete: g.incomplete != "",
		})
		edges = append(edges, g.edges(ids))
	}
	return edges
}

// edges returns the edges of these tunnel ids that have tunnels to a gateway, or all if ids is empty.
func (g *gateway) edges(ids map[string]bool) (all []pair) {
	for key, c := range g.counts {
		if c.n == 0 || len(ids) > 0 && !ids[key.id] {
			continue // without a tunnel: an apiserver, or an edge that has a hole
		}
		all = append(all, key)
	}
	return all
}
