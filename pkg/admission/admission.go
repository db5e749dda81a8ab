// Package admission decides which connections and reverse tunnels a gateway accepts. The input is the source address
// of a connection and, after TLS, the edge that its certificate names. The output is an admission, or the quota that
// rejects the connection. Control makes the decisions: it takes the time as an argument, starts nothing, and bounds
// its memory. Server answers Envoy's two filters with these decisions. The package does not know how live reverse
// tunnels are counted, nor how Envoy handles a rejection.
//
// Before authentication a connection takes a token of its source and one of the gateway's capacity. Half of the
// capacity is reserved for known sources, from which an edge has opened a reverse tunnel recently, or an apiserver a
// connection. A source without a
// certificate therefore cannot use up the capacity that edges need, whatever rate it dials at. After authentication
// the numbers and rates of reverse tunnels of an edge, and of all edges of a tunnel id, are bounded by how many the
// edges are configured to open. Those of all edges are bounded too, because Envoy counts no connection that has become
// a reverse tunnel: neither its listener nor its overload manager does. The more reverse tunnels a tunnel id has, the
// more must be left for another one, and what is beyond that share is closed. So a gateway that is full admits an edge
// of a tunnel id with fewer than the others have, whatever these do.
//
// Trade-offs. The share is one of a tunnel id, because a gateway does not know to whom tunnel ids belong: an owner of
// many has many shares. A source is an address, because nothing else is known before TLS: an attacker behind the same
// NAT as an edge shares the quota of that source. That quota grows with the number of edges behind the source, so that
// one edge never gets a large one.
package admission

import (
	"cmp"
	"maps"
	"math"
	"net/netip"
	"sync"
	"time"
)

// Kind is the purpose of a connection to the public port.
type Kind int

// Kinds of connections. Each has its own capacity.
const (
	Terminated Kind = iota // to this gateway, which terminates TLS
	Relayed                // relayed by Envoy to an xds-server or another gateway
	kinds
)

// Reason is the quota that rejects a connection or a reverse tunnel. The empty Reason admits it.
type Reason string

// Reasons for rejections.
const (
	Admitted     Reason = ""
	BySource     Reason = "source"         // connections of one source per second
	ByNetwork    Reason = "network"        // connections of one IPv6 /48 per second
	ByCapacity   Reason = "capacity"       // connections of all sources per second
	ByGateway    Reason = "gateway"        // reverse tunnels of all edges
	ByEdge       Reason = "edge"           // reverse tunnels of one edge, or other connections of one node
	ByEdgeRate   Reason = "edge_rate"      // reverse tunnels that one edge opens per second
	ByTunnelID   Reason = "tunnel_id"      // the same of all edges or nodes of one tunnel id
	ByTunnelRate Reason = "tunnel_id_rate" // reverse tunnels that all edges of one tunnel id open per second
	ByRequests   Reason = "requests"       // requests of one node, or of all nodes of a tunnel id, per second
)

// Reasons lists all reasons for rejections.
var Reasons = []Reason{
	BySource, ByNetwork, ByCapacity, ByGateway, ByEdge, ByEdgeRate, ByTunnelID, ByTunnelRate, ByRequests,
}

const (
	// DefaultRate is the rate until SetRate is called.
	DefaultRate = 1000
	// sourceRate and sourceBurst are the quota of an unknown source. A rejected connection costs a worker 0.4 ms, so a
	// source that sends a hundred times its quota costs less than half a worker. The burst admits the first edges of a
	// site; their source is known after the first reverse tunnel.
	sourceRate, sourceBurst = 10, 200
	// networkQuotas is how many of these quotas an IPv6 /48 has, because a single customer may own all of its /64s.
	networkQuotas = 4
	// maxSources bounds the sources with a bucket, and maxNetworks the networks. The least recently used one is
	// evicted.
	maxSources, maxNetworks = 1 << 16, 1 << 14
)

