package retry_test

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"github.com/fairlead/fairlead/internal/retry"
)

func TestReasonsDifferOnlyByWords(t *testing.T) {
	var r retry.Reasons
	for _, step := range []struct {
		text string
		want bool
	}{
		{"read tcp 127.0.0.1:40000: connection reset", true},
		{"read tcp 127.0.0.1:40001: connection reset", false},
		{"connection refused", true},
		{"read tcp 127.0.0.1:40002: connection reset", false},
	} {
		if got := r.New(errors.New(step.text)); got != step.want {
			t.Errorf("%s: got %v, want %v", step.text, got, step.want)
		}
	}
}

func TestBackoffGrowsToItsMaximum(t *testing.T) {
	b := retry.Backoff{Min: time.Second, Max: 10 * time.Second}
	for attempt, limit := range map[int]time.Duration{
		0: time.Second, 1: 2 * time.Second, 3: 8 * time.Second,
		4: 10 * time.Second, 1000: 10 * time.Second,
	} {
		for range 100 {
			if got := b.Wait(attempt); got > limit || got < limit/2 {
				t.Fatalf("attempt %d: got %v, want %v to %v", attempt, got, limit/2, limit)
			}
		}
	}
}

func TestSleepEndsWithItsContext(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		start := time.Now()
		if err := retry.Sleep(ctx, time.Minute); !errors.Is(err, context.DeadlineExceeded) ||
			time.Since(start) != time.Second {
			t.Errorf("it gives %v after %v, want the end of its context after 1s", err, time.Since(start))
		}
		if err := retry.Sleep(t.Context(), time.Minute); err != nil || time.Since(start) != 61*time.Second {
			t.Errorf("it gives %v after %v, want nothing after 61s", err, time.Since(start))
		}
	})
}
