package edge

import (
	"context"
	"errors"
	"log/slog"
	"math/rand/v2"
	"slices"
	"sync"
	"time"

	"golang.org/x/sync/singleflight"

	"github.com/fairlead/fairlead/pkg/agent/status"
	"github.com/fairlead/fairlead/pkg/model"
	"github.com/fairlead/fairlead/pkg/probe"
	reportv1 "github.com/fairlead/fairlead/pkg/report/v1"
)

const (
	// healthyInterval and unhealthyInterval are the intervals between probes of the apiservers. Each wait is shortened
	// by up to a quarter, so that the edges of a cluster do not probe at the same time.
	healthyInterval   = 30 * time.Second
	unhealthyInterval = 4 * time.Second
	// minInterval is the maximum age of a result that is returned instead of a new probe, however many callers request
	// one.
	minInterval = time.Second
)

// errNoAPIServer reports that there is no apiserver to probe.
var errNoAPIServer = errors.New("its Envoy has no apiserver to dial")

// prober probes the apiservers that Envoy has been given.
type prober struct {
	status   *status.Status
	log      *slog.Logger
	notified chan struct{}

	probing singleflight.Group // one probe at a time

	mu         sync.Mutex
	apiservers []model.Endpoint
	last       *result
}

// result is the result of a probe.
type result struct {
	probe.Result
	apiservers []model.Endpoint
	at         time.Time
}

func newProber(s *status.Status, log *slog.Logger) *prober {
	return &prober{status: s, log: log, notified: make(chan struct{}, 1)}
}

// setAPIServers replaces the apiservers that are probed.
func (s *prober) setAPIServers(apiservers []model.Endpoint) {
	s.mu.Lock()
	same := slices.Equal(s.apiservers, apiservers)
	s.apiservers = apiservers
	s.mu.Unlock()
	if !same {
		s.notify()
	}
}

// notify makes run probe immediately.
func (s *prober) notify() {
	select {
	case s.notified <- struct{}{}:
	default:
	}
}

// run probes periodically until ctx ends.
func (s *prober) run(ctx context.Context) error {
	for healthy, known := false, false; ctx.Err() == nil; {
		switch result, err := s.probe(ctx); {
		case ctx.Err() != nil:
			return nil
		case err != nil:
			healthy, known = false, false
		case !s.probes(result.apiservers):
			continue // the apiservers have changed
		default:
			if result.Healthy != healthy || !known {
				s.log.Info("apiserver probed", "address", result.Address, "healthy", result.Healthy, "message", result.Message)
			}
			healthy, known = result.Healthy, true
			s.status.SetAPIServer(result.Result)
		}
		s.pause(ctx, healthy)
	}
	return nil
}

// probe probes once. Concurrent callers, and callers within minInterval, share the result.
func (s *prober) probe(ctx context.Context) (result, error) {
	done := s.probing.DoChan("", func() (any, error) {
		s.mu.Lock()
		apiservers, last := s.apiservers, s.last
		s.mu.Unlock()
		switch {
		case len(apiservers) == 0:
			return result{}, errNoAPIServer
		case last != nil && time.Since(last.at) < minInterval && slices.Equal(last.apiservers, apiservers):
			return *last, nil
		}
		// Several callers may wait for it, so it does not end with the context of one of them. A probe is short.
		last = &result{
			Result:     probe.APIServers(context.WithoutCancel(ctx), apiservers),
			apiservers: apiservers,
			at:         time.Now(),
		}
		s.mu.Lock()
		defer s.mu.Unlock()
		s.last = last
		return *last, nil
	})
	select {
	case r := <-done:
		return r.Val.(result), r.Err
	case <-ctx.Done():
		return result{}, ctx.Err()
	}
}

// probeNow probes for a caller, and has run record a new result.
func (s *prober) probeNow(ctx context.Context) (*reportv1.APIServer, error) {
	result, err := s.probe(ctx)
	if err != nil {
		return nil, err
	}
	s.notify()
	return status.APIServer(&result.Result), nil
}

// hasAPIServers reports whether there are apiservers to probe: Envoy has been given a tunnel.
func (s *prober) hasAPIServers() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return len(s.apiservers) > 0
}

func (s *prober) probes(apiservers []model.Endpoint) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return slices.Equal(s.apiservers, apiservers)
}

func (s *prober) pause(ctx context.Context, healthy bool) {
	wait := unhealthyInterval
	if healthy {
		wait = healthyInterval
	}
	timer := time.NewTimer(wait - time.Duration(rand.Int64N(int64(wait/4))))
	defer timer.Stop()
	select {
	case <-timer.C:
	case <-s.notified:
	case <-ctx.Done():
	}
}
