package report

import (
	"context"
	"slices"

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
			continue // nobody knows what tunnels it has now
		}
		peer := &reportv1.Peer{Gateway: name, Ready: g.ready}
		if g.ready {
			for key := range g.counts {
				peer.Edges = append(peer.Edges, &reportv1.Edge{Node: key.node, TunnelId: key.id})
			}
		}
		answer.Peers = append(answer.Peers, peer)
	}
	return answer, nil
}

// Peers is what all xds-servers together say of the gateways beside one.
type Peers struct {
	Ready []string        // names of those that take clients, in order
	Edges []model.EdgeRef // that have tunnels to at least one of them, in order
	// Known is false if there may be more of both. It is true as soon as every gateway of the installation reports, and else when
	// all of the servers were asked and every gateway that lives has had time to report.
	Known bool
}

// MergePeers joins what the servers have answered to the gateway called me; nil stands for one that gave no answer.
func MergePeers(me string, answers []*reportv1.PeersAnswer) Peers {
	var p Peers
	settled := len(answers) > 0
	there, all := map[string]bool{me: true}, map[string]bool{}
	edges := map[model.EdgeRef]bool{}
	for _, answer := range answers {
		settled = settled && answer.GetSettled()
		for _, name := range answer.GetGateways() {
			all[name] = true
		}
		for _, peer := range answer.GetPeers() {
			there[peer.GetGateway()] = true
			if peer.GetReady() && !slices.Contains(p.Ready, peer.GetGateway()) {
				p.Ready = append(p.Ready, peer.GetGateway())
			}
			for _, e := range peer.GetEdges() {
				edges[model.EdgeRef{Node: e.GetNode(), ID: e.GetTunnelId()}] = true
			}
		}
	}
	complete := len(all) > 0
	for name := range all {
		complete = complete && there[name]
	}
	p.Known = complete || settled
	for e := range edges {
		p.Edges = append(p.Edges, e)
	}
	slices.Sort(p.Ready)
	slices.SortFunc(p.Edges, model.EdgeRef.Compare)
	return p
}
