package admission

import (
	"container/list"
	"encoding/json"
	"fmt"
	"net/netip"
	"slices"
	"time"

	"github.com/fairlead/fairlead/pkg/model"
)

const (
	// recent is how long a source is known after its last reverse tunnel or connection of an apiserver: a site that was
	// offline for a night is still known.
	recent = 24 * time.Hour
	// maxKnown bounds the pairs of a source and an edge.
	maxKnown = 1 << 16
	// sourcesPerEdge bounds how many sources one edge makes known, so that an edge with many addresses displaces no
	// others.
	sourcesPerEdge = 8
)

// known are the sources from which edges opened reverse tunnels. Each edge counts at each of its sources with the
// number of connections that it may open per second.
type known struct {
	pairs   map[pairKey]*list.Element
	recent  *list.List // of *pair; the most recently seen is in front
	weights map[netip.Prefix]int
	edges   map[model.EdgeRef][]pairKey
	changed bool // since the last Save
}

type pairKey struct {
	source netip.Prefix
	edge   model.EdgeRef
}

type pair struct {
	pairKey
	seen   time.Time
	weight int
}

func newKnown() known {
	return known{
		pairs:   map[pairKey]*list.Element{},
		recent:  list.New(),
		weights: map[netip.Prefix]int{},
		edges:   map[model.EdgeRef][]pairKey{},
	}
}

// record records that an edge opened a reverse tunnel from a source.
func (k *known) record(now time.Time, source netip.Prefix, edge model.EdgeRef, weight int) {
	key := pairKey{source, edge}
	if e, ok := k.pairs[key]; ok {
		p := e.Value.(*pair)
		k.weights[source] += weight - p.weight
		p.seen, p.weight = now, weight
		k.recent.MoveToFront(e)
		return
	}
	if of := k.edges[edge]; len(of) >= sourcesPerEdge {
		k.remove(k.pairs[slices.MinFunc(of, func(a, b pairKey) int { return k.seen(a).Compare(k.seen(b)) })])
	}
	if len(k.pairs) >= maxKnown {
		k.remove(k.recent.Back())
	}
	k.pairs[key] = k.recent.PushFront(&pair{key, now, weight})
	k.weights[source] += weight
	k.edges[edge] = append(k.edges[edge], key)
	k.changed = true
}

func (k *known) seen(key pairKey) time.Time { return k.pairs[key].Value.(*pair).seen }

func (k *known) remove(e *list.Element) {
	p := k.recent.Remove(e).(*pair)
	delete(k.pairs, p.pairKey)
	if k.weights[p.source] -= p.weight; k.weights[p.source] <= 0 {
		delete(k.weights, p.source)
	}
	k.edges[p.edge] = slices.DeleteFunc(k.edges[p.edge], func(other pairKey) bool { return other == p.pairKey })
	if len(k.edges[p.edge]) == 0 {
		delete(k.edges, p.edge)
	}
	k.changed = true
}

// weight returns how many connections per second the edges of a source may open together, or 0 if the source is
// unknown.
func (k *known) weight(now time.Time, source netip.Prefix) int {
	for e := k.recent.Back(); e != nil && now.Sub(e.Value.(*pair).seen) > recent; e = k.recent.Back() {
		k.remove(e)
	}
	return k.weights[source]
}

// saved is the persisted form of a pair.
type saved struct {
	Source netip.Prefix `json:"source"`
	Node   string       `json:"node"`
	ID     string       `json:"id"`
	Seen   time.Time    `json:"seen"`
	Weight int          `json:"weight"`
}

// Known returns how many sources are known.
func (c *Control) Known() int {
	c.mu.Lock()
	defer c.mu.Unlock()
	return len(c.known.weights)
}

// Weight returns how many connections per second the edges of a source may open together, or 0 if the source is
// unknown.
func (c *Control) Weight(now time.Time, source netip.Prefix) int {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.known.weight(now, source)
}

// Note records that an edge has a live reverse tunnel from a source, or an apiserver a connection. tunnels is how many
// of them the node keeps to this gateway.
func (c *Control) Note(now time.Time, from netip.Addr, edge model.EdgeRef, tunnels int) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.known.record(now, Source(from), edge, maxTunnels(tunnels))
}

// Save returns the known sources for Restore. changed is false if no source was added or removed since the last call.
func (c *Control) Save() (data []byte, changed bool, err error) {
	c.mu.Lock()
	all := make([]saved, 0, len(c.known.pairs))
	for e := c.known.recent.Back(); e != nil; e = e.Prev() {
		p := e.Value.(*pair)
		all = append(
			all, saved{Source: p.source, Node: p.edge.Node, ID: p.edge.ID, Seen: p.seen.Truncate(time.Second), Weight: p.weight},
		)
	}
	changed, c.known.changed = c.known.changed, false
	c.mu.Unlock()
	if data, err = json.Marshal(all); err != nil {
		return nil, changed, fmt.Errorf("encoding known sources: %w", err)
	}
	return data, changed, nil
}

// Unsaved makes the next Save report a change, because the data of the last one is not on disk.
func (c *Control) Unsaved() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.known.changed = true
}

// Restore adds the sources that Save returned, except outdated ones.
func (c *Control) Restore(now time.Time, data []byte) error {
	var all []saved
	if err := json.Unmarshal(data, &all); err != nil {
		return fmt.Errorf("decoding known sources: %w", err)
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, s := range all { // the oldest first
		if age := now.Sub(s.Seen); s.Source.IsValid() && s.Weight > 0 && age < recent && age > -recent {
			c.known.record(s.Seen, s.Source, model.EdgeRef{Node: s.Node, ID: s.ID}, s.Weight)
		}
	}
	c.known.changed = false
	return nil
}
