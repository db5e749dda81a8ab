package edge

import (
	"log/slog"
	"path/filepath"
	"testing"
	"time"
)

func TestANearEdgeStaysNear(t *testing.T) {
	near := nearness{path: mark(filepath.Join(t.TempDir(), nearFile))}
	for _, step := range []struct {
		trip time.Duration
		want bool
	}{
		{0, false},
		{3 * time.Millisecond, false},
		{300 * time.Microsecond, true},
		{8 * time.Millisecond, true}, // a busy machine
		{0, true},
		{20 * time.Millisecond, false},
		{8 * time.Millisecond, false},
	} {
		if got := near.update(step.trip, slog.New(slog.DiscardHandler)); got != step.want {
			t.Errorf("after a round trip of %s: near is %t, want %t", step.trip, got, step.want)
		}
	}
}
