package agent

import (
	"context"
	"log/slog"
	"math/rand/v2"
	"slices"
	"sync"
	"time"

	"github.com/fairlead/fairlead/pkg/model"
	"github.com/fairlead/fairlead/pkg/probe"
)

const (
	// lookHealthy and lookUnhealthy are how often an edge looks at its apiservers; each shortened by up to a quarter, so that
	// the edges of a cluster do not come together.
	lookHealthy   = 30 * time.Second
	lookUnhealthy = 4 * time.Second
	// lookTime bounds one look at all of them.
	lookTime = 15 * time.Second
)

// sight looks at the apiservers that Envoy was given.
type sight struct {
	status *status
	log    *slog.Logger
	wake   chan struct{}

	mu         sync.Mutex
	apiservers []model.Endpoint
}

func newSight(s *status, log *slog.Logger) *sight {
	return &sight{status: s, log: log, wake: make(chan struct{}, 1)}
}

// look says what to look at from now on.
func (s *sight) look(apiservers []model.Endpoint) {
	s.mu.Lock()
	same := slices.Equal(s.apiservers, apiservers)
	s.apiservers = apiservers
	s.mu.Unlock()
	if same {
		return
	}
	select {
	case s.wake <- struct{}{}:
	default:
	}
}

// run looks until ctx ends.
func (s *sight) run(ctx context.Context) error {
	for healthy, known := false, false; ctx.Err() == nil; {
		s.mu.Lock()
		apiservers := s.apiservers
		s.mu.Unlock()
		if len(apiservers) == 0 {
			healthy, known = false, false
		} else {
			result := s.once(ctx, apiservers)
			if ctx.Err() != nil {
				return nil
			}
			if !s.looksAt(apiservers) {
				continue // there are others meanwhile
			}
			if result.Healthy != healthy || !known {
				s.log.Info("looked at the apiserver", "address", result.Address, "healthy", result.Healthy, "message", result.Message)
			}
			healthy, known = result.Healthy, true
			s.status.saw(result)
		}
		s.pause(ctx, healthy)
	}
	return nil
}

// looks says whether there is anything to look at: Envoy was given a tunnel.
func (s *sight) looks() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return len(s.apiservers) > 0
}

func (s *sight) looksAt(apiservers []model.Endpoint) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return slices.Equal(s.apiservers, apiservers)
}

func (s *sight) once(ctx context.Context, apiservers []model.Endpoint) probe.Result {
	ctx, cancel := context.WithTimeout(ctx, lookTime)
	defer cancel()
	return probe.APIServers(ctx, apiservers)
}

func (s *sight) pause(ctx context.Context, healthy bool) {
	wait := lookUnhealthy
	if healthy {
		wait = lookHealthy
	}
	timer := time.NewTimer(wait - time.Duration(rand.Int64N(int64(wait/4))))
	defer timer.Stop()
	select {
	case <-timer.C:
	case <-s.wake:
	case <-ctx.Done():
	}
}
