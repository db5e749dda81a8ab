package reconciler

import (
	"context"
	"log/slog"
	"testing"
	"time"

	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/interceptor"
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

// TestAListOfRequestsCopiesNoTunnel: only the names are needed of what may be all Tunnels.
func TestAListOfRequestsCopiesNoTunnel(t *testing.T) {
	var got client.ListOptions
	api := interceptor.NewClient(twoTunnels(t), interceptor.Funcs{List: func(
		ctx context.Context, from client.WithWatch, list client.ObjectList, options ...client.ListOption,
	) error {
		got.ApplyOptions(options)
		return from.List(ctx, list, options...)
	}})
	requests := TunnelRequests(
		t.Context(), api, slog.New(slog.DiscardHandler), client.MatchingFields{TunnelIDIndex: "id-of-b"},
	)
	if len(requests) != 1 || requests[0].Name != "b" {
		t.Errorf("got %v", requests)
	}
	if got.UnsafeDisableDeepCopy == nil || !*got.UnsafeDisableDeepCopy {
		t.Errorf("Tunnels are copied: %+v", got)
	}
}
