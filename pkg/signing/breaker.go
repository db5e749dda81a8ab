package signing

import (
	"context"
	"errors"
	"log/slog"
	"sync"

	"github.com/fairlead/fairlead/pkg/enrol"
)

const (
	// maxWaiting bounds requests that wait for an answer: a signer answers hundreds a second.
	maxWaiting = 128
	// maxUnanswered is how many requests one after the other may stay without an answer before it is believed that nobody
	// is there to answer.
	maxUnanswered = 8
	// maxProbes bounds requests that wait while nobody answers. Each waits for maxWait and stays behind for 24 h: 4 of them
	// come to 23,000 objects, where 1,000 edges that try again would leave millions. The first answer lets all others in, so
	// nobody waits for longer on account of it.
	maxProbes = 4
)

// errUnanswered is for callers that are not let through to a signer that is not there.
var errUnanswered = errors.New("nobody signs at the moment")

// Breaker is an enrol.Issuer that bounds what another one leaves unanswered, so that requests do not pile up in the apiserver
// while no controller runs. It is safe for concurrent use.
type Breaker struct {
	issuer        enrol.Issuer
	log           *slog.Logger
	places, probe chan struct{}

	mu         sync.Mutex
	unanswered int // since the last answer
}

// NewBreaker returns one in front of an issuer, which must have a deadline of its own.
func NewBreaker(issuer enrol.Issuer, log *slog.Logger) *Breaker {
	return &Breaker{issuer: issuer, log: log, places: make(chan struct{}, maxWaiting), probe: make(chan struct{}, maxProbes)}
}

// Issue implements enrol.Issuer. A request that was made is waited for until the issuer gives up, even if its caller has gone:
// else whoever does not wait could make any number of them.
func (b *Breaker) Issue(ctx context.Context, request enrol.IssueRequest) (chainPEM []byte, err error) {
	place, err := b.enter(ctx)
	if err != nil {
		return nil, err
	}
	type answer struct {
		chain []byte
		err   error
	}
	answers := make(chan answer, 1)
	go func() {
		defer func() { <-place }()
		chain, err := b.issuer.Issue(context.WithoutCancel(ctx), request)
		b.note(err)
		answers <- answer{chain, err}
	}()
	select {
	case a := <-answers:
		return a.chain, a.err
	case <-ctx.Done():
		return nil, ctx.Err()
	}
}

// enter waits for a place and returns what it was taken from. While nobody answers it does not wait.
func (b *Breaker) enter(ctx context.Context) (chan struct{}, error) {
	if b.answers() {
		select {
		case b.places <- struct{}{}:
			if b.answers() {
				return b.places, nil
			}
			<-b.places
		case <-ctx.Done():
			return nil, ctx.Err()
		}
	}
	select {
	case b.probe <- struct{}{}:
		return b.probe, nil
	default:
		return nil, errUnanswered
	}
}

// answers says whether somebody is believed to answer.
func (b *Breaker) answers() bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.unanswered < maxUnanswered
}

// note counts what came of a request. A denial is an answer.
func (b *Breaker) note(err error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	before := b.unanswered
	if err == nil || errors.Is(err, enrol.ErrDenied) {
		b.unanswered = 0
	} else if b.unanswered < maxUnanswered {
		b.unanswered++
	}
	switch {
	case before < maxUnanswered && b.unanswered == maxUnanswered:
		b.log.Error("nobody signs certificates: does the controller run?", "error", err)
	case before == maxUnanswered && b.unanswered == 0:
		b.log.Info("certificates are signed again")
	}
}
