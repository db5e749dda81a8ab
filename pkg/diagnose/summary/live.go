package summary

import "github.com/fairlead/fairlead/pkg/diagnose/collect"

// LiveOf returns the part of an observation that Build uses.
func LiveOf(f collect.Fleet) *Live {
	live := &Live{Tunnels: map[string][]collect.Tunnel{}}
	for _, t := range f.Tunnels {
		live.Tunnels[t.ID] = append(live.Tunnels[t.ID], t)
	}
	for _, err := range f.Silent() {
		live.Silent = append(live.Silent, err.Error())
	}
	return live
}
