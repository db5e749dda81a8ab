package certs

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"time"

	"github.com/fairlead/fairlead/internal/retry"
)

// ErrRefused is wrapped by an error of Rotation.Renew that says no, and will go on doing so until somebody does something.
var ErrRefused = errors.New("refused")

const (
	// jitter is the part of a leaf's life over which renewals that would fall together are spread.
	jitter = 0.05
	// maxNap is how long the loop sleeps at most: timers know nothing of a clock that is set, or of a machine that slept.
	maxNap = time.Minute
	// minWait is kept between two renewals, whatever ends an issuer gives: a CA that is about to end cuts its leaves.
	minWait = time.Second
	// checkEvery is how long it takes until a look at what is good shows that the identity no longer is.
	checkEvery = time.Second
)

// Waits between attempts: urgent ones while there is no valid leaf and nothing works without it, calm ones while there
// is, slow ones after a refusal, which only a person can end.
var (
	urgent = retry.Backoff{Min: 200 * time.Millisecond, Max: 5 * time.Second}
	calm   = retry.Backoff{Min: time.Second, Max: time.Minute}
	slow   = retry.Backoff{Min: 10 * time.Second, Max: time.Minute}
)

// RenewAt is when a leaf should be renewed: at 2/3 of its life, so that a leaf of 24 h then has 8 h of retries left.
func RenewAt(notBefore, notAfter time.Time) time.Time {
	return notBefore.Add(notAfter.Sub(notBefore) * 2 / 3)
}

// Rotation keeps the identity in a Store valid: it gets the first one, and each next one in time.
type Rotation struct {
	Store *Store
	// Renew gets a new identity and the trust bundle to go with it. It should end with ctx and have a deadline of its own. An
	// error that has a method RetryAfter() time.Duration says how long to wait at least.
	Renew func(ctx context.Context) (Identity, []byte, error)
	// Check returns why the identity in the store is of no use although its time is not over, such as a CA that is trusted no
	// more; nil: it is good. It is asked all the time, and renewed at once after an error. It may be nil.
	Check func(Identity) error
	// Changed is called for each identity that the store gives, and once at the start if it gives one, valid or not. After
	// an error it is called again. It should not block, and may be nil.
	Changed func() error
	// Written is called with what came of each attempt to write a new identity down: that is tried until it works. It should
	// not block, and may be nil.
	Written func(error)
	Now     func() time.Time // nil: time.Now
	Log     *slog.Logger

	chores [2]*chore // to write the identity down and to call Changed
	checks checks
}

// checks are what came of Rotation.Check.
type checks struct {
	failures int // since the identity was good
	next     time.Time
	reasons  retry.Reasons
}

// Run renews until ctx ends, and returns nil then. No failure ends it: each is logged once for each reason, and tried
// again. An identity that can't be written down is used all the same. But before one is asked for the store must be
// writable: else every start would use up a token anew.
func (r *Rotation) Run(ctx context.Context) error {
	if r.Now == nil {
		r.Now = time.Now
	}
	write := &chore{do: r.write, failed: "the new certificate is in use, but not written down", log: r.Log}
	changed := &chore{do: r.changed, failed: "the certificate is not in use, trying again", log: r.Log}
	r.chores = [2]*chore{write, changed}
	if _, err := r.Store.Identity(); err == nil {
		changed.set()
	}
	for due := r.firstDue(); r.waitUntil(ctx, due); due = r.nextDue() {
		if !r.renew(ctx) {
			break
		}
		write.set()
		changed.set()
	}
	return nil
}

// firstDue is when what was in the store at the start is due: at once, if nothing was.
func (r *Rotation) firstDue() time.Time {
	current, err := r.Store.Identity()
	if err != nil {
		return time.Time{}
	}
	return spread(current.NotBefore(), current.NotAfter())
}

