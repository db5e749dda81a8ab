// Package retry has what every loop needs that tries again: how long to wait, waiting that ends with its context, and
// which failures are worth a line in the log. It knows nothing about what is tried.
package retry

import (
	"context"
	"math/rand/v2"
	"regexp"
	"time"
)

// Backoff is the wait between attempts: it doubles from Min to Max, each shortened by up to half at random, so that many
// machines that lost the same server do not come back together.
type Backoff struct{ Min, Max time.Duration }

// Wait is the wait after an attempt, the first of which is 0.
func (b Backoff) Wait(attempt int) time.Duration {
	wait := b.Max
	if attempt < 16 { // beyond it a shift could overflow
		wait = min(b.Max, b.Min<<attempt)
	}
	return wait - time.Duration(rand.Int64N(int64(wait/2)+1))
}

// Sleep waits, and returns early with ctx's error when that ends.
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

// maxReasons bounds what Reasons remembers.
const maxReasons = 32

var digits = regexp.MustCompile(`[0-9]+`)

// Reasons tells new reasons of failure from those seen before, so that each is logged once. Numbers, such as the ports
// of connections, make no reason a new one. Its zero value has seen none.
type Reasons struct{ seen map[string]bool }

// New says whether an error is there for the first time.
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
