package csr

import (
	"context"
	"errors"
	"log/slog"
	"sync"

	enrolserver "github.com/fairlead/fairlead/pkg/enrol/server"
)

const (
	// maxWaiting bounds the requests that wait for an answer: a signer answers hundreds per second. maxWaitingTunnel
	// bounds the requests of one tunnel.
	maxWaiting, maxWaitingTunnel = 128, 16
	// maxUnanswered is how many consecutive requests may remain unanswered until the signer counts as unavailable: in
	// total, where the edges of one tunnel count once, and for one tunnel.
	maxUnanswered = 8
	// maxProbes bounds the requests that wait while the signer is unavailable. Each waits for maxWait, and its object
	// exists for 24 h: 4 at a time create 23,000 objects, while the retries of 1,000 edges would create millions. The
	// first answer admits all other requests, so this delays none of them. One tunnel has one probe.
	maxProbes = 4
)

// errUnanswered is the error for callers that are rejected because the signer is unavailable.
var errUnanswered = errors.New("the controller signs no certificates at the moment")

// Breaker is an enrolserver.Issuer that bounds the unanswered requests of another one, so that requests do not
// accumulate in the apiserver while no controller runs, and so that the edges of one tunnel do not use the slots of
// others. If the requests of one tunnel remain unanswered, for example because its owner changes its Tunnel all the
// time, only that tunnel is held back. It is safe for concurrent use.
type Breaker struct {
	issuer enrolserver.Issuer
	log    *slog.Logger
	all    *slots

	mu      sync.Mutex
	tunnels map[string]*slots // by id: tunnels with requests, or with unanswered ones
}

// slots bound concurrent callers, of all tunnels or of one.
type slots struct {
	free, probe chan struct{} // each holds one item for each waiting request

	users      int // callers that wait, or are about to
	unanswered int // consecutive requests without an answer
}

func newSlots(waiting, probes int) *slots {
	return &slots{free: make(chan struct{}, waiting), probe: make(chan struct{}, probes)}
}

// NewBreaker returns a Breaker in front of an issuer. The issuer must have its own deadline.
func NewBreaker(issuer enrolserver.Issuer, log *slog.Logger) *Breaker {
	return &Breaker{issuer: issuer, log: log, all: newSlots(maxWaiting, maxProbes), tunnels: map[string]*slots{}}
}

// Issue implements enrolserver.Issuer. A request keeps its slot until the issuer returns, even if its caller has gone:
// otherwise a caller that does not wait could create any number of requests.
func (b *Breaker) Issue(ctx context.Context, request enrolserver.IssueRequest) (chainPEM []byte, err error) {
	release, err := b.acquire(ctx, request.Subject.ID)
	if err != nil {
		return nil, err
	}
	type answer struct {
		chain []byte
		err   error
	}
	results := make(chan answer, 1)
	go func() {
		defer release()
		chain, err := b.issuer.Issue(context.WithoutCancel(ctx), request)
		b.record(request.Subject.ID, err)
		results <- answer{chain, err}
	}()
	select {
	case a := <-results:
		return a.chain, a.err
	case <-ctx.Done():
		return nil, ctx.Err()
	}
}

// acquire waits for a slot, first of the tunnel if there is one, and returns a function that releases it.
func (b *Breaker) acquire(ctx context.Context, id string) (release func(), err error) {
	if id == "" {
		slot, err := b.enter(ctx, b.all)
		return func() { <-slot }, err
	}
	own := b.ofTunnel(id)
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

// ofTunnel returns the slots of a tunnel, which exist until done is called.
func (b *Breaker) ofTunnel(id string) *slots {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.tunnels[id] == nil {
		b.tunnels[id] = newSlots(maxWaitingTunnel, 1)
	}
	b.tunnels[id].users++
	return b.tunnels[id]
}

// done removes the slots of a tunnel that has neither users nor unanswered requests.
func (b *Breaker) done(id string) {
	b.mu.Lock()
	defer b.mu.Unlock()
	own := b.tunnels[id]
	if own.users--; own.users == 0 && own.unanswered == 0 {
		delete(b.tunnels, id)
	}
}

// enter waits for a slot and returns the channel that holds it. While the signer is unavailable it does not wait.
func (b *Breaker) enter(ctx context.Context, of *slots) (chan struct{}, error) {
	if b.available(of) {
		select {
		case of.free <- struct{}{}:
			if b.available(of) {
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

// available reports whether the signer is expected to answer.
func (b *Breaker) available(of *slots) bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	return of.unanswered < maxUnanswered
}

// record records the result of a request. A denial counts as an answer.
func (b *Breaker) record(id string, err error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	own, before := b.tunnels[id], b.all.unanswered
	if err == nil || errors.Is(err, enrolserver.ErrDenied) {
		b.all.unanswered = 0
		if own != nil {
			own.unanswered = 0
		}
	} else {
		// unanswered requests of one tunnel do not show that the signer is unavailable
		if own == nil || own.unanswered == 0 {
			b.all.unanswered = min(before+1, maxUnanswered)
		}
		if own != nil {
			own.unanswered = min(own.unanswered+1, maxUnanswered)
		}
	}
	switch {
	case before < maxUnanswered && b.all.unanswered == maxUnanswered:
		b.log.Error("certificates are not signed: check that the controller runs", "error", err)
	case before == maxUnanswered && b.all.unanswered == 0:
		b.log.Info("certificates are signed again")
		for id, own := range b.tunnels {
			if own.unanswered = 0; own.users == 0 {
				delete(b.tunnels, id)
			}
		}
	}
}
