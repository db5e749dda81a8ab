package certs_test

import (
	"fmt"
	"testing"
	"testing/synctest"
	"time"
)

// limit is the error of a server that received too many requests.
type limit time.Duration

// Error implements error.
func (l limit) Error() string { return "too often" }

// RetryAfter returns how long to wait.
func (l limit) RetryAfter() time.Duration { return time.Duration(l) }

func TestRetryAfterIsObeyed(t *testing.T) {
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
