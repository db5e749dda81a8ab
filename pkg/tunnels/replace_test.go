package tunnels

import (
	"fmt"
	"net"
	"sync"
	"testing"
	"time"

	"github.com/fairlead/fairlead/internal/eventually"
	"github.com/fairlead/fairlead/pkg/model"
)

// replaceable is a bed whose Envoy can be replaced: that closes the gateway's ends of all its connections.
type replaceable struct {
	*bed
	echo *echo

	mu    sync.Mutex
	ends  []net.Conn
	times []time.Time // of the replacements
	stuck bool        // a replacement closes nothing
	none  bool        // there is no Envoy to replace
}

func newReplaceable(t *testing.T) *replaceable {
	t.Helper()
	r := &replaceable{bed: newBed(t, t.TempDir()), echo: newEcho(t, "tcp", "127.0.0.1:0")}
	r.config.Replace = r.replace
	return r
}

func (r *replaceable) replace() bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.none {
		return false
	}
	r.times = append(r.times, time.Now())
	if !r.stuck {
		for _, conn := range r.ends {
			_ = conn.Close()
		}
	}
	return true
}

func (r *replaceable) set(change func()) {
	r.mu.Lock()
	defer r.mu.Unlock()
	change()
}

// replacements returns the times of all replacements.
func (r *replaceable) replacements() []time.Time {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.times
}

// tunnel opens a tunnel of an edge, and waits until the table has it.
func (r *replaceable) tunnel(t *testing.T, node, id string) wire {
	t.Helper()
	w := r.echo.dial(t, r.echo.Addr().String())
	r.set(func() { r.ends = append(r.ends, w.server) })
	r.write(t, w.event(eventSetup, node, id))
	eventually.True(t, patience, "it is in the table", func() error {
		if !r.Has(w.remote, w.local) {
			return fmt.Errorf("it has %v", r.nodes())
		}
		return nil
	})
	return w
}

// hasStats waits until check accepts the statistics.
func (r *replaceable) hasStats(t *testing.T, what string, check func(Stats) bool) {
	t.Helper()
	eventually.True(t, patience, what, func() error {
		if s := r.Stats(); !check(s) {
			return fmt.Errorf("got %+v", s)
		}
		return nil
	})
}

// TestDenialsThatFollowEachOtherReplaceEnvoyOnce measures the time until a denied tunnel is closed, too.
func TestDenialsThatFollowEachOtherReplaceEnvoyOnce(t *testing.T) {
	r := newReplaceable(t)
	r.run(t)
	first, second, third := r.tunnel(t, "edge-1", idA), r.tunnel(t, "edge-2", idA), r.tunnel(t, "edge-3", idB)
	began := time.Now()
	denied := model.Denied{Edges: []model.EdgeRef{{Node: "edge-1", ID: idA}}}
	r.Deny(denied)
	time.Sleep(replaceAfter / 4)
	if err := first.answers(); err != nil {
		t.Fatalf("a single connection was closed: %v", err)
	}
	denied.Edges = append(denied.Edges, model.EdgeRef{Node: "edge-2", ID: idA})
	r.Deny(denied)
	time.Sleep(replaceAfter / 4)
	denied.IDs = append(denied.IDs, idB)
	r.Deny(denied)
	isCut(t, first, second, third)
	if took := time.Since(began); took > 5*time.Second {
		t.Errorf("they were closed after %s", took)
	}
	r.hasStats(t, "all are counted", func(s Stats) bool { return s.Cut == 3 && s.Replaced == 1 && s.CutFails == 0 })
	if got := r.log.Count("denied tunnel closed"); got != 3 {
		t.Errorf("%d are in the log", got)
	}
	time.Sleep(replaceEvery)
	if n := len(r.replacements()); n != 1 {
		t.Errorf("Envoy was replaced %d times", n)
	}
	// A later denial replaces it again, and within the bound.
	fourth := r.tunnel(t, "edge-4", idA)
	began = time.Now()
	denied.Edges = append(denied.Edges, model.EdgeRef{Node: "edge-4", ID: idA})
	r.Deny(denied)
	isCut(t, fourth)
	if took := time.Since(began); took > 5*time.Second {
		t.Errorf("a later one was closed after %s", took)
	}
	if n := len(r.replacements()); n != 2 {
		t.Errorf("Envoy was replaced %d times", n)
	}
}

