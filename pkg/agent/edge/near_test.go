package edge

import (
	"log/slog"
	"path/filepath"
	"testing"
	"time"
)

// TestANearEdgeStaysNear checks that the first measurement decides, and that only an hour in which all measurements
// contradict it changes the decision: each change ends the streams in the reverse tunnels that it replaces.
func TestANearEdgeStaysNear(t *testing.T) {
	type measurement struct {
		after time.Duration // since the previous one
		trip  time.Duration
		want  bool
	}
	const near, busy, far = 300 * time.Microsecond, 8 * time.Millisecond, 20 * time.Millisecond
	for name, tt := range map[string]struct {
		before bool   // an earlier agent has decided that the gateways are near
		folder string // of the file; if it does not exist, the decision cannot be recorded
		all    []measurement
	}{
		"near, and for a moment not": {false, "", []measurement{
			{0, 0, false},
			{0, near, true},
			{time.Minute, busy, true},
			{time.Minute, far, true},
			{time.Minute, near, true},
			{2 * time.Hour, far, true},
			{0, 0, true},
			{time.Minute, far, true},
		}},
		"near, and far for an hour": {false, "", []measurement{
			{0, near, true},
			{time.Minute, far, true},
			{59 * time.Minute, far, true},
			{time.Minute, far, false},
			{time.Minute, busy, false},
		}},
		"far, and near for an hour": {false, "", []measurement{
			{0, far, false},
			{time.Minute, near, false},
			{time.Minute, busy, false},
			{time.Minute, near, false},
			{time.Hour, near, true},
			{time.Minute, busy, true},
		}},
		"near before the agent started": {true, "", []measurement{
			{0, far, true}, {time.Minute, near, true}, {time.Hour, far, true}, {time.Hour, far, false},
		}},
		"near, and that cannot be recorded": {false, "missing", []measurement{
			{0, near, true}, {time.Minute, near, true}, {time.Minute, far, true},
		}},
	} {
		t.Run(name, func(t *testing.T) {
			path := mark(filepath.Join(t.TempDir(), tt.folder, nearFile))
			if tt.before {
				if err := path.set(true); err != nil {
					t.Fatal(err)
				}
			}
			n, now := &nearness{path: path}, time.Now()
			for i, m := range tt.all {
				now = now.Add(m.after)
				if got := n.update(m.trip, now, slog.New(slog.DiscardHandler)); got != m.want {
					t.Errorf("measurement %d, of %s: near is %t, want %t", i, m.trip, got, m.want)
				}
			}
		})
	}
}
