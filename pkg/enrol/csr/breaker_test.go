package csr_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/fairlead/fairlead/pkg/enrol/csr"
	enrolserver "github.com/fairlead/fairlead/pkg/enrol/server"
	"github.com/fairlead/fairlead/pkg/model"
)

// controller answers requests while it runs. Otherwise each request waits for 15 s or until it starts, as in an
// apiserver.
type controller struct {
	mu      sync.Mutex
	running chan struct{} // closed while it runs
	made    int
	answer  error // error of a request; nil: a leaf
}

func (c *controller) Issue(ctx context.Context, _ enrolserver.IssueRequest) ([]byte, error) {
	c.mu.Lock()
	c.made++
	running := c.running
	c.mu.Unlock()
	ctx, cancel := context.WithTimeout(ctx, 15*time.Second)
	defer cancel()
	select {
	case <-running:
		return []byte("leaf"), c.answer
	case <-ctx.Done():
		return nil, ctx.Err()
	}
}

func (c *controller) count() int {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.made
}

// callers retry until stop is called, each attempt for at most patience.
func callers(t *testing.T, n int, patience time.Duration, issuer enrolserver.Issuer) (stop func()) {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	var all sync.WaitGroup
	for range n {
		all.Go(func() {
			for ctx.Err() == nil {
				mine, done := context.WithTimeout(ctx, patience)
				_, _ = issuer.Issue(mine, enrolserver.IssueRequest{})
				done()
				time.Sleep(4 * time.Second) // in the time of the test's bubble
			}
		})
	}
	return func() { cancel(); all.Wait() }
}

func TestRequestsDoNotAccumulateWithoutASigner(t *testing.T) {
	for name, patience := range map[string]time.Duration{
		"of callers that wait":         20 * time.Second,
		"of callers that hang up soon": 100 * time.Millisecond,
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				var log bytes.Buffer
				c := &controller{running: make(chan struct{})}
				b := csr.NewBreaker(c, slog.New(slog.NewTextHandler(&log, nil)))
				stop := callers(t, 300, patience, b)
				time.Sleep(time.Minute)
				first := c.count()
				time.Sleep(5 * time.Minute)
				if more := c.count() - first; first > 300 || more > 90 || more < 15 {
					t.Errorf("%d requests were made in the first minute and %d in the next 5", first, more)
				}
				stop()
				close(c.running)
				synctest.Wait()
				if _, err := b.Issue(t.Context(), enrolserver.IssueRequest{}); err != nil {
					t.Error(err)
				}
				if n := strings.Count(log.String(), "level=ERROR"); n != 1 || !strings.Contains(log.String(), "signed again") {
					t.Errorf("the log is\n%s", log.String())
				}
			})
		})
	}
}

func TestAllCallersAreServedAsSoonAsTheSignerAnswers(t *testing.T) {
	for name, answer := range map[string]error{"with a leaf": nil, "with a no": fmt.Errorf("%w: used up",
		enrolserver.ErrDenied)} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				c := &controller{running: make(chan struct{}), answer: answer}
				b := csr.NewBreaker(c, slog.New(slog.DiscardHandler))
				stop := callers(t, 200, 20*time.Second, b)
				time.Sleep(5 * time.Minute)
				close(c.running)
				synctest.Wait()
				var all sync.WaitGroup
				for range 300 {
					all.Go(func() {
						if _, err := b.Issue(t.Context(), enrolserver.IssueRequest{}); !errors.Is(err, answer) {
							t.Errorf("got %v", err)
						}
					})
				}
				all.Wait()
				stop()
			})
		})
	}
}

func TestSomeUnansweredRequestsDoNotAffectOthers(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := &controller{running: make(chan struct{})}
		b := csr.NewBreaker(c, slog.New(slog.DiscardHandler))
		close(c.running)
		for i := range 100 {
			c.answer = nil
			if i%2 == 0 {
				c.answer = errors.New("a conflict")
			}
			if _, err := b.Issue(t.Context(), enrolserver.IssueRequest{}); !errors.Is(err, c.answer) {
				t.Errorf("number %d: %v", i, err)
			}
		}
	})
}