// Control makes the decisions. It is safe for concurrent use.
type Control struct {
	maxEdges, maxTunnels int // see NewControl

	mu       sync.Mutex
	rate     float64 // connections per second, of each kind
	sources  *lru[netip.Prefix, *source]
	networks *lru[netip.Prefix, *bucket]
	pools    [kinds]pool
	known    known
	tunnels  tunnelQuotas
	requests requestQuotas
	counts   Counts
}

// Counts are the numbers of decisions, by reason: for connections before TLS, and for reverse tunnels.
type Counts struct{ Connections, Tunnels map[Reason]uint64 }

// Counts returns a copy of the current counts.
func (c *Control) Counts() Counts {
	c.mu.Lock()
	defer c.mu.Unlock()
	return Counts{maps.Clone(c.counts.Connections), maps.Clone(c.counts.Tunnels)}
}

// source is a source address of connections.
type source struct {
	dials  bucket
	shares [kinds]bucket
	epochs [kinds]int64 // of the last connection: see pool
}

// NewControl returns a Control of a gateway at which one tunnel id may have reverse tunnels of at most maxEdges edges,
// and all edges together at most maxTunnels. If maxEdges is 0 or negative, DefaultMaxEdges is used; if maxTunnels is,
// their number is not limited.
func NewControl(maxEdges, maxTunnels int) *Control {
	return &Control{
		maxEdges: cmp.Or(max(0, maxEdges), DefaultMaxEdges), maxTunnels: cmp.Or(max(0, maxTunnels), math.MaxInt),
		rate: DefaultRate, sources: newLRU[netip.Prefix, *source](maxSources),
		networks: newLRU[netip.Prefix, *bucket](maxNetworks),
		known:    newKnown(), tunnels: newTunnelQuotas(), requests: newRequestQuotas(),
		counts: Counts{map[Reason]uint64{}, map[Reason]uint64{}},
	}
}

// SetRate sets how many connections of each kind are admitted per second. Values below 1 count as 1.
func (c *Control) SetRate(rate int) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.rate = float64(max(1, rate))
}

// Connection decides about a connection before TLS. Half of the capacity is reserved for known sources. They may also
// use the part of the other half that unknown sources leave.
func (c *Control) Connection(now time.Time, from netip.Addr, kind Kind) Reason {
	c.mu.Lock()
	defer c.mu.Unlock()
	reason := c.connection(now, from, kind)
	c.counts.Connections[reason]++
	return reason
}

func (c *Control) connection(now time.Time, from netip.Addr, kind Kind) Reason {
	key := Source(from)
	s := c.sources.get(key)
	if s == nil {
		s = &source{}
		c.sources.put(key, s)
	}
	class, rate, burst := unknownSource, float64(sourceRate), float64(sourceBurst)
	if weight := c.known.weight(now, key); weight > 0 {
		class, rate, burst = knownSource, rate+float64(weight), burst+2*float64(weight)
	}
	if !s.dials.has(now, rate, burst) {
		return BySource
	}
	var network *bucket
	if of, ok := network48(from); ok && class == unknownSource {
		if network = c.networks.get(of); network == nil {
			network = &bucket{}
			c.networks.put(of, network)
		}
		if !network.has(now, networkQuotas*sourceRate, networkQuotas*sourceBurst) {
			return ByNetwork
		}
	}
	if !c.pools[kind].take(now, c.rate, class, &s.shares[kind], &s.epochs[kind]) {
		return ByCapacity
	}
	s.dials.tokens--
	if network != nil {
		network.tokens--
	}
	return Admitted
}

// Source returns the prefix that counts as one source: an IPv4 address, or an IPv6 /64, because one machine may use
// all addresses of a /64.
func Source(a netip.Addr) netip.Prefix {
	a = a.Unmap().WithZone("")
	if a.Is4() {
		return netip.PrefixFrom(a, 32)
	}
	prefix, _ := a.Prefix(64) // an invalid address has the invalid prefix, which counts as a source too
	return prefix
}

// network48 returns the /48 of an IPv6 address, and false for any other address.
func network48(a netip.Addr) (netip.Prefix, bool) {
	a = a.Unmap().WithZone("")
	if !a.Is6() {
		return netip.Prefix{}, false
	}
	prefix, err := a.Prefix(48)
	return prefix, err == nil
}
