package admission

import (
	"cmp"
	"math"
	"net/netip"
	"slices"
	"time"

	"github.com/fairlead/fairlead/pkg/model"
)

const (
	// DefaultMaxEdges is the default number of edges with which one tunnel id may have reverse tunnels at one gateway.
	// A workload cluster has an edge on each control-plane machine, and a few more while machines are replaced.
	DefaultMaxEdges = 64
	// eventTime is how long an admitted reverse tunnel counts before it is in the table. Its event arrives after 0.25
	// s.
	eventTime = 1500 * time.Millisecond
	// maxQuotas bounds the edges, and the tunnel ids, with a bucket. Only a certificate of this installation creates
	// one.
	maxQuotas = 1 << 16
	// usualOfID bounds the reverse tunnels of a tunnel id with at most DefaultMaxEdges edges, without the forFew more that
	// only edges with few may have: 31 edges of one tunnel id may keep 8,000 in lanes to four workers. With its other
	// connections such a tunnel id has at most half of the 25,000 that the public port of a gateway accepts.
	usualOfID, forFew = 8000, 1000
	// shareOfMany and shareOfFew are how many times as many reverse tunnels as a gateway has left one tunnel id may have:
	// for edges with many, and for edges with few. So n tunnel ids leave at least one of 4 n + 1 to others.
	shareOfMany, shareOfFew = 2, 4
	// usualForwards and mostForwards bound the connections of edges of a tunnel id that forward. With those of apiservers
	// they are at most half of the 25,000 that the public port of a gateway accepts.
	usualForwards, mostForwards = 1024, 10_000
)

// Limits are the maximum numbers of reverse tunnels or other connections: of a node, of all nodes of its tunnel id, and
// of all nodes. Of All, tunnel ids have equal shares when there are few left: see Control.needs.
type Limits struct{ Node, ID, All int }

// StreamLimits returns the limits of connections that are no reverse tunnels. An edge that forwards has one for 512
// streams, and accepts at most 50,000 connections. Many edges have one each, and another one while it is replaced. The
// Envoy beside an apiserver has a few; an apiserver without one has a connection for each stream.
func (c *Control) StreamLimits(role model.Role) Limits {
	if role == model.RoleEgress {
		return Limits{Node: 1024, ID: 2048, All: math.MaxInt} // Envoy's listener counts them
	}
	return Limits{Node: 128, ID: min(max(usualForwards, 2*c.maxEdges), mostForwards), All: math.MaxInt}
}

// TunnelLimits returns the limits of reverse tunnels, for edges that are configured to keep this many.
func (c *Control) TunnelLimits(tunnels int) Limits {
	return Limits{
		Node: maxTunnels(tunnels), ID: min(maxOfID(tunnels, c.maxEdges), c.bound()+forFew), All: c.maxTunnels,
	}
}

// bound returns how many reverse tunnels all edges of a tunnel id may have, whatever each is configured to keep. It
// leaves out those for edges with few. Many edges may have two thirds of all, as shareOfMany permits.
func (c *Control) bound() int {
	return max(usualOfID, min(usualOfID/DefaultMaxEdges*c.maxEdges, c.maxTunnels/3*2))
}

// few reports whether an edge with this many reverse tunnels has few, so that it may have one of the last ones of its
// tunnel id. Each edge that is permitted for a tunnel id may have as many.
func (c *Control) few(tunnels int) bool { return tunnels < max(1, forFew/c.maxEdges) }

// needs returns how many reverse tunnels a gateway must have left for one more of an edge that has ofEdge, and whose
// tunnel id has ofID. The more a tunnel id has, the more must be left, so the last ones are for tunnel ids with few.
func (c *Control) needs(ofEdge, ofID int) int {
	if c.few(ofEdge) {
		return ofID/shareOfFew + 1
	}
	return ofID/shareOfMany + 1
}

// maxTunnels returns the maximum number of reverse tunnels of an edge that is configured to keep this many: twice as
// many, because an edge may reconnect before its old sockets are detected as dead, and twice again, because a change
// of the configured number replaces all reverse tunnels.
func maxTunnels(tunnels int) int { return 4 * max(1, tunnels) }

