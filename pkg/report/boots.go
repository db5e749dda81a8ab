package report

import (
	"cmp"
	"slices"
	"time"

	"google.golang.org/protobuf/proto"

	reportv1 "github.com/fairlead/fairlead/pkg/report/v1"
)

// BootBounds bound the boot reports of a hub, and of a view of all hubs. The holder of a token cannot displace reports
// of other workload clusters before it has filled its own share.
type BootBounds struct {
	Machines, Bytes       int // of one tunnel
	AllMachines, AllBytes int
	Keep                  time.Duration // after a report was received
}

// DefaultBootBounds are the bounds of hubs and views. A booting machine sends about 1 KiB, and one that failed up to 10
// KiB. 1,000 machines of one workload cluster may boot at the same time. A machine repeats the result of its boot for
// less than Keep.
var DefaultBootBounds = BootBounds{
	Machines: 1000, Bytes: 4 << 20, AllMachines: 20_000, AllBytes: 64 << 20, Keep: 2 * time.Hour,
}

// Boot is the latest boot report of one machine.
type Boot struct {
	Host     string    // identifies the machine within its workload cluster
	Received time.Time // by the clock of this process, or of view.View.SetClock
	// Report is shared and must not be changed.
	Report *reportv1.BootReport

	size int
}

// NewBoot returns a report that was received at a time. It measures the report, which Put does not.
func NewBoot(host string, r *reportv1.BootReport, received time.Time) *Boot {
	return &Boot{Host: host, Received: received, Report: r, size: proto.Size(r)}
}

// Boots are the latest reports of booting machines, by tunnel id and host, within bounds. It is not safe for concurrent
// use.
type Boots struct {
	bounds          BootBounds
	tunnels         map[string]*tunnelBoots
	machines, bytes int
	swept           time.Time
}

type tunnelBoots struct {
	machines map[string]*Boot
	bytes    int
}

// NewBoots returns an empty store.
func NewBoots(b BootBounds) *Boots { return &Boots{bounds: b, tunnels: map[string]*tunnelBoots{}} }

// Put stores a report, and returns whether it is news. A report that was overtaken is not. An equal one is: it shows
// that the machine is alive.
func (b *Boots) Put(id string, boot *Boot) bool {
	b.Sweep(boot.Received)
	t := b.tunnels[id]
	if t == nil {
		t = &tunnelBoots{machines: map[string]*Boot{}}
		b.tunnels[id] = t
	}
	if old := t.machines[boot.Host]; old != nil {
		if old.Report.GetBootId() == boot.Report.GetBootId() && old.Report.GetSequence() > boot.Report.GetSequence() {
			return false
		}
		b.remove(id, boot.Host)
		b.tunnels[id] = t
	}
	for len(t.machines) > 0 && (len(t.machines) >= b.bounds.Machines || t.bytes+boot.size > b.bounds.Bytes) {
		b.remove(id, t.oldest())
	}
	for b.machines > 0 && (b.machines >= b.bounds.AllMachines || b.bytes+boot.size > b.bounds.AllBytes) {
		b.removeOldest()
	}
	b.tunnels[id] = t // which may have become empty meanwhile
	t.machines[boot.Host] = boot
	t.bytes += boot.size
	b.machines++
	b.bytes += boot.size
	return true
}

// Get returns the report of one machine; nil: there is none.
func (b *Boots) Get(id, host string) *Boot {
	if t := b.tunnels[id]; t != nil {
		return t.machines[host]
	}
	return nil
}

// Of returns the reports of one tunnel, ordered by host.
func (b *Boots) Of(id string) (all []Boot) {
	if t := b.tunnels[id]; t != nil {
		for _, m := range t.machines {
			all = append(all, *m)
		}
	}
	slices.SortFunc(all, func(a, b Boot) int { return cmp.Compare(a.Host, b.Host) })
	return all
}

// Each calls visit for the report of each machine, in no order. visit must not change the store.
func (b *Boots) Each(visit func(id string, m *Boot)) {
	for id, t := range b.tunnels {
		for _, m := range t.machines {
			visit(id, m)
		}
	}
}

// Machines returns how many machines have a report.
func (b *Boots) Machines() int { return b.machines }

// Bytes returns the size of all reports.
func (b *Boots) Bytes() int { return b.bytes }

func (b *Boots) remove(id, host string) {
	t := b.tunnels[id]
	size := t.machines[host].size
	delete(t.machines, host)
	t.bytes -= size
	b.machines--
	b.bytes -= size
	if len(t.machines) == 0 {
		delete(b.tunnels, id)
	}
}

// oldest returns the machine whose report was received first.
func (t *tunnelBoots) oldest() (host string) {
	var at time.Time
	for name, m := range t.machines {
		if host == "" || m.Received.Before(at) {
			host, at = name, m.Received
		}
	}
	return host
}

// removeOldest removes reports of the tunnel that uses most space.
func (b *Boots) removeOldest() {
	most := ""
	for id, t := range b.tunnels {
		if most == "" || t.bytes > b.tunnels[most].bytes {
			most = id
		}
	}
	b.remove(most, b.tunnels[most].oldest())
}

// Sweep removes old reports, at most once in a sixtieth of Keep.
func (b *Boots) Sweep(now time.Time) {
	if now.Sub(b.swept) < b.bounds.Keep/60 {
		return
	}
	b.swept = now
	for id, t := range b.tunnels {
		for host, m := range t.machines {
			if now.Sub(m.Received) > b.bounds.Keep {
				b.remove(id, host)
			}
		}
	}
}
