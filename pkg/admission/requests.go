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
	// maxDebt bounds for how long a node must wait after its last request until it has requests again. A flood is closed
	// after 0.3 s, within which Envoy serves some 10,000.
	maxDebt = 5 * time.Second
	// returnsWith is how many requests a node has again when its new connections are admitted: its clients retry at once,
	// and would otherwise exceed the rate again. So connections are rejected for 10 s at most.
	returnsWith = 5000
)

// requestQuotas are the rates of requests.
type requestQuotas struct {
	nodes *lru[model.EdgeRef, *requestQuota]
	ids   *lru[string, *requestQuota]
}

// requestQuota is the rate of a node, or of a tunnel id. A request is counted after it was made, so the bucket may have
// a debt.
type requestQuota struct {
	bucket
	until time.Time // when new connections are admitted again
}

func newRequestQuotas() requestQuotas {
	return requestQuotas{
		nodes: newLRU[model.EdgeRef, *requestQuota](maxQuotas), ids: newLRU[string, *requestQuota](maxQuotas),
	}
}

// of returns the quotas of a node and of its tunnel id, with the tokens that they have at a time.
func (q requestQuotas) of(at time.Time, node model.EdgeRef) (of, all *requestQuota) {
	of, all = valueOf(q.nodes, node), valueOf(q.ids, node.ID)
	of.follow(at, 1)
	all.follow(at, nodesOfID)
	return of, all
}

// follow adds the tokens of n nodes since the last update. The clock may have been set back since.
func (q *requestQuota) follow(at time.Time, n float64) {
	if back := q.at.Sub(at); back > time.Minute {
		q.at, q.until = at, q.until.Add(-back)
	}
	q.fill(at, n*requestRate, n*requestBurst)
}

// take takes a token of n nodes, and reports whether there was one. Otherwise new connections are rejected for the time
// in which returnsWith tokens for each node are added.
func (q *requestQuota) take(n float64) bool {
	if q.tokens = max(q.tokens-1, -n*requestRate*maxDebt.Seconds()); q.tokens >= 0 {
		return true
	}
	q.until = q.at.Add(time.Duration((n*returnsWith - q.tokens) / (n * requestRate) * float64(time.Second)))
	return false
}

// Request counts a request of a node that was made at a time, and reports whether its rate is exceeded. Its connection
// must then be closed. The requests beyond its own rate do not count for its tunnel id, so that a node whose connection
// stays open rejects no other.
func (c *Control) Request(at time.Time, node model.EdgeRef) Reason {
	c.mu.Lock()
	defer c.mu.Unlock()
	of, all := c.requests.of(at, node)
	return c.requested(of.take(1) && all.take(nodesOfID))
}

// stream decides about a new connection that is no reverse tunnel.
func (c *Control) stream(now time.Time, node model.EdgeRef) Reason {
	c.mu.Lock()
	defer c.mu.Unlock()
	of, all := c.requests.of(now, node)
	return c.requested(!now.Before(of.until) && !now.Before(all.until))
}

// requested counts what is not within the rate. The caller holds the lock.
func (c *Control) requested(within bool) Reason {
	if within {
		return Admitted
	}
	c.counts.Tunnels[ByRequests]++
	return ByRequests
}
