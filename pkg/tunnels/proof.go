package tunnels

import (
	"context"
	"time"

	"github.com/fairlead/fairlead/pkg/model"
)

// maxCuts is of how many denied edges the closed connections are counted.
const maxCuts = 4096

// Proof is what the kernel's sockets say of an edge's tunnels.
type Proof struct {
	Denied bool // its tunnels are closed as they appear
	Closed int  // connections of its tunnels that were closed since it is denied
	Open   int  // connections of its tunnels that the kernel has
	// Incomplete says why there may be a connection that has no record, and the cure; "": there is none.
	Incomplete string
}

// Prove compares the kernel's sockets with the record now, and returns what they say of one edge.
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
	there := make(map[string]bool, 2*len(present))
	for _, s := range present {
		there[key(s.Remote, s.Local)], there[s.Remote.String()] = true, true
	}
	for at, e := range t.live {
		if e.Node == edge.Node && e.ID == edge.ID && there[at] {
			p.Open++
		}
	}
	p.Incomplete = t.ledger.incomplete()
	return p
}

// countCut counts a connection of a denied edge that was closed. The lock is held.
func (t *Table) countCut(e Tunnel) {
	edge := model.EdgeRef{Node: e.Node, ID: e.ID}
	if _, had := t.cuts[edge]; had || len(t.cuts) < maxCuts {
		t.cuts[edge]++
	}
}

// keepCuts forgets the counts of edges that are denied no more. The lock is held.
func (t *Table) keepCuts() {
	for edge := range t.cuts {
		if !t.denied.has(Tunnel{Node: edge.Node, ID: edge.ID}) {
			delete(t.cuts, edge)
		}
	}
}
