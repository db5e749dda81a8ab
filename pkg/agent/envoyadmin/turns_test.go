package envoyadmin_test

import (
	"context"
	"errors"
	"net"
	"net/http"
	"path/filepath"
	"sync/atomic"
	"testing"
	"time"

	"github.com/fairlead/fairlead/pkg/agent/envoyadmin"
)

// slowAdmin serves an admin interface whose answers take a time, and counts the queries that it works on at once and in
// all. As in Envoy, a query goes on if its client has gone.
type slowAdmin struct {
	takes                time.Duration
	running, most, began atomic.Int64
	server               *http.Server
}

func (s *slowAdmin) ServeHTTP(w http.ResponseWriter, _ *http.Request) {
	s.began.Add(1)
	if n := s.running.Add(1); n > s.most.Load() {
		s.most.Store(n)
	}
	<-time.After(s.takes)
	s.running.Add(-1)
	_, _ = w.Write([]byte("# TYPE envoy_x gauge\nenvoy_x{} 3\n"))
}

func (s *slowAdmin) serve(t *testing.T) envoyadmin.Client {
	t.Helper()
	socket := filepath.Join(t.TempDir(), "admin.sock")
	l, err := net.Listen("unix", socket)
	if err != nil {
		t.Fatal(err)
	}
	s.server = &http.Server{Handler: s, ReadHeaderTimeout: time.Minute}
	go func() { _ = s.server.Serve(l) }()
	t.Cleanup(func() { _ = s.server.Close() })
	return envoyadmin.Client{Socket: socket, Turns: envoyadmin.NewTurns()}
}

// TestAnAbandonedQueryIsWaitedFor checks that queries that time out do not pile up at an Envoy that answers slowly.
func TestAnAbandonedQueryIsWaitedFor(t *testing.T) {
	slow := &slowAdmin{takes: 200 * time.Millisecond}
	admin := slow.serve(t)
	for range 10 {
		ctx, cancel := context.WithTimeout(t.Context(), 10*time.Millisecond)
		if _, err := admin.Sum(ctx, "x"); !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("a query that Envoy cannot answer in time returns %v", err)
		}
		cancel()
	}
	if n := slow.began.Load(); n > 1 { // a busy machine may not have begun the first
		t.Errorf("%d queries reached Envoy while it worked on the first", n)
	}
	n, err := admin.Sum(t.Context(), "x") // within the time of a query, after the rest of the first
	if err != nil || n != 3 {
		t.Errorf("after it Envoy is not asked again: %d, %v", n, err)
	}
	if slow.most.Load() != 1 || slow.began.Load() != 2 {
		t.Errorf("Envoy worked on %d queries at once, %d in all", slow.most.Load(), slow.began.Load())
	}
}

// TestAnEnvoyThatEndsIsNotWaitedFor checks that an Envoy is queried at once if it replaces one that hung.
func TestAnEnvoyThatEndsIsNotWaitedFor(t *testing.T) {
	hangs := &slowAdmin{takes: time.Hour}
	admin := hangs.serve(t)
	ended := make(chan error, 1)
	go func() {
		_, err := admin.Families(t.Context(), "x")
		ended <- err
	}()
	<-time.After(time.Second) // Envoy hangs for that long
	hangs.server.Close()
	if err := <-ended; err == nil {
		t.Fatal("an Envoy that ended has answered")
	}
	next := (&slowAdmin{}).serve(t)
	next.Turns = admin.Turns
	ctx, cancel := context.WithTimeout(t.Context(), 2*time.Second) // less than the rest after an answer would be
	defer cancel()
	if _, err := next.Families(ctx, "x"); err != nil {
		t.Error(err)
	}
}

// TestQueriesLeaveEnvoyTime checks that queries that are repeated at once get a small part of Envoy's main thread.
func TestQueriesLeaveEnvoyTime(t *testing.T) {
	slow := &slowAdmin{takes: 20 * time.Millisecond}
	admin := slow.serve(t)
	began := time.Now()
	const queries = 5
	for range queries {
		if _, err := admin.Families(t.Context(), "x"); err != nil {
			t.Fatal(err)
		}
	}
	if took := time.Since(began); took < (queries-1)*4*slow.takes {
		t.Errorf("%d queries of %s took %s, which is more than a fifth of Envoy's main thread", queries, slow.takes, took)
	}
}
