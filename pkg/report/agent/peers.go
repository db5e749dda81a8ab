package agent

import (
	"maps"
	"slices"

	"github.com/fairlead/fairlead/pkg/model"
	reportv1 "github.com/fairlead/fairlead/pkg/report/v1"
)

// Peers are the other gateways of the installation, as all xds-servers together report them to one gateway.
type Peers struct {
	Gateways map[string]Peer // those that report, by name
	// Known is false if gateways or tunnels of them may be missing. It becomes true as soon as every gateway of the
	// installation reports, or when all servers have answered and every live gateway has had time to report.
	Known bool
}

// Peer is another gateway that reports.
type Peer struct {
	Ready      bool // it accepts clients
	Incomplete bool // it may have tunnels that it does not report
	Edges      map[model.EdgeRef]bool
}

// ReadyEdges returns the edges that have tunnels to at least one gateway that accepts clients, in order.
func (p Peers) ReadyEdges() []model.EdgeRef {
	edges := map[model.EdgeRef]bool{}
	for _, g := range p.Gateways {
		if g.Ready {
			maps.Copy(edges, g.Edges)
		}
	}
	return slices.SortedFunc(maps.Keys(edges), model.EdgeRef.Compare)
}

// MergePeers joins the answers of the servers to the gateway called me; nil stands for a server that did not answer. A
// gateway that changes the server may report to two of them: the tunnels of both count.
func MergePeers(me string, answers []*reportv1.PeersAnswer) Peers {
	p := Peers{Gateways: map[string]Peer{}}
	settled := len(answers) > 0
	installed := map[string]bool{}
	for _, answer := range answers {
		settled = settled && answer.GetSettled()
		for _, name := range answer.GetGateways() {
			installed[name] = true
		}
		for _, peer := range answer.GetPeers() {
			g, known := p.Gateways[peer.GetGateway()]
			if !known {
				g.Edges = make(map[model.EdgeRef]bool, len(peer.GetEdges()))
			}
			g.Ready, g.Incomplete = g.Ready || peer.GetReady(), g.Incomplete || peer.GetIncomplete()
			for _, e := range peer.GetEdges() {
				g.Edges[model.EdgeRef{Node: e.GetNode(), ID: e.GetTunnelId()}] = true
			}
			p.Gateways[peer.GetGateway()] = g
		}
	}
	complete := len(installed) > 0
	for name := range installed {
		g, reports := p.Gateways[name]
		complete = complete && (name == me || reports && !g.Incomplete)
	}
	p.Known = complete || settled
	return p
}
