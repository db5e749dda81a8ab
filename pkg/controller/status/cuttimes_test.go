package status

import (
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/fairlead/fairlead/api/v1alpha1"
)

func TestCutTimes(t *testing.T) {
	now := time.Date(2026, 1, 1, 12, 0, 10, 500_000_000, time.UTC)
	stamp := func(ago time.Duration) *metav1.Time {
		at := metav1.NewTime(now.Add(-ago).Truncate(time.Second))
		return &at
	}
	edge := func(revoked, cut *metav1.Time) []v1alpha1.EdgeStatus {
		return []v1alpha1.EdgeStatus{{NodeID: "CN=edge-a", RevokedAt: revoked, CutAt: cut}}
	}
	saw := func(ago time.Duration) map[string]time.Time { return map[string]time.Time{"CN=edge-a": now.Add(-ago)} }
	for name, tc := range map[string]struct {
		seen          map[string]time.Time
		before, after []v1alpha1.EdgeStatus
		open          map[string]time.Time
		cut           []time.Duration
	}{
		"not revoked": {before: edge(nil, nil), after: edge(nil, nil)},
		"revoked now": {before: edge(nil, nil), after: edge(stamp(0), nil), open: saw(0)},
		"still open": {
			seen: saw(3 * time.Second), before: edge(stamp(3*time.Second), nil), after: edge(stamp(3*time.Second), nil),
			open: saw(3 * time.Second),
		},
		"closed now": {
			seen: saw(2500 * time.Millisecond), before: edge(stamp(3*time.Second), nil),
			after: edge(stamp(3*time.Second), stamp(0)), cut: []time.Duration{2500 * time.Millisecond},
		},
		"closed before": {
			before: edge(stamp(9*time.Second), stamp(5*time.Second)), after: edge(stamp(9*time.Second), stamp(5*time.Second)),
		},
		"revoked by another process": {
			before: edge(stamp(3*time.Second), nil), after: edge(stamp(3*time.Second), stamp(0)),
			cut: []time.Duration{3500 * time.Millisecond},
		},
		"no longer revoked": {seen: saw(time.Second), before: edge(stamp(time.Second), nil), after: edge(nil, nil)},
	} {
		open, cut := cutTimes(tc.seen, tc.before, tc.after, now)
		if diff := cmp.Diff(tc.open, open); diff != "" {
			t.Errorf("%s: open: %s", name, diff)
		}
		if diff := cmp.Diff(tc.cut, cut); diff != "" {
			t.Errorf("%s: cut: %s", name, diff)
		}
	}
}
