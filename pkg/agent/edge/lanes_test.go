package edge

import (
	"context"
	"log/slog"
	"os"
	"path/filepath"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/anypb"
	"google.golang.org/protobuf/types/known/wrapperspb"

	"github.com/fairlead/fairlead/pkg/model"
)

// TestLanesFollowTheClients: they open with the first stream, close after the last one, and are as an earlier agent
// left them.
func TestLanesFollowTheClients(t *testing.T) {
	dir := t.TempDir()
	in := func(name string) string { return filepath.Join(dir, name) }
	fresh := func(open int64) *Lanes {
		l := NewLanes(in, slog.New(slog.DiscardHandler))
		if l.open.Load() != open {
			t.Errorf("a new agent has %d lanes open, want %d", l.open.Load(), open)
		}
		return l
	}
	l := fresh(0)
	now := time.Now()
	for i, step := range []struct {
		after   time.Duration
		streams int
		open    int64
	}{
		{0, 0, 0},
		{time.Hour, 0, 0},
		{time.Second, 1, 1},
		{time.Hour, 2, 1},
		{time.Second, 3, 2},
		{time.Second, 62, 5},
		{time.Second, 1000, 8},
		{time.Hour, 1, 8},
		{unusedAfter - time.Second, 0, 8},
		{time.Second / 2, 1, 8},
		{unusedAfter - time.Second, 0, 8},
		{unusedAfter + 2*time.Second, 0, 0},
		{time.Hour, 0, 0},
		{time.Hour, 6, 2},
	} {
		now = now.Add(step.after)
		was := l.open.Load()
		if changed := l.decide(step.streams, now); changed != (was != step.open) || l.open.Load() != step.open {
			t.Errorf("step %d: open are %d, want %d; changed is %t", i, l.open.Load(), step.open, changed)
		}
	}
	l = fresh(2)
	if l.decide(0, time.Now()); l.open.Load() != 2 {
		t.Error("an agent that takes over closes lanes at once")
	}
	l.decide(0, time.Now().Add(2*unusedAfter))
	fresh(0)
	if err := os.WriteFile(in(lanesFile), []byte("1000000"), 0o600); err != nil {
		t.Fatal(err)
	}
	fresh(model.MaxLanes)
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
		if n := asked.Load(); n > 0 || l.open.Load() > 0 {
			t.Errorf("without lanes: it asked %d times, open are %d", n, l.open.Load())
		}
		s.lanes.Store(true)
		time.Sleep(10 * lanesInterval)
		if n := asked.Load(); n != 10 || l.open.Load() != 1 {
			t.Errorf("with lanes: it asked %d times, want 10; open are %d", n, l.open.Load())
		}
		cancel()
	})
}

// TestOnlyLanesHaveAClosedForm: everything else keeps its usual form.
func TestOnlyLanesHaveAClosedForm(t *testing.T) {
	dir := t.TempDir()
	l := NewLanes(func(name string) string { return filepath.Join(dir, name) }, slog.New(slog.DiscardHandler))
	for name, lane := range map[string]int64{
		"gateway-0_edge-a": 0, "tunnel_edge-a_gateway-0": 0, "apiserver_edge-a": 0, "network_gateway-0": 0,
		"gateway-12-lane-7_edge-a": 7, "tunnel_edge-a_lane-2_gateway-12": 2,
	} {
		for open := range int64(model.MaxLanes + 1) {
			l.open.Store(open)
			if form := l.Form(name); (form == closedForm) != (open < lane) || (form == "") == (open < lane) {
				t.Errorf("the form of %s is %q while %d lanes are open", name, form, open)
			}
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
