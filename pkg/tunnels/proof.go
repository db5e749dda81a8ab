package tunnels

import (
	"context"
	"time"

	"github.com/fairlead/fairlead/pkg/model"
	"github.com/fairlead/fairlead/pkg/sockets"
	"github.com/fairlead/fairlead/pkg/tunnels/ledger"
)

// maxCuts bounds the number of denied edges with a count of closed connections.
const maxCuts = 4096

// Proof is the state of a node's tunnels and connections according to the kernel's sockets.
type Proof struct {
	Denied bool // they are closed as they appear
	Closed int  // number of connections closed since the edge is denied
	Open   int  // number of its connections that the kernel has
	// Incomplete is the reason why a connection may have no record, and the remedy; "": every connection has one.
	Incomplete string
}

// Prove compares the kernel's sockets with the record now, and returns the state of one edge. It cannot fail: if the
// comparison is not possible, Proof.Incomplete is the reason.
func (t *Table) Prove(ctx context.Context, edge model.EdgeRef) Proof {
	if t.config.Writes == nil {
		return Proof{Incomplete: "this gateway does not compare its connections with the record"}
	}
	a := &accountant{}
	defer a.kernel.Close()
	present, why := t.examine(ctx, a)
	t.poll(time.Now())
	t.mu.Lock()
	defer t.mu.Unlock()
	p := Proof{Denied: t.denied.has(Tunnel{Node: edge.Node, ID: edge.ID}), Closed: t.cuts[edge], Incomplete: why}
	if why != "" {
		return p
	}
	there, cookies := make(map[string]bool, 2*len(present)), make(map[sockets.Cookie]bool, len(present))
	for _, s := range present {
		there[ledger.Key(s.Remote, s.Local)], there[s.Remote.String()], cookies[s.Cookie] = true, true, true
	}
	for at, e := range t.live {
		open := there[at]
		if t.config.Envoy != nil {
			open = e.cookie == sockets.Cookie{} || cookies[e.cookie] // a tunnel without a socket yet may have one
		}
		if e.Node == edge.Node && e.ID == edge.ID && open {
			p.Open++
		}
	}
	for at, e := range t.conns.all {
		if e.Node == edge.Node && e.ID == edge.ID && there[at] {
			p.Open++
		}
	}
	p.Incomplete = t.ledger.Incomplete()
	return p
}

// countCut counts a closed connection of a denied edge. The caller holds the lock.
func (t *Table) countCut(e Tunnel) {
	edge := model.EdgeRef{Node: e.Node, ID: e.ID}
	if _, had := t.cuts[edge]; had || len(t.cuts) < maxCuts {
		t.cuts[edge]++
	}
}

// keepCuts removes the counts of edges that are no longer denied. The caller holds the lock.
func (t *Table) keepCuts() {
	for edge := range t.cuts {
		if !t.denied.has(Tunnel{Node: edge.Node, ID: edge.ID}) {
			delete(t.cuts, edge)
		}
	}
}
