package test

import (
	"testing"
	"time"
)

// TestTheTimeLimitIncludesTheWatches: the hops are checked twice, and each check has a watch.
func TestTheTimeLimitIncludesTheWatches(t *testing.T) {
	f := connectivityFlags{timeout: time.Minute, idle: 2 * time.Minute, watchFor: 4 * time.Minute}
	if got := f.limit(); got != 11*time.Minute {
		t.Errorf("got %s", got)
	}
}
