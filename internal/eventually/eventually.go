// Package eventually lets tests wait for a condition instead of a fixed time. It knows nothing about the condition.
package eventually

import (
	"testing"
	"time"
)

// interval is the time between two checks of a condition.
const interval = 20 * time.Millisecond

// True repeats a check until it returns nil. It fails the test with the last error if that takes longer than patience.
// what is a sentence that describes the condition in the failure.
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
