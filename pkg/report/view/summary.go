package view

import (
	"maps"
	"slices"
	"time"
)

// summarize decides what is the same for all tunnels: Known, Gateways and Incomplete.
func (f *fleet) summarize(now time.Time) {
	var names, incomplete []string
	quiet := false
	for name, v := range f.merged {
		if v.state == reporting {
			names = append(names, name)
		} else {
			quiet = true
		}
		if v.source.incomplete {
			incomplete = append(incomplete, name)
		}
	}
	slices.Sort(names)
	slices.Sort(incomplete)
	if !f.started {
		f.started = f.enough(now)
	}
	known := f.started && !f.frozen() && !quiet
	if known != f.known || !slices.Equal(names, f.names) || !slices.Equal(incomplete, f.incomplete) {
		f.known, f.names, f.incomplete = known, names, incomplete
		f.ids[""] = true
	}
}

// age returns for how long the state of a listed server has not been followed, of all servers the longest time; 0: all
// are synced.
func (f *fleet) age(now time.Time) (longest time.Duration) {
	for _, s := range f.servers {
		since := s.behind
		if since.IsZero() {
			since = s.added
		}
		if s.listed && !s.synced {
			longest = max(longest, now.Sub(since))
		}
	}
	return longest
}

// enough returns whether a first conclusion is possible: all servers are synced, or one is and the others have had
// time.
func (f *fleet) enough(now time.Time) bool {
	if f.synced.IsZero() {
		return false
	}
	for _, s := range f.servers {
		if s.listed && !s.synced {
			return now.Sub(f.synced) >= f.times.Settle
		}
	}
	return true
}

// forget removes what is away for longer than Keep, at most once in a sixtieth of it.
func (f *fleet) forget(now time.Time) {
	if now.Sub(f.forgot) < f.times.Keep/60 {
		return
	}
	f.forgot = now
	f.boots.Sweep(now)
	for address, s := range f.servers {
		for _, id := range s.forget(now.Add(-f.times.Keep), func(p pair) bool { return f.elsewhere(s, p) }) {
			f.ids[id] = true
		}
		if !s.listed && !s.streaming && !s.held() && len(s.gateways)+len(s.edges) == 0 {
			delete(f.servers, address)
		}
	}
	for id, nodes := range f.nodes {
		maps.DeleteFunc(nodes, func(node string, _ bool) bool {
			return !f.reported(pair{node, id})
		})
		if len(nodes) == 0 {
			delete(f.nodes, id)
		}
	}
}
