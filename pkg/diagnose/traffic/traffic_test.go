package traffic

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log"
	"net"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"k8s.io/client-go/rest"

	"github.com/fairlead/fairlead/internal/eventually"
	"github.com/fairlead/fairlead/pkg/diagnose/check"
)

// server stands in for an apiserver.
type server struct {
	*httptest.Server
	watching, requests atomic.Int64
	mu                 sync.Mutex
	conns              map[net.Conn]bool
}

func newServer(t *testing.T, change ...func(*http.Server)) *server {
	t.Helper()
	s := &server{conns: map[net.Conn]bool{}}
	s.Server = httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		s.requests.Add(1)
		if r.URL.Query().Get("watch") == "true" {
			w.(http.Flusher).Flush()
			s.watching.Add(1)
			<-r.Context().Done()
			s.watching.Add(-1)
			return
		}
		_, _ = w.Write(make([]byte, 4<<10))
	}))
	s.Config.ConnState = func(conn net.Conn, state http.ConnState) {
		s.mu.Lock()
		defer s.mu.Unlock()
		s.conns[conn] = true
		if state == http.StateClosed {
			delete(s.conns, conn)
		}
	}
	for _, c := range change {
		c(s.Config)
	}
	s.Config.ErrorLog = log.New(io.Discard, "", 0)
	s.StartTLS()
	t.Cleanup(s.Close)
	return s
}

// cut closes all connections, like a gateway that ends.
func (s *server) cut() {
	s.mu.Lock()
	defer s.mu.Unlock()
	for conn := range s.conns {
		_ = conn.Close()
	}
}

func (s *server) target(t *testing.T, dial Dial) *Target {
	t.Helper()
	target, err := New(&rest.Config{Host: s.URL, TLSClientConfig: rest.TLSClientConfig{Insecure: true}}, dial)
	if err != nil {
		t.Fatal(err)
	}
	return target
}

func TestWaysOfAServer(t *testing.T) {
	target := newServer(t).target(t, Machine(""))
	for id, result := range map[check.ID]check.Result{
		"r": target.TestRequest(t.Context(), "r", "mode sni"), TestConnections: target.TestConnections(t.Context(), 50),
		TestDownload: target.TestDownload(t.Context(), 1<<20, time.Minute),
		TestIdle:     target.TestIdle(t.Context(), 50*time.Millisecond),
	} {
		if result.ID != id || result.Status != check.OK || result.Detail == "" {
			t.Errorf("%s: %+v", id, result)
		}
	}
}

func TestFaultsOfAWay(t *testing.T) {
	cutsIdle := newServer(t, func(s *http.Server) { s.IdleTimeout = 20 * time.Millisecond }).target(t, Machine(""))
	if r := cutsIdle.TestIdle(t.Context(), 500*time.Millisecond); r.Status != check.Warning {
		t.Errorf("of a server that closes idle connections: %+v", r)
	}
	var count atomic.Int64
	limited := newServer(t).target(t, func(ctx context.Context, network, address string) (net.Conn, error) {
		if count.Add(1) > 10 {
			return nil, errors.New("too many")
		}
		return Machine("")(ctx, network, address)
	})
	r := limited.TestConnections(t.Context(), 20)
	if r.Status != check.Broken || !strings.HasPrefix(r.Detail, "10 of 20 connections at the same time fail: too many") {
		t.Errorf("of a limit of 10: %+v", r)
	}
	closed := newServer(t)
	target := closed.target(t, Machine(""))
	closed.Close()
	for _, r := range []check.Result{
		target.TestRequest(t.Context(), "r", "mode sni"), target.TestDownload(t.Context(), 1, time.Minute),
	} {
		if r.Status != check.Broken || !strings.Contains(r.Detail, "refused") || r.Cause == "" || r.Cure == "" {
			t.Errorf("of a closed port: %+v", r)
		}
	}
}

// refusedWhile dials as this machine does, and refuses connections while the server is down.
func refusedWhile(down *atomic.Bool) Dial {
	return func(ctx context.Context, network, address string) (net.Conn, error) {
		if down.Load() {
			return nil, &net.OpError{Op: "dial", Err: errors.New("refused")}
		}
		return Machine("")(ctx, network, address)
	}
}

// TestObserverCountsWhatBreaks checks that an observation finds nothing while nothing happens, and each kind of failure
// when a gateway ends.
func TestObserverCountsWhatBreaks(t *testing.T) {
	s := newServer(t)
	var down atomic.Bool
	var checks atomic.Int64
	o := &Observer{
		Target: s.target(t, refusedWhile(&down)), Interval: 20 * time.Millisecond, Check: func(context.Context) check.Report {
			checks.Add(1)
			return check.Report{
				First: check.HopRoute, Hops: []check.Result{{ID: check.HopRoute, Status: check.Broken, Cause: "it hangs"}},
			}
		},
	}
	ctx, stop := context.WithCancel(t.Context())
	defer stop()
	if err := o.Start(ctx); err != nil {
		t.Fatal(err)
	}
	ended := make(chan Record, 1)
	go func() { ended <- o.Run(ctx) }()
	now := func() Record {
		o.found.mu.Lock()
		defer o.found.mu.Unlock()
		r := o.found.record
		r.Failures = slices.Clone(r.Failures) // their hops are found later
		return r
	}
	wait := func(what string, met func() bool) {
		t.Helper()
		eventually.True(t, 20*time.Second, what, func() error {
			if !met() {
				return fmt.Errorf("%+v", now())
			}
			return nil
		})
	}
	wait("ten requests", func() bool { return now().Requests >= 10 })
	if r := now(); r.Failed() != 0 || checks.Load() != 0 {
		t.Errorf("while nothing happens: %+v", r)
	}
	down.Store(true)
	s.cut()
	wait("failures of each kind", func() bool {
		r := now()
		return r.FailedRequests > 1 && r.BrokenWatches == 1 && r.BrokenConnections == 1
	})
	down.Store(false)
	wait("another watch", func() bool { return s.watching.Load() == 1 })
	before := now().FailedRequests
	wait("more requests", func() bool { return now().Requests > before+20 })
	stop()
	r := <-ended
	if r.FailedRequests != before || r.OutageSeconds <= 0 || checks.Load() == 0 || r.Checks > maxChecks+1 {
		t.Errorf("at the end: %+v", r)
	}
	for _, f := range r.Failures {
		if f.Hop != check.HopRoute || f.Cause != "it hangs" || f.Error == "" {
			t.Errorf("a failure without its hop: %+v", f)
		}
	}
}

