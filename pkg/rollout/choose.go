package rollout

import (
	"cmp"
	"crypto/sha256"
	"encoding/hex"
	"maps"
	"slices"
	"time"
)

// share determines the size of a first wave: one in share edges, and one in share gateways.
const share = 100

// choose returns the first wave: one edge of each of some tunnels and, if there are several gateways, some gateways.
// It chooses only nodes without trouble, so that a fault comes from the change. Tunnels with several edges come
// first: if a change breaks one edge, its workload cluster has another. The order is effectively random and depends
// on the time, so a retry chooses other nodes.
func choose(o Observation, now time.Time) []Member {
	ready := o.ready()
	edges := o.eligible(ready)
	byTunnel := map[string][]Node{}
	byLot := func(a, b Node) int { return cmp.Compare(draw(a, now), draw(b, now)) }
	for _, n := range slices.SortedFunc(maps.Keys(edges), byLot) {
		byTunnel[n.ID] = append(byTunnel[n.ID], n)
	}
	several := func(id string) int { return min(len(byTunnel[id]), 2) }
	firsts := make([]Node, 0, len(byTunnel))
	for _, nodes := range byTunnel {
		firsts = append(firsts, nodes[0])
	}
	slices.SortFunc(firsts, func(a, b Node) int {
		return cmp.Or(-cmp.Compare(several(a.ID), several(b.ID)), byLot(a, b))
	})
	var members []Member
	if names := slices.Sorted(maps.Keys(ready)); len(o.Gateways) > 1 && len(names) > 0 {
		slices.SortFunc(names, func(a, b string) int {
			return cmp.Compare(draw(Node{Name: a}, now), draw(Node{Name: b}, now))
		})
		for _, name := range names[:min(len(names), max(1, len(o.Gateways)/share))] {
			members = append(members, Member{Node: Node{Name: name}})
		}
	}
	for _, n := range firsts[:min(len(firsts), max(1, len(edges)/share))] {
		members = append(members, Member{Node: n, Tunnels: maps.Clone(edges[n].Tunnels)})
	}
	slices.SortFunc(members, func(a, b Member) int { return a.Compare(b.Node) })
	return members
}

// eligible returns the edges that are connected, report no trouble, and have tunnels to all ready gateways. If there
// are none, it returns edges with a tunnel to any ready gateway.
func (o Observation) eligible(ready map[string]bool) map[Node]Edge {
	all, some := map[Node]Edge{}, map[Node]Edge{}
	for n, e := range o.Edges {
		if !e.Connected || e.Trouble != "" || o.Nodes[n].Refusal != "" {
			continue
		}
		has := 0
		for name := range ready {
			if e.Tunnels[name] > 0 {
				has++
			}
		}
		if has > 0 {
			some[n] = e
		}
		if has > 0 && has == len(ready) {
			all[n] = e
		}
	}
	if len(all) == 0 {
		return some
	}
	return all
}

// draw returns a pseudo-random text of a node at a time, by which nodes are sorted.
func draw(n Node, now time.Time) string {
	sum := sha256.Sum256([]byte(now.UTC().Format(time.RFC3339Nano) + "\x00" + n.ID + "\x00" + n.Name))
	return hex.EncodeToString(sum[:8])
}
