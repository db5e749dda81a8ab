package retry_test

import (
	"errors"
	"testing"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/fairlead/fairlead/internal/retry"
)

func TestAWaitIsAtLeastAsLongAsRequested(t *testing.T) {
	own := retry.Backoff{Min: 100 * time.Millisecond, Max: time.Second}
	tests := map[string]struct {
		err         error
		least, most time.Duration
	}{
		"an error of no status": {err: errors.New("x"), least: 50 * time.Millisecond, most: 100 * time.Millisecond},
		"a status without a delay": {
			err:   status.Error(codes.ResourceExhausted, "x"),
			least: 50 * time.Millisecond,
			most:  100 * time.Millisecond,
		},
		"a status with a delay of 10 s": {
			err:   retry.Later("too many", 10*time.Second),
			least: 10 * time.Second,
			most:  15 * time.Second,
		},
		"a status with a delay of a year": {
			err:   retry.Later("too many", 365*24*time.Hour),
			least: time.Minute,
			most:  90 * time.Second,
		},
		"a status with a negative delay": {
			err:   retry.Later("too many", -time.Hour),
			least: 50 * time.Millisecond,
			most:  100 * time.Millisecond,
		},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			seen := map[time.Duration]bool{}
			for range 32 {
				wait := own.WaitFor(0, tc.err)
				if wait < tc.least || wait > tc.most {
					t.Errorf("it waits %s, want %s to %s", wait, tc.least, tc.most)
				}
				seen[wait] = true
			}
			if len(seen) < 16 {
				t.Errorf("32 waits are %d different ones", len(seen))
			}
		})
	}
}