// nextDue counts the life of a leaf from when it was got: issuers let it begin earlier, for clocks that are late, by
// more than the whole life of a very short one.
func (r *Rotation) nextDue() time.Time {
	now, due := r.Now(), time.Time{}
	if current, err := r.Store.Identity(); err == nil {
		due = spread(now, current.NotAfter())
	}
	if earliest := now.Add(minWait); due.Before(earliest) {
		return earliest
	}
	return due
}

func spread(begin, end time.Time) time.Time {
	return RenewAt(begin, end).Add(time.Duration(rand.Float64() * jitter * float64(end.Sub(begin))))
}

// waitUntil returns false when ctx has ended.
func (r *Rotation) waitUntil(ctx context.Context, due time.Time) bool {
	for {
		wait, nap := due.Sub(r.Now()), maxNap
		if r.Check != nil {
			nap = checkEvery
		}
		if r.sleep(ctx, min(wait, nap)) != nil {
			return false
		}
		if wait <= 0 || r.bad() {
			return true
		}
	}
}

// bad says whether the identity has to be renewed before its time. Where new ones are not good either, that is tried slower
// and slower.
func (r *Rotation) bad() bool {
	if r.Check == nil {
		return false
	}
	current, err := r.Store.Identity()
	if err != nil {
		return false // it is about to be renewed anyway
	}
	if err = r.Check(current); err == nil {
		r.checks = checks{}
		return false
	}
	if r.checks.reasons.New(err) {
		r.Log.Warn("the certificate is of no use any more, renewing it", "error", err)
	}
	if time.Now().Before(r.checks.next) { // not r.Now, which may be set back
		return false
	}
	r.checks.next = time.Now().Add(calm.Wait(r.checks.failures))
	r.checks.failures++
	return true
}

// renew tries until it has a new identity, or returns false when ctx ends.
func (r *Rotation) renew(ctx context.Context) bool {
	var reasons retry.Reasons
	for attempt := 0; ctx.Err() == nil; attempt++ {
		err := r.renewOnce(ctx)
		if err == nil {
			return true
		}
		if ctx.Err() == nil && reasons.New(err) {
			r.Log.Warn("no certificate yet, trying again", "error", err)
		}
		_ = r.sleep(ctx, max(r.backoff(err).Wait(attempt), retryAfter(err)))
	}
	return false
}

func (r *Rotation) renewOnce(ctx context.Context) error {
	// A first identity uses up a credential, a renewal nothing: that one goes on in memory while the disk is full.
	if _, err := r.Store.Identity(); err != nil {
		if err := r.Store.Probe(); err != nil {
			return err
		}
	}
	identity, bundle, err := r.Renew(ctx)
	if err != nil {
		return err
	}
	if !identity.NotAfter().After(r.Now()) {
		return fmt.Errorf("the new certificate ended at %s already: is the clock right?", identity.NotAfter().Format(time.RFC3339))
	}
	if err := r.Store.Use(identity, bundle); err != nil {
		return err
	}
	r.Log.Info("new certificate", "node", identity.Leaf().Subject.CommonName, "serial", identity.Serial(), "not_after", identity.NotAfter())
	return nil
}

func (r *Rotation) backoff(err error) retry.Backoff {
	if errors.Is(err, ErrRefused) {
		return slow
	}
	if current, err := r.Store.Identity(); err != nil || !current.NotAfter().After(r.Now()) {
		return urgent
	}
	return calm
}

// retryAfter is how long the other side asks to wait, where an error of Renew says so. What is asked for is not believed
// beyond an hour.
func retryAfter(err error) time.Duration {
	var asks interface{ RetryAfter() time.Duration }
	if !errors.As(err, &asks) {
		return 0
	}
	return min(asks.RetryAfter(), time.Hour)
}

func (r *Rotation) write() error {
	err := r.Store.Write()
	if r.Written != nil {
		r.Written(err)
	}
	return err
}

func (r *Rotation) changed() error {
	if r.Changed == nil {
		return nil
	}
	return r.Changed()
}
