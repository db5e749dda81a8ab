// Package eventually waits in tests: for a condition, never for a time. It knows nothing of what is waited for.
package eventually

import (
	"testing"
	"time"
)

// interval is how often a condition is asked.
const interval = 20 * time.Millisecond

// True fails the test unless a check, made again and again, finds nothing wrong within patience. What it is about is a
// sentence for the failure.
func True(t testing.TB, patience time.Duration, what string, check func() error) {
	t.Helper()
	deadline := time.NewTimer(patience)
	defer deadline.Stop()
	again := time.NewTicker(interval)
	defer again.Stop()
	for {
		err := check()
		if err == nil {
			return
		}
		select {
		case <-deadline.C:
			t.Fatalf("%s: after %s: %v", what, patience, err)
		case <-again.C:
		}
	}
}
