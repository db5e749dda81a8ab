package certs_test

import (
	"fmt"
	"testing"
	"testing/synctest"
	"time"
)

// limit is what a server says that is asked too often.
type limit time.Duration

// Error says so.
func (l limit) Error() string { return "too often" }

// RetryAfter is when it may be asked again.
func (l limit) RetryAfter() time.Duration { return time.Duration(l) }

func TestWhoAsksForTimeGetsIt(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		i := newIssuer(t)
		i.set(fmt.Errorf("renewing: %w", limit(10*time.Minute)))
		i.start()
		i.expect("in 9 minutes", i.pass(9*time.Minute), 1, 1)
		i.expect("in 2 more", i.pass(2*time.Minute), 1, 1)
		i.set(fmt.Errorf("renewing: %w", limit(1000*time.Hour)))
		_ = i.pass(time.Hour)
		i.expect("in 10 hours, for one who asks for more than an hour", i.pass(10*time.Hour), 9, 11)
	})
}
