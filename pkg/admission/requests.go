package admission

import (
	"time"

	"github.com/fairlead/fairlead/pkg/model"
)

const (
	// requestRate is how many requests a node may make per second on connections that are no reverse tunnels: each is a
	// new connection to a network, or from one to its apiserver, and costs a line of the record. requestBurst is how many
	// it may make at once: a thousand machines with some clients each that lose their apiserver.
	requestRate, requestBurst = 1000, 20_000
	// nodesOfID is the number of nodes of one tunnel id that may do so at the same time.
	nodesOfID = 4
	// maxDebt bounds for how long the connections of a node are rejected after its last request. A flood is closed after
	// 0.3 s, within which Envoy serves some 10,000.
	maxDebt = 10 * time.Second
)

// requestQuotas are the rates of requests. A request is counted after it was made, so a bucket may have a debt.
type requestQuotas struct {
	nodes *lru[model.EdgeRef, *bucket]
	ids   *lru[string, *bucket]
}

func newRequestQuotas() requestQuotas {
	return requestQuotas{nodes: newLRU[model.EdgeRef, *bucket](maxQuotas), ids: newLRU[string, *bucket](maxQuotas)}
}

// of returns the buckets of a node and of its tunnel id, with the tokens that they have at a time. A clock may have
// been set back since the last request.
func (q requestQuotas) of(at time.Time, node model.EdgeRef) (of, all *bucket) {
	of, all = bucketOf(q.nodes, node), bucketOf(q.ids, node.ID)
	for b, n := range map[*bucket]float64{of: 1, all: nodesOfID} {
		if b.at.Sub(at) > time.Minute {
			b.at = at
		}
		b.fill(at, n*requestRate, n*requestBurst)
	}
	return of, all
}

// Request counts a request of a node that was made at a time, and reports whether its rate is exceeded. Its connection
// must then be closed.
func (c *Control) Request(at time.Time, node model.EdgeRef) Reason {
	c.mu.Lock()
	defer c.mu.Unlock()
	of, all := c.requests.of(at, node)
	of.tokens = max(of.tokens-1, -maxDebt.Seconds()*requestRate)
	all.tokens = max(all.tokens-1, -maxDebt.Seconds()*nodesOfID*requestRate)
	return c.inDebt(of, all)
}

// stream decides about a new connection that is no reverse tunnel.
func (c *Control) stream(now time.Time, node model.EdgeRef) Reason {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.inDebt(c.requests.of(now, node))
}

func (c *Control) inDebt(of, all *bucket) Reason {
	if of.tokens >= 0 && all.tokens >= 0 {
		return Admitted
	}
	c.counts.Tunnels[ByRequests]++
	return ByRequests
}
