package reconciler

import (
	"testing"
	"time"
)

func TestRemaining(t *testing.T) {
	now := time.Date(2026, 11, 30, 9, 0, 0, 0, time.UTC)
	for name, tc := range map[string]struct {
		began time.Time
		want  time.Duration
	}{
		"it begins now":                                {began: now, want: time.Minute},
		"a part of it is over":                         {began: now.Add(-20 * time.Second), want: 40 * time.Second},
		"it has just ended":                            {began: now.Add(-time.Minute)},
		"it ended long ago":                            {began: now.Add(-time.Hour)},
		"it never began":                               {},
		"it began before the clock was set back":       {began: now.Add(time.Hour)},
		"it began before the clock was set far back":   {began: now.Add(200 * 365 * 24 * time.Hour)},
		"it began a moment before that, by a rounding": {began: now.Add(time.Millisecond)},
	} {
		if got := Remaining(tc.began, time.Minute, now); got != tc.want {
			t.Errorf("%s: %s is left, want %s", name, got, tc.want)
		}
	}
}