// maxOfID returns the maximum for all edges of a tunnel id. It is below the sum of their maxima, because not all of
// them restart at once.
func maxOfID(tunnels, edges int) int {
	return max(maxTunnels(tunnels), 2*max(1, tunnels)*edges)
}

// Attempt is a reverse tunnel that an edge requests, after TLS.
type Attempt struct {
	Edge          model.EdgeRef
	Remote, Local netip.AddrPort // the two ends of its connection
	// Tunnels is how many reverse tunnels an edge of this tunnel id is configured to keep to this gateway.
	Tunnels int
	// LiveOfEdge, LiveOfID and LiveOfAll are the numbers of reverse tunnels in the table: of this edge, of all edges of
	// its tunnel id, and of all edges.
	LiveOfEdge, LiveOfID, LiveOfAll int
	// Live reports whether the reverse tunnel on a connection is in the table.
	Live func(remote, local netip.AddrPort) bool
}

// tunnelQuotas are the rates of new reverse tunnels, and the admitted ones that are not in the table yet.
type tunnelQuotas struct {
	edges   *lru[model.EdgeRef, *bucket]
	ids     *lru[string, *bucket]
	pending map[string][]pending // by tunnel id
	// all are the pending ones of all tunnel ids, in the order of their admission. The first one is not in the table yet;
	// later ones may be.
	all []pending
}

// pending is a reverse tunnel that was admitted and is not in the table yet.
type pending struct {
	node          string
	remote, local netip.AddrPort
	until         time.Time
}

func newTunnelQuotas() tunnelQuotas {
	return tunnelQuotas{
		edges:   newLRU[model.EdgeRef, *bucket](maxQuotas),
		ids:     newLRU[string, *bucket](maxQuotas),
		pending: map[string][]pending{},
	}
}

// Tunnel decides about a reverse tunnel after TLS. If it admits the reverse tunnel, its source becomes known.
func (c *Control) Tunnel(now time.Time, a Attempt) Reason {
	c.mu.Lock()
	defer c.mu.Unlock()
	reason := c.tunnel(now, a)
	c.counts.Tunnels[reason]++
	return reason
}

func (c *Control) tunnel(now time.Time, a Attempt) Reason {
	q, id := &c.tunnels, a.Edge.ID
	over := func(p pending) bool { return !now.Before(p.until) || a.Live(p.remote, p.local) }
	waiting := slices.DeleteFunc(q.pending[id], over)
	q.pending[id] = waiting
	for len(q.all) > 0 && over(q.all[0]) {
		q.all = q.all[1:]
	}
	ofEdge := 0
	for _, p := range waiting {
		if p.node == a.Edge.Node {
			ofEdge++
		}
	}
	edge, all := valueOf(q.edges, a.Edge), valueOf(q.ids, id)
	limits := c.TunnelLimits(a.Tunnels)
	most, mostOfID := limits.Node, limits.ID
	if !c.few(a.LiveOfEdge + ofEdge) {
		mostOfID = min(mostOfID, c.bound())
	}
	reason, left := Admitted, limits.All-a.LiveOfAll-len(q.all)
	switch {
	case left < c.needs(a.LiveOfEdge+ofEdge, a.LiveOfID+len(waiting)):
		reason = ByGateway
	case a.LiveOfEdge+ofEdge >= most:
		reason = ByEdge
	case a.LiveOfID+len(waiting) >= mostOfID:
		reason = ByTunnelID
	// an edge dials each reverse tunnel again after half a second at the earliest
	case !edge.has(now, float64(most), 2*float64(most)):
		reason = ByEdgeRate
	case !all.has(now, float64(mostOfID)/8, float64(mostOfID)):
		reason = ByTunnelRate
	}
	if reason != Admitted {
		if len(waiting) == 0 {
			delete(q.pending, id)
		}
		return reason
	}
	edge.tokens--
	all.tokens--
	admitted := pending{a.Edge.Node, a.Remote, a.Local, now.Add(eventTime)}
	q.pending[id], q.all = append(waiting, admitted), append(q.all, admitted)
	c.known.record(now, Source(a.Remote.Addr()), a.Edge, most)
	return Admitted
}

