package agent

import (
	"slices"

	"github.com/fairlead/fairlead/pkg/model"
	reportv1 "github.com/fairlead/fairlead/pkg/report/v1"
)

// Peers are the other gateways of the installation, as all xds-servers together report them to one gateway.
type Peers struct {
	Ready []string        // names of the gateways that accept clients, in order
	Edges []model.EdgeRef // that have tunnels to at least one of them, in order
	// Known is false if both lists may be incomplete. It becomes true as soon as every gateway of the installation
	// reports, or when all servers have answered and every live gateway has had time to report.
	Known bool
}

// MergePeers joins the answers of the servers to the gateway called me; nil stands for a server that did not answer.
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
