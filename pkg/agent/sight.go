package agent

import (
	"context"
	"errors"
	"log/slog"
	"math/rand/v2"
	"slices"
	"sync"
	"time"

	"golang.org/x/sync/singleflight"

	"github.com/fairlead/fairlead/pkg/model"
	"github.com/fairlead/fairlead/pkg/probe"
	reportv1 "github.com/fairlead/fairlead/pkg/report/v1"
)

const (
	// lookHealthy and lookUnhealthy are how often an edge looks at its apiservers; each shortened by up to a quarter, so that
	// the edges of a cluster do not come together.
	lookHealthy   = 30 * time.Second
	lookUnhealthy = 4 * time.Second
	// lookApart is how old a look may be for those who ask for one, however many they are.
	lookApart = time.Second
)

// errNoSight says that there is no apiserver to look at.
var errNoSight = errors.New("its Envoy was given no apiserver to dial")

// sight looks at the apiservers that Envoy was given.
type sight struct {
	status *status
	log    *slog.Logger
	wake   chan struct{}

	looking singleflight.Group // one look at a time

	mu         sync.Mutex
	apiservers []model.Endpoint
	last       *seen
}

// seen is a look that is over.
type seen struct {
	probe.Result
	apiservers []model.Endpoint
	at         time.Time
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
	if !same {
		s.rouse()
	}
}

// rouse ends the pause of run.
func (s *sight) rouse() {
	select {
	case s.wake <- struct{}{}:
	default:
	}
}

// run looks until ctx ends.
func (s *sight) run(ctx context.Context) error {
	for healthy, known := false, false; ctx.Err() == nil; {
		switch result, err := s.now(ctx); {
		case ctx.Err() != nil:
			return nil
		case err != nil:
			healthy, known = false, false
		case !s.looksAt(result.apiservers):
			continue // there are others meanwhile
		default:
			if result.Healthy != healthy || !known {
				s.log.Info("looked at the apiserver", "address", result.Address, "healthy", result.Healthy, "message", result.Message)
			}
			healthy, known = result.Healthy, true
			s.status.saw(result.Result)
		}
		s.pause(ctx, healthy)
	}
	return nil
}

// now looks. Those who ask at the same time, or soon after, get the same look.
func (s *sight) now(ctx context.Context) (seen, error) {
	done := s.looking.DoChan("", func() (any, error) {
		s.mu.Lock()
		apiservers, last := s.apiservers, s.last
		s.mu.Unlock()
		switch {
		case len(apiservers) == 0:
			return seen{}, errNoSight
		case last != nil && time.Since(last.at) < lookApart && slices.Equal(last.apiservers, apiservers):
			return *last, nil
		}
		// For all who ask; a look is short.
		last = &seen{Result: probe.APIServers(context.WithoutCancel(ctx), apiservers), apiservers: apiservers, at: time.Now()}
		s.mu.Lock()
		defer s.mu.Unlock()
		s.last = last
		return *last, nil
	})
	select {
	case r := <-done:
		return r.Val.(seen), r.Err
	case <-ctx.Done():
		return seen{}, ctx.Err()
	}
}

// see looks for somebody who asks, and has run say what is new.
func (s *sight) see(ctx context.Context) (*reportv1.APIServer, error) {
	result, err := s.now(ctx)
	if err != nil {
		return nil, err
	}
	s.rouse()
	return apiServerOf(&result.Result), nil
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
