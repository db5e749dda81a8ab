// Package admission decides which connections and tunnels a gateway accepts. In go the source address of a connection and,
// after TLS, the edge that its certificate names; out comes an admission, or the quota that refuses it. Control holds the
// decisions: it takes the time as an argument, starts nothing, and bounds all that it remembers. Server answers Envoy's two
// filters with them. The package does not know where the numbers of live tunnels come from, nor what Envoy does with a refusal.
//
// Before authentication a connection takes a token of its source and one of the gateway's capacity. Half of the capacity is
// reserved for known sources, from which an edge has opened a tunnel recently. So a source without a certificate cannot use up
// what edges need, whatever rate it dials at. After authentication the numbers and rates of tunnels of an edge, and of all
// edges of a tunnel id, are bounded by what edges were told to open.
//
// Trade-offs. A source is an address, because nothing else is known before TLS: an attacker behind the same NAT as an edge
// shares the quota of that source. That quota grows with the number of edges behind it, so that one edge never earns a large one.
package admission

import (
	"cmp"
	"maps"
	"net/netip"
	"sync"
	"time"
)

// Kind is what a connection to the public port is for.
type Kind int

// Kinds of connections. Each has a capacity of its own.
const (
	Tunnel  Kind = iota // to this gateway, which does TLS with it
	Relayed             // to an xds-server or another gateway, to which Envoy passes it on
	kinds
)

// Reason is the quota that refuses a connection or a tunnel. The empty Reason admits it.
type Reason string

// Reasons of refusals.
const (
	Admitted     Reason = ""
	BySource     Reason = "source"         // connections of one source in a second
	ByNetwork    Reason = "network"        // the same of an IPv6 /48
	ByCapacity   Reason = "capacity"       // connections of all sources in a second
	ByEdge       Reason = "edge"           // tunnels of one edge
	ByEdgeRate   Reason = "edge_rate"      // tunnels that one edge opens in a second
	ByTunnelID   Reason = "tunnel_id"      // tunnels of all edges of one tunnel id
	ByTunnelRate Reason = "tunnel_id_rate" // tunnels that all of them open in a second
)

// Reasons lists all reasons of refusals.
var Reasons = []Reason{BySource, ByNetwork, ByCapacity, ByEdge, ByEdgeRate, ByTunnelID, ByTunnelRate}

const (
	// DefaultRate is used until SetRate is called.
	DefaultRate = 1000
	// sourceRate and sourceBurst are the quota of an unknown source. A refused connection costs a worker 0.4 ms, so a source
	// that sends a hundred times its quota costs less than half a worker. The burst lets the first edges of a site in; with the
	// first tunnel their source is known.
	sourceRate, sourceBurst = 10, 200
	// networkQuotas is how many such quotas an IPv6 /48 has: a single customer may own all of its /64s.
	networkQuotas = 4
	// maxSources bounds the sources with a bucket, and maxNetworks the networks. The least recently used goes first.
	maxSources, maxNetworks = 1 << 16, 1 << 14
)

// Control makes the decisions. It is safe for concurrent use.
type Control struct {
	mu       sync.Mutex
	rate     float64 // connections in a second, of each kind
	maxEdges int     // see NewControl
	sources  *lru[netip.Prefix, *source]
	networks *lru[netip.Prefix, *bucket]
	pools    [kinds]pool
	known    known
	tunnels  tunnelQuotas
	counts   Counts
}

// Counts are the decisions so far, by reason: those about connections before TLS, and those about tunnels.
type Counts struct{ Connections, Tunnels map[Reason]uint64 }

// Counts returns a copy.
func (c *Control) Counts() Counts {
	c.mu.Lock()
	defer c.mu.Unlock()
	return Counts{maps.Clone(c.counts.Connections), maps.Clone(c.counts.Tunnels)}
}

// source is an address that dials.
type source struct {
	dials  bucket
	shares [kinds]bucket
	epochs [kinds]int64 // of the last dial: see pool
}

// NewControl returns a Control of a gateway at which no tunnel id may have tunnels of more than maxEdges edges; 0 stands for
// DefaultMaxEdges.
func NewControl(maxEdges int) *Control {
	return &Control{
		rate: DefaultRate, maxEdges: cmp.Or(max(0, maxEdges), DefaultMaxEdges), sources: newLRU[netip.Prefix, *source](maxSources), networks: newLRU[netip.Prefix, *bucket](maxNetworks),
		known: newKnown(), tunnels: newTunnelQuotas(), counts: Counts{map[Reason]uint64{}, map[Reason]uint64{}},
	}
}

// SetRate sets how many connections of each kind are admitted in a second.
func (c *Control) SetRate(rate int) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.rate = float64(max(1, rate))
}

// Connection decides about a connection before TLS. Half of the capacity is for known sources alone; they use the other half
// too, as far as unknown sources leave it.
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

// Source is the prefix that is one source: an IPv4 address, or an IPv6 /64, because one machine may use all addresses of a /64.
func Source(a netip.Addr) netip.Prefix {
	a = a.Unmap().WithZone("")
	if a.Is4() {
		return netip.PrefixFrom(a, 32)
	}
	prefix, _ := a.Prefix(64) // of an invalid address: the invalid prefix, which is a source too
	return prefix
}

// network48 is the /48 of an IPv6 address.
func network48(a netip.Addr) (netip.Prefix, bool) {
	a = a.Unmap().WithZone("")
	if !a.Is6() {
		return netip.Prefix{}, false
	}
	prefix, err := a.Prefix(48)
	return prefix, err == nil
}