// stuck never answers requests of some tunnels: their owners change the Tunnels all the time, so that every write of
// the signer conflicts. It answers all other requests at once.
type stuck struct {
	mu              sync.Mutex
	waiting, most   int // for stuck tunnels
	made, madeStuck int
}

func (s *stuck) Issue(ctx context.Context, r enrolserver.IssueRequest) ([]byte, error) {
	s.mu.Lock()
	s.made++
	if !strings.HasPrefix(r.Subject.ID, "hostile") {
		s.mu.Unlock()
		return []byte("leaf"), nil
	}
	s.waiting++
	s.madeStuck++
	s.most = max(s.most, s.waiting)
	s.mu.Unlock()
	ctx, cancel := context.WithTimeout(ctx, 15*time.Second)
	defer cancel()
	<-ctx.Done()
	s.mu.Lock()
	s.waiting--
	s.mu.Unlock()
	return nil, ctx.Err()
}

// TestATunnelWithoutAnswersHoldsNoOtherBack has hundreds of edges of one tunnel request leaves that the signer cannot
// issue, while an edge of another tunnel requests one every ten minutes.
func TestATunnelWithoutAnswersHoldsNoOtherBack(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := &stuck{}
		var log bytes.Buffer
		b := csr.NewBreaker(s, slog.New(slog.NewTextHandler(&log, nil)))
		ctx, cancel := context.WithCancel(t.Context())
		var all sync.WaitGroup
		for i := range 300 {
			all.Go(func() {
				for ctx.Err() == nil {
					_, _ = b.Issue(
						ctx,
						enrolserver.IssueRequest{
							Subject: model.Subject{Role: model.RoleEdge, Node: fmt.Sprint("edge-", i), ID: "hostile"},
						},
					)
					time.Sleep(time.Second)
				}
			})
		}
		for i := range 12 {
			time.Sleep(10 * time.Minute)
			begin := time.Now()
			_, err := b.Issue(
				ctx, enrolserver.IssueRequest{Subject: model.Subject{Role: model.RoleEdge, Node: "edge-v", ID: "victim"}},
			)
			if err != nil || time.Since(begin) > 0 {
				t.Errorf("number %d of the victim took %s: %v", i, time.Since(begin), err)
			}
		}
		cancel()
		all.Wait()
		time.Sleep(time.Minute) // for the requests that still wait
		if s.most > 16 {
			t.Errorf("%d requests of one tunnel waited at a time", s.most)
		}
		if s.madeStuck > 16+2*60*4+16 { // one every 15 s
			t.Errorf("%d requests were made for it in two hours", s.madeStuck)
		}
		if strings.Contains(log.String(), "no certificates are signed") {
			t.Errorf("the signer of all is blamed: %s", log.String())
		}
	})
}

func TestManyTunnelsWithoutAnswersMeanThatTheSignerIsUnavailable(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := &controller{running: make(chan struct{})}
		b := csr.NewBreaker(c, slog.New(slog.DiscardHandler))
		ctx, cancel := context.WithCancel(t.Context())
		var all sync.WaitGroup
		for i := range 300 {
			all.Go(func() {
				for ctx.Err() == nil {
					_, _ = b.Issue(
						ctx, enrolserver.IssueRequest{Subject: model.Subject{Role: model.RoleEdge, Node: "edge", ID: fmt.Sprint("t", i)}},
					)
					time.Sleep(4 * time.Second)
				}
			})
		}
		time.Sleep(time.Minute)
		first := c.count()
		time.Sleep(5 * time.Minute)
		if more := c.count() - first; first > 300 || more > 90 || more < 15 {
			t.Errorf("%d requests were made in the first minute and %d in the next 5", first, more)
		}
		close(c.running)
		synctest.Wait()
		time.Sleep(time.Minute)
		for i := range 300 {
			if _, err := b.Issue(t.Context(), enrolserver.IssueRequest{Subject: model.Subject{ID: fmt.Sprint("t",
				i)}}); err != nil {
				t.Errorf("tunnel %d: %v", i, err)
			}
		}
		cancel()
		all.Wait()
	})
}
