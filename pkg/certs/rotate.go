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

// ErrRefused is wrapped by an error of Rotation.Renew if the issuer denied the request, and retries fail until a
// person intervenes.
var ErrRefused = errors.New("refused")

const (
	// jitter spreads renewals that would coincide over this fraction of a leaf's lifetime.
	jitter = 0.05
	// maxSleep bounds each sleep of the loop: timers do not notice that the clock was set or that the machine was
	// suspended.
	maxSleep = time.Minute
	// minWait is the minimum time between two renewals, because a CA that is about to expire issues very short leaves.
	minWait = time.Second
	// checkEvery is how often Check is called.
	checkEvery = time.Second
)

// Waits between attempts: urgentBackoff without a valid leaf, because nothing works without one; normalBackoff with
// one; and slowBackoff after a denied request, which needs a person to intervene.
var (
	urgentBackoff = retry.Backoff{Min: 200 * time.Millisecond, Max: 5 * time.Second}
	normalBackoff = retry.Backoff{Min: time.Second, Max: time.Minute}
	slowBackoff   = retry.Backoff{Min: 10 * time.Second, Max: time.Minute}
)

// RenewAt returns when a leaf should be renewed: at 2/3 of its lifetime, so that a leaf of 24 h then has 8 h of
// retries left.
func RenewAt(notBefore, notAfter time.Time) time.Time {
	return notBefore.Add(notAfter.Sub(notBefore) * 2 / 3)
}

// Rotation keeps the identity in a Store valid: it requests the first identity, and each following one in time.
type Rotation struct {
	Store *Store
	// Renew requests a new identity and its trust bundle. It should return when ctx ends, and must have its own
	// timeout. If an error has a method RetryAfter() time.Duration, the next attempt waits at least that long.
	Renew func(ctx context.Context) (Identity, []byte, error)
	// Check returns why the identity in the store is invalid before it expires, for example because its CA is no
	// longer trusted, or nil if it is valid. It is called every second, and an error causes a renewal at once. It may
	// be nil.
	Check func(Identity) error
	// Changed is called after each change of the store's identity, and once at the start if the store has one, valid
	// or not. After an error it is called again. It should not block, and may be nil.
	Changed func() error
	// Written is called with the result of each attempt to write a new identity to disk. Failed attempts are repeated
	// until one succeeds. It should not block, and may be nil.
	Written func(error)
	Now     func() time.Time // nil: time.Now
	Log     *slog.Logger

	followUps [2]*followUp // write the identity to disk, and call Changed
	checks    checks
}

// checks are the results of Rotation.Check.
type checks struct {
	failures int // since the identity was last valid
	next     time.Time
	reasons  retry.Reasons
}

// Run renews until ctx ends, and then returns nil. Errors do not end it: it logs each distinct error once, and
// retries. An identity that cannot be written to disk is used anyway. But before the first identity is requested, the
// store must be writable: otherwise every start would use up a token.
func (r *Rotation) Run(ctx context.Context) error {
	if r.Now == nil {
		r.Now = time.Now
	}
	write := &followUp{do: r.write, failed: "new certificate is in use, but not on disk", log: r.Log}
	changed := &followUp{do: r.changed, failed: "cannot use the new certificate, retrying", log: r.Log}
	r.followUps = [2]*followUp{write, changed}
	if _, err := r.Store.Identity(); err == nil {
		changed.schedule()
	}
	for due := r.firstDue(); r.waitUntil(ctx, due); due = r.nextDue() {
		if !r.renew(ctx) {
			break
		}
		write.schedule()
		changed.schedule()
	}
	return nil
}

// firstDue returns when the identity that was loaded at the start must be renewed: at once, if there is none.
func (r *Rotation) firstDue() time.Time {
	current, err := r.Store.Identity()
	if err != nil {
		return time.Time{}
	}
	return spread(current.NotBefore(), current.NotAfter())
}

// nextDue counts the lifetime of a leaf from now and not from NotBefore, because issuers set NotBefore earlier for
// slow clocks. For a very short leaf, this difference exceeds its whole lifetime.
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

// waitUntil waits until a renewal is due or Check fails. It returns false when ctx has ended.
func (r *Rotation) waitUntil(ctx context.Context, due time.Time) bool {
	for {
		wait, limit := due.Sub(r.Now()), maxSleep
		if r.Check != nil {
			limit = checkEvery
		}
		if r.sleep(ctx, min(wait, limit)) != nil {
			return false
		}
		if wait <= 0 || r.needsRenewal() {
			return true
		}
	}
}

// needsRenewal reports whether Check requires a renewal before the identity is due. If new identities are invalid too,
// it does so with increasing waits.
func (r *Rotation) needsRenewal() bool {
	if r.Check == nil {
		return false
	}
	current, err := r.Store.Identity()
	if err != nil {
		return false // a renewal is due anyway
	}
	if err = r.Check(current); err == nil {
		r.checks = checks{}
		return false
	}
	if r.checks.reasons.New(err) {
		r.Log.Warn("certificate is no longer usable, renewing it", "error", err)
	}
	if time.Now().Before(r.checks.next) { // not r.Now, which may be set back
		return false
	}
	r.checks.next = time.Now().Add(normalBackoff.Wait(r.checks.failures))
	r.checks.failures++
	return true
}

// renew retries until it has a new identity. It returns false when ctx ends.
func (r *Rotation) renew(ctx context.Context) bool {
	var reasons retry.Reasons
	for attempt := 0; ctx.Err() == nil; attempt++ {
		err := r.renewOnce(ctx)
		if err == nil {
			return true
		}
		if ctx.Err() == nil && reasons.New(err) {
			r.Log.Warn("cannot obtain certificate, retrying", "error", err)
		}
		_ = r.sleep(ctx, max(r.backoff(err).Wait(attempt), retryAfter(err)))
	}
	return false
}

func (r *Rotation) renewOnce(ctx context.Context) error {
	// The first identity uses up a credential; a renewal does not, and so it continues in memory while the disk is
	// full.
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
		return fmt.Errorf(
			"the new certificate has already expired, at %s: is the clock right?", identity.NotAfter().Format(time.RFC3339),
		)
	}
	if err := r.Store.Use(identity, bundle); err != nil {
		return err
	}
	r.Log.Info(
		"certificate obtained", "node", identity.Leaf().Subject.CommonName, "serial", identity.Serial(), "not_after",
		identity.NotAfter(),
	)
	return nil
}

func (r *Rotation) backoff(err error) retry.Backoff {
	if errors.Is(err, ErrRefused) {
		return slowBackoff
	}
	if current, err := r.Store.Identity(); err != nil || !current.NotAfter().After(r.Now()) {
		return urgentBackoff
	}
	return normalBackoff
}

// retryAfter returns the wait that an error of Renew requests, at most an hour, or 0.
func retryAfter(err error) time.Duration {
	var limited interface{ RetryAfter() time.Duration }
	if !errors.As(err, &limited) {
		return 0
	}
	return min(limited.RetryAfter(), time.Hour)
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
