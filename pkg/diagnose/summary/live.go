package summary

import (
	"slices"

	"github.com/fairlead/fairlead/pkg/diagnose/collect"
	"github.com/fairlead/fairlead/pkg/model"
	"github.com/fairlead/fairlead/pkg/observed"
)

// LiveOf returns the part of an observation that Build uses.
func LiveOf(f collect.Fleet) *Live {
	live := &Live{
		Tunnels: map[string][]collect.Tunnel{}, Gateways: f.Gateways, Ways: map[model.EdgeRef][]observed.Way{},
	}
	for i := range f.Edges {
		if e := &f.Edges[i]; len(e.Ways) > 0 {
			live.Ways[model.EdgeRef{Node: e.Node, ID: e.ID}] = e.Ways
		}
	}
	for _, t := range f.Tunnels {
		live.Tunnels[t.ID] = append(live.Tunnels[t.ID], t)
	}
	for _, err := range f.Silent() {
		live.Silent = append(live.Silent, err.Error())
	}
	return live
}

// routes returns where the gateways that answered lead clients of a Tunnel, which has tunnels to some gateways.
func (l *Live) routes(with []observed.Gateway) (all []Route) {
	has := func(name string) bool {
		return slices.ContainsFunc(with, func(g observed.Gateway) bool { return g.Name == name })
	}
	for i := range l.Gateways {
		g := &l.Gateways[i]
		r := Route{Gateway: g.Name, Zone: g.Zone}
		if !has(g.Name) {
			for _, w := range g.Ways {
				if has(w.To) {
					r.To = append(r.To, w)
				}
			}
		}
		if g.Connected && (has(g.Name) || len(r.To) > 0) {
			all = append(all, r)
		}
	}
	slices.SortFunc(all, func(a, b Route) int { return compareNames(a.Gateway, b.Gateway) })
	return all
}