func TestDenialsWithoutAnOpenTunnelReplaceNothing(t *testing.T) {
	r := newReplaceable(t)
	r.run(t)
	other, gone := r.tunnel(t, "edge-1", idB), r.tunnel(t, "edge-2", idA)
	r.Deny(model.Denied{Edges: []model.EdgeRef{{Node: "edge-9", ID: idA}}, IDs: []string{idC}})
	time.Sleep(replaceAfter + replaceAfter/2)
	// One denial is lifted in time, and one edge ends its tunnel itself.
	r.Deny(model.Denied{Edges: []model.EdgeRef{{Node: "edge-1", ID: idB}, {Node: "edge-2", ID: idA}}})
	time.Sleep(replaceAfter / 4)
	_ = gone.Close()
	_ = gone.server.Close()
	r.Deny(model.Denied{Edges: []model.EdgeRef{{Node: "edge-2", ID: idA}}})
	time.Sleep(2 * replaceAfter)
	if n := len(r.replacements()); n != 0 {
		t.Errorf("Envoy was replaced %d times", n)
	}
	if err := other.answers(); err != nil {
		t.Errorf("the other tunnel is closed: %v", err)
	}
	if s := r.Stats(); s.Cut != 0 || s.CutFails != 0 {
		t.Errorf("got %+v", s)
	}
}

func TestAReplacementThatClosesNothingIsReportedAndRepeated(t *testing.T) {
	r := newReplaceable(t)
	r.none = true
	r.run(t)
	w := r.tunnel(t, "edge-1", idA)
	r.Deny(model.Denied{IDs: []string{idA}})
	r.hasStats(t, "a replacement without an Envoy fails", func(s Stats) bool { return s.CutFails > 0 })
	r.set(func() { r.none, r.stuck = false, true })
	r.hasStats(t, "it is repeated", func(s Stats) bool { return s.Replaced >= 2 })
	if s := r.Stats(); s.Cut != 0 {
		t.Errorf("an open tunnel counts as closed: %+v", s)
	}
	if err := w.answers(); err != nil {
		t.Fatal(err)
	}
	for _, reason := range []error{errNotReplaced, errKept} {
		eventually.True(t, patience, "the log has the reason", func() error { // it follows the replacement
			if r.log.Count(reason.Error()) == 0 {
				return reason
			}
			return nil
		})
	}
	r.set(func() { r.stuck = false })
	isCut(t, w)
	r.hasStats(t, "it counts as closed", func(s Stats) bool { return s.Cut == 1 })
	times := r.replacements()
	for i := range times[1:] {
		if between := times[i+1].Sub(times[i]); between < replaceEvery-10*time.Millisecond {
			t.Errorf("replacement %d comes after %s", i+1, between)
		}
	}
}

// TestConnectionsWithoutAnOwnerReplaceEnvoyRarely: an outsider must not be able to have Envoy replaced all the time.
func TestConnectionsWithoutAnOwnerReplaceEnvoyRarely(t *testing.T) {
	r := newReplaceable(t)
	r.accountEvery = 150 * time.Millisecond
	r.config.Public = r.echo.Addr().(*net.TCPAddr).AddrPort()
	r.config.Writes = writesOf(good)
	if err := r.Fresh(); err != nil {
		t.Fatal(err)
	}
	if err := r.open(t.Context()); err != nil {
		t.Fatal(err)
	}
	r.run(t)
	r.completes(t)
	tunnel := r.tunnel(t, "edge-1", idA)
	unknown := r.echo.dial(t, r.echo.Addr().String())
	r.set(func() { r.ends = append(r.ends, unknown.server) })
	isClosed(t, unknown)
	isClosed(t, tunnel)
	r.hasStats(t, "it is counted", func(s Stats) bool { return s.Closed == 1 && s.Replaced == 1 && s.Cut == 0 })
	again := r.echo.dial(t, r.echo.Addr().String())
	r.isIncomplete(t, "no recorded owner")
	time.Sleep(replaceEvery + time.Second)
	if err := again.answers(); err != nil {
		t.Errorf("the next one replaced Envoy, too: %v", err)
	}
	r.isIncomplete(t, "no recorded owner")
	if n := len(r.replacements()); n != 1 {
		t.Errorf("Envoy was replaced %d times", n)
	}
}
