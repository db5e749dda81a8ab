package view

import (
	"time"

	"github.com/fairlead/fairlead/pkg/report"
	reportv1 "github.com/fairlead/fairlead/pkg/report/v1"
)

// OnBoot sets the function that is called with the id of each tunnel with a new boot report. It must be called before
// Run, and the function must not block.
func (v *View) OnBoot(booted func(id string)) { v.booted = booted }

// Boots returns the boot reports of a tunnel's machines, ordered by host. known is false while nothing may be concluded
// from an absent report: no xds-server is synced.
func (v *View) Boots(id string) (all []report.Boot, known bool) {
	v.mu.Lock()
	defer v.mu.Unlock()
	all = v.fleet.boots.Of(id)
	for i := range all {
		all[i].Received = v.outward(all[i].Received)
	}
	return all, v.fleet.started && !v.fleet.frozen()
}

// boot applies the latest report of a machine from a server. A machine moves between servers, so the newest report
// counts. The restart of a server loses none: no report is withdrawn. All servers together have the bounds of a single
// one: one token can be used at all of them, and otherwise reports that they have dropped would be kept here.
func (f *fleet) boot(s *server, b *reportv1.MachineBoot, now time.Time) {
	id, host, received := b.GetTunnelId(), b.GetHost(), s.local(b.GetReceived())
	if received.After(now) {
		received = now // clocks differ a little, and a time in the future would make all others old
	}
	if old := f.boots.Get(id, host); old != nil && old.Received.After(received) {
		return
	}
	if !f.boots.Put(id, report.NewBoot(host, b.GetReport(), received)) {
		return
	}
	if f.bootedIDs == nil {
		f.bootedIDs = map[string]bool{}
	}
	f.bootedIDs[id] = true
}

// takeBooted returns the ids of the tunnels with a new boot report since the last call.
func (f *fleet) takeBooted() map[string]bool {
	ids := f.bootedIDs
	f.bootedIDs = nil
	return ids
}
