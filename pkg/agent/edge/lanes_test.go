package edge

import (
	"context"
	"log/slog"
	"path/filepath"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/anypb"
	"google.golang.org/protobuf/types/known/wrapperspb"
)

// TestLanesFollowTheClients: they open with the first stream, close after the last one, and are as an earlier agent
// left them.
func TestLanesFollowTheClients(t *testing.T) {
	dir := t.TempDir()
	in := func(name string) string { return filepath.Join(dir, name) }
	fresh := func(open bool) *Lanes {
		l := NewLanes(in, slog.New(slog.DiscardHandler))
		if l.open.Load() != open {
			t.Errorf("a new agent has lanes open: %t, want %t", l.open.Load(), open)
		}
		return l
	}
	l := fresh(false)
	now := time.Now()
	for i, step := range []struct {
		after   time.Duration
		streams int
		open    bool
	}{
		{0, 0, false},
		{time.Hour, 0, false},
		{time.Second, 1, true},
		{time.Hour, 5, true},
		{unusedAfter - time.Second, 0, true},
		{time.Second / 2, 1, true},
		{unusedAfter - time.Second, 0, true},
		{unusedAfter + 2*time.Second, 0, false},
		{time.Hour, 0, false},
		{time.Hour, 1, true},
	} {
		now = now.Add(step.after)
		was := l.open.Load()
		if changed := l.decide(step.streams, now); changed != (was != step.open) || l.open.Load() != step.open {
			t.Errorf("step %d: open is %t, want %t; changed is %t", i, l.open.Load(), step.open, changed)
		}
	}
	l = fresh(true)
	if l.decide(0, time.Now()); !l.open.Load() {
		t.Error("an agent that takes over closes lanes at once")
	}
	l.decide(0, time.Now().Add(2*unusedAfter))
	fresh(false)
}

// sent are the resources of an agent: lanes, or none.
type sent struct{ lanes atomic.Bool }

// Offers implements resources.
func (s *sent) Offers(of func(string) bool) bool {
	return s.lanes.Load() && of("gateway-0-lane-1_edge-a")
}

// ReapplyAll implements resources.
func (s *sent) ReapplyAll(func(string) bool) {}

// TestStreamsAreCountedForLanesOnly: an agent that is sent no lanes does not ask its Envoy.
func TestStreamsAreCountedForLanesOnly(t *testing.T) {
	dir := t.TempDir()
	synctest.Test(t, func(t *testing.T) {
		l := NewLanes(func(name string) string { return filepath.Join(dir, name) }, slog.New(slog.DiscardHandler))
		var asked atomic.Int64
		s := &sent{}
		count := func(context.Context) (int, error) { asked.Add(1); return 1, nil }
		ctx, cancel := context.WithCancel(t.Context())
		go l.Run(ctx, count, s)
		time.Sleep(10*lanesInterval + lanesInterval/2)
		if n := asked.Load(); n > 0 || l.open.Load() {
			t.Errorf("without lanes: it asked %d times, lanes are open: %t", n, l.open.Load())
		}
		s.lanes.Store(true)
		time.Sleep(10 * lanesInterval)
		if n := asked.Load(); n != 10 || !l.open.Load() {
			t.Errorf("with lanes: it asked %d times, want 10; lanes are open: %t", n, l.open.Load())
		}
		cancel()
	})
}

// TestOnlyLanesHaveAClosedForm: everything else keeps its usual form.
func TestOnlyLanesHaveAClosedForm(t *testing.T) {
	dir := t.TempDir()
	l := NewLanes(func(name string) string { return filepath.Join(dir, name) }, slog.New(slog.DiscardHandler))
	for name, of := range map[string]bool{
		"gateway-0_edge-a": false, "tunnel_edge-a_gateway-0": false, "apiserver_edge-a": false, "network_gateway-0": false,
		"gateway-12-lane-7_edge-a": true, "tunnel_edge-a_lane-7_gateway-12": true,
	} {
		l.open.Store(true)
		if form := l.Form(name); form != "" {
			t.Errorf("the form of %s is %q while lanes are open", name, form)
		}
		l.open.Store(false)
		if form := l.Form(name); (form == closedForm) != of || (form == "") == of {
			t.Errorf("the form of %s is %q while lanes are closed", name, form)
		}
	}
	other, err := anypb.New(wrapperspb.String("x"))
	if err != nil {
		t.Fatal(err)
	}
	if got := l.Apply("x", closedForm, other); !proto.Equal(got, other) {
		t.Errorf("another resource becomes %v", got)
	}
}
