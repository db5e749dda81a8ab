package csr

import (
	"context"
	"errors"
	"log/slog"
	"sync"

	enrolserver "github.com/fairlead/fairlead/pkg/enrol/server"
)

const (
	// maxWaiting bounds requests that wait for an answer: a signer answers hundreds a second. maxWaitingTunnel is
	// what the edges of one tunnel may have of that.
	maxWaiting, maxWaitingTunnel = 128, 16
	// maxUnanswered is how many requests one after the other may stay without an answer before it is believed that
	// no signer answers: in total, where the edges of one tunnel count once, and of one tunnel.
	maxUnanswered = 8
	// maxProbes bounds requests that wait while no signer answers. Each waits for maxWait and stays behind for 24
	// h: 4 of them come to 23,000 objects, where 1,000 edges that try again would leave millions. The first answer
	// lets all others in, so none waits for longer on account of it. The edges of one tunnel have one of these.
	maxProbes = 4
)

// errUnanswered is for callers that are not let through to a signer that is not there.
var errUnanswered = errors.New("no signer answers at the moment")

// Breaker is an enrolserver.Issuer that bounds what another one leaves unanswered, so that requests do not pile up in the
// apiserver while no controller runs, and so that the edges of one tunnel do not take the places of others. A
// tunnel whose requests stay unanswered, for whatever its owner does to its Tunnel, is held back alone. It is safe
// for concurrent use.
type Breaker struct {
	issuer enrolserver.Issuer
	log    *slog.Logger
	all    *places

	mu      sync.Mutex
	tunnels map[string]*places // by id: those that have requests, or some without an answer
}

// places are what callers wait for.
type places struct {
	free, probe chan struct{} // each holds one for each request that waits

	users      int // that wait, or are about to
	unanswered int // since the last answer
}

func newPlaces(waiting, probes int) *places {
	return &places{free: make(chan struct{}, waiting), probe: make(chan struct{}, probes)}
}

// NewBreaker returns one in front of an issuer, which must have a deadline of its own.
func NewBreaker(issuer enrolserver.Issuer, log *slog.Logger) *Breaker {
	return &Breaker{issuer: issuer, log: log, all: newPlaces(maxWaiting, maxProbes), tunnels: map[string]*places{}}
}

// Issue implements enrolserver.Issuer. A request that was made is waited for until the issuer gives up, even if its
// caller has gone: else whoever does not wait could make any number of them.
func (b *Breaker) Issue(ctx context.Context, request enrolserver.IssueRequest) (chainPEM []byte, err error) {
	leave, err := b.join(ctx, request.Subject.ID)
	if err != nil {
		return nil, err
	}
	type answer struct {
		chain []byte
		err   error
	}
	answers := make(chan answer, 1)
	go func() {
		defer leave()
		chain, err := b.issuer.Issue(context.WithoutCancel(ctx), request)
		b.note(request.Subject.ID, err)
		answers <- answer{chain, err}
	}()
	select {
	case a := <-answers:
		return a.chain, a.err
	case <-ctx.Done():
		return nil, ctx.Err()
	}
}

// join waits for a place, first among those of the tunnel, if there is one, and returns what gives it back.
func (b *Breaker) join(ctx context.Context, id string) (leave func(), err error) {
	if id == "" {
		place, err := b.enter(ctx, b.all)
		return func() { <-place }, err
	}
	own := b.of(id)
	first, err := b.enter(ctx, own)
	if err != nil {
		b.done(id)
		return nil, err
	}
	second, err := b.enter(ctx, b.all)
	if err != nil {
		<-first
		b.done(id)
		return nil, err
	}
	return func() { <-second; <-first; b.done(id) }, nil
}

// of returns the places of a tunnel, which stay until done is called.
func (b *Breaker) of(id string) *places {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.tunnels[id] == nil {
		b.tunnels[id] = newPlaces(maxWaitingTunnel, 1)
	}
	b.tunnels[id].users++
	return b.tunnels[id]
}

// done forgets the places of a tunnel if there is nothing to remember.
func (b *Breaker) done(id string) {
	b.mu.Lock()
	defer b.mu.Unlock()
	own := b.tunnels[id]
	if own.users--; own.users == 0 && own.unanswered == 0 {
		delete(b.tunnels, id)
	}
}

// enter waits for a place and returns what it was taken from. While no signer answers it does not wait.
func (b *Breaker) enter(ctx context.Context, of *places) (chan struct{}, error) {
	if b.answers(of) {
		select {
		case of.free <- struct{}{}:
			if b.answers(of) {
				return of.free, nil
			}
			<-of.free
		case <-ctx.Done():
			return nil, ctx.Err()
		}
	}
	select {
	case of.probe <- struct{}{}:
		return of.probe, nil
	default:
		return nil, errUnanswered
	}
}

// answers says whether a signer is believed to answer.
func (b *Breaker) answers(of *places) bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	return of.unanswered < maxUnanswered
}

// note counts what came of a request. A denial is an answer.
func (b *Breaker) note(id string, err error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	own, before := b.tunnels[id], b.all.unanswered
	if err == nil || errors.Is(err, enrolserver.ErrDenied) {
		b.all.unanswered = 0
		if own != nil {
			own.unanswered = 0
		}
	} else {
		if own == nil || own.unanswered == 0 { // the edges of one tunnel say nothing about the signer of the others
			b.all.unanswered = min(before+1, maxUnanswered)
		}
		if own != nil {
			own.unanswered = min(own.unanswered+1, maxUnanswered)
		}
	}
	switch {
	case before < maxUnanswered && b.all.unanswered == maxUnanswered:
		b.log.Error("nobody signs certificates: does the controller run?", "error", err)
	case before == maxUnanswered && b.all.unanswered == 0:
		b.log.Info("certificates are signed again")
		for id, own := range b.tunnels {
			if own.unanswered = 0; own.users == 0 {
				delete(b.tunnels, id)
			}
		}
	}
}
