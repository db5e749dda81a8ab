package gateway

import (
	"testing"
	"time"
)

func TestAGatewayThatWaitsAsksLessWhileAnswersAreSlow(t *testing.T) {
	const usual = 500 * time.Millisecond // peersInterval
	for name, tc := range map[string]struct{ took, left, least, most time.Duration }{
		"nothing was asked": {least: usual / 2, most: usual},
		"a quick answer":    {took: 10 * time.Millisecond, left: time.Minute, least: usual / 2, most: usual},
		"a slow answer":     {took: time.Second, left: time.Minute, least: 4 * time.Second, most: 4 * time.Second},
		"before the deadline": {
			took: 3 * time.Second, left: time.Second, least: time.Second, most: time.Second,
		},
		"after the deadline": {took: 3 * time.Second, left: -time.Second, least: usual / 2, most: usual},
	} {
		if got := pause(tc.took, tc.left); got < tc.least || got > tc.most {
			t.Errorf("%s: the pause is %v, want %v to %v", name, got, tc.least, tc.most)
		}
	}
}
