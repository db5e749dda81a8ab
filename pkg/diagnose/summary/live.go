package summary

import "github.com/fairlead/fairlead/pkg/diagnose/collect"

// FromInspect is what xds-servers have said, as Build takes it.
func FromInspect(f collect.Fleet) *Live {
	live := &Live{Tunnels: map[string][]collect.Tunnel{}}
	for _, t := range f.Tunnels {
		live.Tunnels[t.ID] = append(live.Tunnels[t.ID], t)
	}
	for _, s := range f.Servers {
		if s.Err != nil {
			live.Silent = append(live.Silent, s.Err.Error())
		}
	}
	return live
}
