// Package retry has the parts of a retry loop: the time to wait, a wait that ends with its context, and which failures
// to log. It knows nothing about the work that is retried.
package retry

import (
	"context"
	"math/rand/v2"
	"regexp"
	"time"
)

// Backoff is the wait between attempts. It doubles from Min to Max. Each wait is shortened by up to half at random, so
// that machines that lost the same server do not come back together.
type Backoff struct{ Min, Max time.Duration }

// Wait returns the wait after an attempt. The first attempt is 0.
func (b Backoff) Wait(attempt int) time.Duration {
	wait := b.Max
	if attempt < 16 { // a longer shift could overflow
		wait = min(b.Max, b.Min<<attempt)
	}
	return wait - time.Duration(rand.Int64N(int64(wait/2)+1))
}

// Sleep waits, or returns ctx's error as soon as ctx ends.
func Sleep(ctx context.Context, wait time.Duration) error {
	timer := time.NewTimer(wait)
	defer timer.Stop()
	select {
	case <-ctx.Done():
		return ctx.Err()
	case <-timer.C:
		return nil
	}
}

// maxReasons bounds the memory of Reasons.
const maxReasons = 32

var digits = regexp.MustCompile(`[0-9]+`)

// Reasons distinguishes new reasons of failure from known ones, so that each is logged once. Reasons that differ only
// in numbers, such as ports of connections, are the same. After 32 reasons it starts again from none. The zero value is
// ready to use. It is not safe for concurrent use.
type Reasons struct{ seen map[string]bool }

// New reports whether the reason of an error is new, and stores it.
func (r *Reasons) New(err error) bool {
	key := digits.ReplaceAllString(err.Error(), "0")
	if r.seen[key] {
		return false
	}
	if r.seen == nil || len(r.seen) >= maxReasons {
		r.seen = map[string]bool{}
	}
	r.seen[key] = true
	return true
}
