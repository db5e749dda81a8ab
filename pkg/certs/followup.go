package certs

import (
	"context"
	"log/slog"
	"time"

	"github.com/fairlead/fairlead/internal/retry"
)

// followUp is a task after each renewal. If it fails, it is retried; the next renewal does not wait for it.
type followUp struct {
	do      func() error
	failed  string // log message for a failure
	log     *slog.Logger
	pending bool
	failure int // failures since it was scheduled
	next    time.Time
	reasons retry.Reasons
}

// schedule makes the task due now.
func (c *followUp) schedule() { c.pending, c.failure, c.next = true, 0, time.Time{} }

// try runs the task if it is due, and returns how long to wait until it is due again, or maxSleep if it is not
// scheduled.
func (c *followUp) try(now time.Time) time.Duration {
	if !c.pending {
		return maxSleep
	}
	if wait := c.next.Sub(now); wait > 0 {
		return wait
	}
	err := c.do()
	if err == nil {
		c.pending, c.reasons = false, retry.Reasons{}
		return maxSleep
	}
	if c.reasons.New(err) {
		c.log.Error(c.failed, "error", err)
	}
	wait := normalBackoff.Wait(c.failure)
	c.failure, c.next = c.failure+1, now.Add(wait)
	return wait
}

// sleep waits, and runs the follow-up tasks meanwhile. It returns ctx's error when ctx ends.
func (r *Rotation) sleep(ctx context.Context, wait time.Duration) error {
	// time.Now and not r.Now, because a test or an operator may set r.Now back, and these waits are short.
	for end := time.Now().Add(wait); ; {
		limit := time.Until(end)
		for _, c := range r.followUps {
			limit = min(limit, c.try(time.Now()))
		}
		if err := retry.Sleep(ctx, limit); err != nil || !time.Now().Before(end) {
			return err
		}
	}
}