// reject counts a connection after TLS that is no reverse tunnel and is rejected.
func (c *Control) reject(reason Reason) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.counts.Tunnels[reason]++
}

// Expire removes admitted reverse tunnels that were never added to the table.
func (c *Control) Expire(now time.Time) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for id, waiting := range c.tunnels.pending {
		if !slices.ContainsFunc(waiting, func(p pending) bool { return now.Before(p.until) }) {
			delete(c.tunnels.pending, id)
		}
	}
}

// Live is a reverse tunnel or a connection in the table.
type Live struct {
	Key    string
	Edge   model.EdgeRef
	Worker string // of the gateway's Envoy
	Lane   bool
	Since  time.Time
}

// place is where a node has reverse tunnels: clients of each worker need some, and lanes serve only further ones.
type place struct {
	edge   model.EdgeRef
	worker string
	lane   bool
}

// Excess returns the keys of the reverse tunnels or connections beyond the limits, newest first. There can be more than
// were admitted after Envoy could not reach the Server for a while, and what a tunnel id was admitted may be beyond its
// share once others have come: see beyondShare. limits returns the limits of a tunnel id. Excess sorts all in place.
func (c *Control) Excess(all []Live, limits func(id string) Limits) (keys []string) {
	byAge := func(a, b Live) int { return cmp.Or(a.Since.Compare(b.Since), cmp.Compare(a.Key, b.Key)) }
	slices.SortFunc(all, byAge)
	edges, ids, places := map[model.EdgeRef]int{}, map[string]int{}, map[place]int{}
	mostOfAll := math.MaxInt
	var within []placed
	var beyond []Live
	for _, t := range all { // the oldest stay
		most := limits(t.Edge.ID)
		if edges[t.Edge] >= most.Node || ids[t.Edge.ID] >= most.ID {
			beyond = append(beyond, t)
			continue
		}
		at := place{t.Edge, t.Worker, t.Lane}
		within, mostOfAll = append(within, placed{Live: t, older: places[at]}), most.All
		places[at]++
		edges[t.Edge]++
		ids[t.Edge.ID]++
	}
	largest := 0
	for _, n := range ids {
		largest = max(largest, n)
	}
	if mostOfAll-len(within) < largest/shareOfMany { // otherwise all are within their shares, as usually
		beyond = append(beyond, c.beyondShare(within, mostOfAll)...)
		slices.SortFunc(beyond, byAge)
	}
	for _, t := range slices.Backward(beyond) {
		keys = append(keys, t.Key)
	}
	return keys
}

// placed is a reverse tunnel, the number of older ones in its place, and how many must be left for it.
type placed struct {
	Live
	older, needs int
}

// beyondShare returns the reverse tunnels that are beyond the share of their tunnel id, of all in the order of age. It
// admits them again as Tunnel does, but the first one of each tunnel id before the second one of any. Within a tunnel
// id the first one of each edge at each worker is before the second one of any, and of edges that have equally many
// lanes are last. So the tunnel ids and edges with the most lose some, and what stays leaves as many as each of these
// needs. It sorts all.
func (c *Control) beyondShare(all []placed, most int) (beyond []Live) {
	inLane := func(p placed) int {
		if p.Lane {
			return 1
		}
		return 0
	}
	slices.SortStableFunc(all, func(a, b placed) int {
		return cmp.Or(cmp.Compare(inLane(a), inLane(b)), cmp.Compare(a.older, b.older))
	})
	ids, edges := map[string]int{}, map[model.EdgeRef]int{}
	for i := range all {
		t := &all[i]
		t.needs = c.needs(edges[t.Edge], ids[t.Edge.ID])
		edges[t.Edge]++
		ids[t.Edge.ID]++
	}
	slices.SortStableFunc(all, func(a, b placed) int { return cmp.Compare(a.needs, b.needs) })
	for i, t := range all {
		if most-i < t.needs { // and so for all after it
			beyond = append(beyond, t.Live)
		}
	}
	return beyond
}
