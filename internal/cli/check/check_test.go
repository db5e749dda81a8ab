package check

import (
	"testing"
	"time"
)

// TestTheTimeLimitIncludesTheWatch: otherwise no watch could stay open for longer than the default limit.
func TestTheTimeLimitIncludesTheWatch(t *testing.T) {
	f := checkFlags{timeout: defaultCheckTime, stream: 10 * time.Minute}
	if got := f.limit(); got != defaultCheckTime+10*time.Minute {
		t.Errorf("got %s", got)
	}
}
