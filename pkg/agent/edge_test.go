package agent

import (
	"errors"
	"fmt"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/fairlead/fairlead/internal/envoytest"
	"github.com/fairlead/fairlead/internal/freeport"
	"github.com/fairlead/fairlead/pkg/model"
)

// newPair returns a gateway and an edge, with an apiserver behind it.
func newPair(t *testing.T) (gateway, edge *place, a *apiserver) {
	t.Helper()
	c := newWorld(t)
	a = newAPIServer(c, edgeSubject.ID, "c1")
	return newGateway(c), newEdge(c), a
}

func TestAnEdgeCarriesRequestsAndReports(t *testing.T) {
	gateway, edge, a := newPair(t)
	gateway.serve()
	gateway.agent()
	edge.agent()
	edge.works(a)
	edge.ready()
	envoytest.Eventually(t, "the edge reports", func() error {
		r, err := edge.edges.last()
		switch {
		case err != nil:
			return err
		case r.GetForm() == "" || r.GetVersion() == "" || r.GetLastError() != "":
			return fmt.Errorf("got %v", r)
		case !r.GetApiServer().GetHealthy() || r.GetApiServer().GetAddress() != a.String() || len(
			r.GetApiServer().GetCertificateNames()) != 1:
			return fmt.Errorf("of the apiserver it says %v", r.GetApiServer())
		}
		return nil
	})
}

func TestAnEdgeStartsWithoutTheControlChannel(t *testing.T) {
	gateway, edge, a := newPair(t)
	stop := gateway.serve()
	gateway.agent()
	first := edge.agent()
	edge.works(a)
	pid := edge.ready()
	stop()
	first.end(t, syscall.SIGTERM) // as in a shutdown of the machine
	if now, err := edge.admin().PID(); err == nil {
		t.Fatalf("Envoy %d was left as %d", pid, now)
	}
	edge.agent()
	edge.works(a)
	edge.ready(pid)
	edge.logged("Envoy is served from the cache", 1)
	edge.state("the status says so", func(s state) error {
		if m := s.Memberships[0]; !m.Cached || m.Connected || !strings.Contains(m.LastError, "cached configuration") {
			return errors.New("it does not say that the configuration is that of before")
		}
		return nil
	})
	gateway.serve()
	edge.state("it is over", func(s state) error {
		if m := s.Memberships[0]; m.Cached || !m.Connected || m.LastError != "" {
			return errors.New("it is not over")
		}
		return nil
	})
}

func TestAnEdgeReconnectsAtOnceAfterItsLeafExpired(t *testing.T) {
	gateway, edge, a := newPair(t)
	gateway.life = 3 * time.Second
	gateway.serve()
	gateway.agent()
	first := edge.agent()
	edge.works(a)
	first.end(t, syscall.SIGTERM)
	_, asleep := edge.counts()
	envoytest.Eventually(t, "the gateway renews", func() error { // then the edge's leaf has expired
		if _, now := edge.counts(); now < asleep+3 {
			return errors.New("too seldom")
		}
		return nil
	})
	edge.set(func() { edge.life = time.Hour })
	gateway.set(func() { gateway.life = time.Hour }) // on a busy machine its short leaves would expire meanwhile
	tokens, _ := edge.counts()
	began := time.Now()
	edge.agent()
	edge.state("it is connected", func(s state) error {
		if !s.Memberships[0].Connected {
			return errors.New("it is not")
		}
		return nil
	})
	edge.works(a)
	if took := time.Since(began); took > 15*time.Second {
		t.Errorf("it took %v", took)
	}
	if now, _ := edge.counts(); now != tokens {
		t.Error("it enrolled anew")
	}
}

func TestNoStreamBreaksWhenLeavesAreRenewed(t *testing.T) {
	gateway, edge, a := newPair(t)
	gateway.life = 4 * time.Second
	gateway.serve()
	gateway.agent()
	edge.agent()
	edge.works(a)
	_, before := edge.counts()
	wait := edge.stream(a, 12*time.Second)
	done := make(chan error, 1)
	go func() { done <- wait() }()
	requests := 0
	for tick := time.NewTicker(20 * time.Millisecond); ; requests++ {
		select {
		case err := <-done:
			if err != nil {
				t.Error(err)
			}
			if _, now := edge.counts(); now-before < 6 {
				t.Errorf("only %d leaves were renewed", now-before)
			}
			t.Logf("%d requests", requests)
			return
		case <-tick.C:
			if err := edge.once(t.Context(), a); err != nil {
				t.Fatalf("request %d: %v", requests, err)
			}
		}
	}
}

func TestAnEdgeRejectsATargetThatItsOwnerDoesNotAllow(t *testing.T) {
	gateway, edge, a := newPair(t)
	edge.child.Edges[0].Targets = []model.Endpoint{a.Endpoint}
	gateway.serve()
	gateway.agent()
	edge.agent()
	edge.works(a)
	other := freeport.Endpoint(t)
	edge.mu.Lock()
	wc := edge.clusters[edgeSubject.ID]
	edge.mu.Unlock()
	wc.APIServer = other
	edge.publish(wc)
	edge.state("the status names it", func(s state) error {
		if message := s.Memberships[0].LastError; !strings.Contains(message, other.String()) ||
			!strings.Contains(message, "--allow-target") {
			return errors.New("it does not")
		}
		return nil
	})
	envoytest.Eventually(t, "it is reported", func() error {
		if r, err := edge.edges.last(); err != nil || !strings.Contains(r.GetLastError(), other.String()) {
			return fmt.Errorf("got %v, %w", r, err)
		}
		return nil
	})
	edge.works(a)
	wc.APIServer = a.Endpoint
	edge.publish(wc)
	edge.state("it is over", func(s state) error {
		if s.Memberships[0].LastError != "" {
			return errors.New("it is not")
		}
		return nil
	})
}

func TestALocalAPIServerComesFirst(t *testing.T) {
	gateway, edge, _ := newPair(t)
	local := newAPIServer(gateway.control, edgeSubject.ID, "c1")
	gateway.mu.Lock()
	wc := gateway.clusters[edgeSubject.ID]
	gateway.mu.Unlock()
	wc.APIServer = freeport.Endpoint(t) // nothing listens there
	gateway.publish(wc)
	edge.child.Edges[0].APIServers = []model.Endpoint{local.Endpoint}
	gateway.serve()
	gateway.agent()
	edge.agent()
	edge.works(local)
}

func TestACrashOfEnvoyIsReported(t *testing.T) {
	gateway, edge, a := newPair(t)
	gateway.serve()
	gateway.agent()
	edge.agent()
	edge.works(a)
	pid := edge.ready()
	if err := syscall.Kill(pid, syscall.SIGSEGV); err != nil {
		t.Fatal(err)
	}
	edge.ready(pid)
	edge.works(a)
	envoytest.Eventually(t, "it is reported", func() error {
		if r, err := edge.edges.last(); err != nil ||
			!strings.Contains(r.GetLastError(), "Envoy: ended by signal segmentation fault, 1 times") {
			return fmt.Errorf("got %v, %w", r, err)
		}
		return nil
	})
}