// TestObserverReportsWhatIsDown ends a server shortly before the end of the observation, or has it away for a while.
func TestObserverReportsWhatIsDown(t *testing.T) {
	for _, returns := range []bool{false, true} {
		s := newServer(t)
		var down atomic.Bool
		o := &Observer{Target: s.target(t, refusedWhile(&down)), Interval: 20 * time.Millisecond}
		ctx, stop := context.WithCancel(t.Context())
		defer stop()
		if err := o.Start(ctx); err != nil {
			t.Fatal(err)
		}
		ended := make(chan Record, 1)
		go func() { ended <- o.Run(ctx) }()
		wait := func(what string, met func(Record) bool) {
			t.Helper()
			eventually.True(t, 20*time.Second, what, func() error {
				o.found.mu.Lock()
				defer o.found.mu.Unlock()
				if r := o.found.record; !met(r) {
					return fmt.Errorf("%+v", r)
				}
				return nil
			})
		}
		down.Store(true)
		wait("a failed request", func(r Record) bool { return r.FailedRequests > 0 })
		if returns {
			down.Store(false)
			var before int
			wait("two requests", func(r Record) bool {
				if before == 0 {
					before = r.Requests
				}
				return r.Requests > before+2
			})
		}
		stop()
		if r := <-ended; r.Down == returns {
			t.Errorf("returns: %v: %+v", returns, r)
		}
	}
}

func TestObserverDoesNotStartOnABrokenWay(t *testing.T) {
	s := newServer(t)
	o := &Observer{Target: s.target(t, Machine("")), Interval: time.Second}
	s.Close()
	if err := o.Start(t.Context()); err == nil || !strings.Contains(err.Error(), "sending a request: dial tcp") {
		t.Errorf("got %v", err)
	}
}

func TestRecorderBoundsItsList(t *testing.T) {
	r := newRecorder()
	at := time.Unix(1_000_000, 0)
	for i := range 2 * maxFailures {
		r.failed(KindRequest, at.Add(time.Duration(i)*time.Second), errors.New("cut"))
	}
	r.succeeded(KindRequest, at, at.Add(5*time.Minute))
	r.checked(&check.Report{}, at.Add(6*time.Minute))
	got := r.finish(at.Add(time.Hour))
	if got.FailedRequests != 2*maxFailures || len(got.Failures) != maxFailures || got.OutageSeconds != 300 ||
		got.Failures[0].Seconds != 300 || !strings.Contains(got.Failures[0].Detail, "6m0s later") {
		t.Errorf("got %+v", got)
	}
}

// TestRecorderNamesTheHopOfFailuresThatFollow checks that a failure right after that of another kind has its hop, even
// if the fault was over before the next check. A hop with a warning was not broken.
func TestRecorderNamesTheHopOfFailuresThatFollow(t *testing.T) {
	r := newRecorder()
	at := time.Unix(1_000_000, 0)
	broken := check.Report{First: check.HopPort, Hops: []check.Result{{ID: check.HopPort, Status: check.Broken}}}
	stale := check.Report{First: check.HopTunnels, Hops: []check.Result{{ID: check.HopTunnels, Status: check.Warning}}}
	r.failed(KindWatch, at, errors.New("cut"))
	r.checked(&broken, at.Add(time.Second))
	r.failed(KindConnection, at.Add(2*time.Second), errors.New("cut"))
	r.checked(&stale, at.Add(7*time.Second))
	r.failed(KindWatch, at.Add(time.Hour), errors.New("cut"))
	r.checked(&stale, at.Add(time.Hour))
	failures := r.finish(at.Add(2 * time.Hour)).Failures
	var hops []check.ID
	for _, f := range failures {
		hops = append(hops, f.Hop)
	}
	if want := []check.ID{check.HopPort, check.HopPort, ""}; !slices.Equal(hops, want) {
		t.Errorf("got %q, want %q", hops, want)
	}
	if text := failures[len(failures)-1].Detail; !strings.Contains(text, "the hop tunnels has a warning") {
		t.Errorf("got %q", text)
	}
}

func TestParsePod(t *testing.T) {
	for text, withPort := range map[string]bool{
		"": false, "a": false, "a/b:1": false, "/b": false, "a/": false, "a/b": true, "a/b:0": true, "a/b:70000": true,
	} {
		if p, err := ParsePod(text, withPort); err == nil {
			t.Errorf("%q is %+v", text, p)
		}
	}
	if p, err := ParsePod("a/b:8080", true); err != nil || p != (Pod{"a", "b", 8080}) {
		t.Errorf("got %+v, %v", p, err)
	}
}
