package certs

import (
	"context"
	"log/slog"
	"time"

	"github.com/fairlead/fairlead/internal/retry"
)

// chore is what has to be done after each renewal. When it fails it is tried again, and nothing waits for it: the next
// renewal comes in time all the same.
type chore struct {
	do      func() error
	failed  string // the message of the log
	log     *slog.Logger
	pending bool
	failure int // how many there were since it was set
	next    time.Time
	reasons retry.Reasons
}

// set makes the chore due now.
func (c *chore) set() { c.pending, c.failure, c.next = true, 0, time.Time{} }

// try does the chore if it is due, and returns how long to wait until it is due again: maxNap, if nothing is left to do.
func (c *chore) try(now time.Time) time.Duration {
	if !c.pending {
		return maxNap
	}
	if wait := c.next.Sub(now); wait > 0 {
		return wait
	}
	err := c.do()
	if err == nil {
		c.pending, c.reasons = false, retry.Reasons{}
		return maxNap
	}
	if c.reasons.New(err) {
		c.log.Error(c.failed, "error", err)
	}
	wait := calm.Wait(c.failure)
	c.failure, c.next = c.failure+1, now.Add(wait)
	return wait
}

// sleep waits, and meanwhile does what is left to do. It returns ctx's error when that ends.
func (r *Rotation) sleep(ctx context.Context, wait time.Duration) error {
	// Not r.Now, which may be set back: these waits are short.
	for end := time.Now().Add(wait); ; {
		nap := time.Until(end)
		for _, c := range r.chores {
			nap = min(nap, c.try(time.Now()))
		}
		if err := retry.Sleep(ctx, nap); err != nil || !time.Now().Before(end) {
			return err
		}
	}
}
