package view

import (
	"time"

	"github.com/fairlead/fairlead/pkg/report"
	reportv1 "github.com/fairlead/fairlead/pkg/report/v1"
)

// OnBoot has a function called with the id of each tunnel of which a machine has reported how it boots. It must be called before Run,
// and the function must not block.
func (v *View) OnBoot(booted func(id string)) { v.booted = booted }

// Boots returns what is known of machines of a tunnel that boot, ordered by host. It is false while nothing may be concluded from
// what is absent: no xds-server has told all it knows.
func (v *View) Boots(id string) (all []report.Boot, known bool) {
	v.mu.Lock()
	defer v.mu.Unlock()
	return v.fleet.boots.Of(id), v.fleet.started && !v.fleet.frozen()
}

// boot takes the latest report of a machine that a server has. A machine goes from one server to another, so the one that came last
// counts. What a server has that restarts is not lost: nothing is taken back. All servers together are bounded as each of them is:
// whoever has a token goes to all of them, and what they have pushed out would else be kept here.
func (f *fleet) boot(s *server, b *reportv1.MachineBoot, now time.Time) {
	id, host, received := b.GetTunnelId(), b.GetHost(), s.local(b.GetReceived())
	if received.After(now) {
		received = now // clocks differ a little, and the future would make all else old
	}
	if old := f.boots.Get(id, host); old != nil && old.Received.After(received) {
		return
	}
	if !f.boots.Put(id, host, b.GetReport(), received) {
		return
	}
	if f.bootedIDs == nil {
		f.bootedIDs = map[string]bool{}
	}
	f.bootedIDs[id] = true
}

// takeBooted returns the ids of the tunnels of which a machine has reported since the last call.
func (f *fleet) takeBooted() map[string]bool {
	ids := f.bootedIDs
	f.bootedIDs = nil
	return ids
}
