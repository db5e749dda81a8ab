package hub

import (
	"fmt"
	"log/slog"
	"slices"
	"testing"

	"github.com/fairlead/fairlead/pkg/report"
	reportv1 "github.com/fairlead/fairlead/pkg/report/v1"
)

// observer counts what is written, and how much of it while the lock of a hub is held.
type observer struct {
	hub             *Hub
	written, locked int
}

func (o *observer) note() {
	o.written++
	if !o.hub.mu.TryLock() {
		o.locked++
		return
	}
	o.hub.mu.Unlock()
}

func (o *observer) Write(p []byte) (int, error) { o.note(); return len(p), nil }

// TestNothingIsLoggedOrEmittedUnderTheLock: a log and a scrape may block, and every report would wait.
func TestNothingIsLoggedOrEmittedUnderTheLock(t *testing.T) {
	o := &observer{}
	o.hub = New(domain, newRules(), slog.New(slog.NewTextHandler(o, nil)))
	g, e := newSessions(t, o.hub)
	o.hub.finish(g)
	o.hub.finish(e)
	if o.written != 4 || o.locked > 0 {
		t.Errorf("%d of %d lines are written under the lock", o.locked, o.written)
	}
	*o = observer{hub: o.hub}
	newSessions(t, o.hub)
	o.hub.collect(func(string, float64, ...string) { o.note() })
	if o.written < 12 || o.locked > 0 {
		t.Errorf("%d of %d values are emitted under the lock", o.locked, o.written)
	}
}

// newSessions returns the sessions of a gateway and of an edge with a tunnel, which have reported.
func newSessions(t *testing.T, h *Hub) (g, e *session) {
	t.Helper()
	g = &session{subject: gatewayOf("gateway-0"), end: func(error) {}}
	e = &session{subject: edgeOf("edge-1", idA), end: func(error) {}}
	h.begin(g)
	h.begin(e)
	if err := h.gatewayReport(g, &reportv1.GatewayReport{
		Snapshot: true, Tunnels: []*reportv1.Tunnel{{Key: "a", Node: "edge-1", TunnelId: idA}},
	}); err != nil {
		t.Fatal(err)
	}
	if err := h.edgeReport(e, &reportv1.EdgeReport{Form: "Process"}); err != nil {
		t.Fatal(err)
	}
	return g, e
}

// TestWhatAWatcherIsSentIsACopy changes every item after a watcher has begun: its messages, which are made later, have
// the states of its begin, in the order of kinds, and the next ones have all changes.
func TestWhatAWatcherIsSentIsACopy(t *testing.T) {
	h := New(domain, newRules(), slog.New(slog.DiscardHandler))
	g, e := newSessions(t, h)
	boot := func(step string) {
		t.Helper()
		if _, err := h.Boot(idA, &reportv1.BootReport{
			BootId: "b", State: reportv1.BootState_BOOT_STATE_RUNNING, Step: step, Machine: &reportv1.Machine{Hostname: "m"},
		}); err != nil {
			t.Fatal(err)
		}
	}
	boot("first")
	h.SetProfiles(&reportv1.ProfileState{Target: "first"})
	w, first, err := h.addWatcher()
	if err != nil {
		t.Fatal(err)
	}
	if err := h.edgeReport(e, &reportv1.EdgeReport{Form: "Container"}); err != nil {
		t.Fatal(err)
	}
	if err := h.gatewayReport(g, &reportv1.GatewayReport{Closed: []string{"a"}, Hang: "admin"}); err != nil {
		t.Fatal(err)
	}
	h.finish(g)
	boot("second")
	h.SetProfiles(&reportv1.ProfileState{Target: "second"})
	want := []string{"edge-1 has 1", "edge-1 Process true", "gateway-0 true ", "m first", "first"}
	if got := described(first); !slices.Equal(got, want) {
		t.Errorf("first %q is sent, want %q", got, want)
	}
	want = []string{"edge-1 has 0", "edge-1 Container true", "gateway-0 false admin", "m second", "second"}
	if got := described(h.take(w)); !slices.Equal(got, want) {
		t.Errorf("then %q is sent, want %q", got, want)
	}
	if got := described(h.take(w)); len(got) > 0 {
		t.Errorf("%q is sent again", got)
	}
}

// described returns what the messages of states say.
func described(s states) (all []string) {
	for change := range s.messages() {
		switch {
		case change.GetTunnels() != nil:
			all = append(all, fmt.Sprintf("%s has %d", change.GetTunnels().GetNode(), change.GetTunnels().GetCount()))
		case change.GetEdge() != nil:
			is := change.GetEdge()
			all = append(all, fmt.Sprintf("%s %s %t", is.GetNode(), is.GetReport().GetForm(), is.GetConnected()))
		case change.GetGateway() != nil:
			is := change.GetGateway()
			all = append(all, fmt.Sprintf("%s %t %s", is.GetName(), is.GetConnected(), is.GetHang()))
		case change.GetBoot() != nil:
			all = append(all, change.GetBoot().GetHost()+" "+change.GetBoot().GetReport().GetStep())
		default:
			all = append(all, change.GetProfiles().GetTarget())
		}
	}
	return all
}

// BenchmarkBegin measures how long every report waits when a controller begins to watch one gateway with as many
// tunnels as it may have.
func BenchmarkBegin(b *testing.B) {
	h := New(domain, newRules(), slog.New(slog.DiscardHandler))
	s := &session{subject: gatewayOf("gateway-0"), end: func(error) {}}
	h.begin(s)
	if err := h.gatewayReport(s, snapshot(report.MaxTunnels, 1)); err != nil {
		b.Fatal(err)
	}
	b.ReportAllocs()
	for b.Loop() {
		w, _, err := h.addWatcher()
		if err != nil {
			b.Fatal(err)
		}
		h.take(w)
		h.removeWatcher(w)
	}
}
