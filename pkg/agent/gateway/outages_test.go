package gateway

import (
	"strconv"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
)

// TestOutages updates outages of two workload clusters, a and b. Each step is at a second and says which has a tunnel.
func TestOutages(t *testing.T) {
	type step struct {
		at      float64
		tunnels map[string]bool // by served id
		unsure  bool
	}
	both, onlyB, none := map[string]bool{"a": true, "b": true}, map[string]bool{"a": false, "b": true},
		map[string]bool{"a": false, "b": false}
	tests := map[string]struct {
		steps             []step
		expected, missing float64
		ended             []time.Duration
	}{
		"a cluster that never had a tunnel does not count": {
			steps: []step{{at: 0, tunnels: onlyB}, {at: 10, tunnels: onlyB}}, expected: 10,
		},
		"an outage ends when a tunnel opens": {
			steps: []step{
				{at: 0, tunnels: both}, {at: 10, tunnels: onlyB}, {at: 12.5, tunnels: both}, {at: 20, tunnels: both},
			},
			expected: 40, missing: 2.5, ended: []time.Duration{2500 * time.Millisecond},
		},
		"an outage that goes on counts": {
			steps: []step{{at: 0, tunnels: both}, {at: 10, tunnels: none}, {at: 15, tunnels: none}}, expected: 30, missing: 10,
		},
		"an outage counts for an hour at most": {
			steps: []step{
				{at: 0, tunnels: both},
				{at: 10, tunnels: onlyB},
				{at: 3000, tunnels: onlyB},
				{at: 9000, tunnels: onlyB},
				{at: 9001, tunnels: both},
			},
			expected: 18002, missing: 3600,
		},
		"a cluster that is no longer served has no outage": {
			steps: []step{
				{at: 0, tunnels: both},
				{at: 10, tunnels: map[string]bool{"b": true}},
				{at: 20, tunnels: map[string]bool{"b": true}},
				{at: 30, tunnels: onlyB},
				{at: 40, tunnels: onlyB},
			},
			expected: 50,
		},
		"no outage begins while tunnels may be unknown": {
			steps: []step{
				{at: 0, tunnels: both}, {at: 10, tunnels: onlyB, unsure: true}, {at: 20, tunnels: onlyB}, {at: 25, tunnels: both},
			},
			expected: 50, missing: 5, ended: []time.Duration{5 * time.Second},
		},
	}
	start := time.Now()
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			var ended []time.Duration
			o := newOutages()
			o.ended = func(d time.Duration) { ended = append(ended, d) }
			for _, s := range tc.steps {
				o.update(start.Add(time.Duration(s.at*float64(time.Second))), s.tunnels, !s.unsure)
			}
			if o.expected != tc.expected || o.missing != tc.missing {
				t.Errorf("%g s expected, %g s missing, want %g s and %g s", o.expected, o.missing, tc.expected, tc.missing)
			}
			if diff := cmp.Diff(tc.ended, ended); diff != "" {
				t.Error(diff)
			}
		})
	}
}

func TestRejectedClientsCountDuringAnOutage(t *testing.T) {
	o, start := newOutages(), time.Now()
	o.update(start, map[string]bool{"a": true, "b": false}, true)
	o.update(start, map[string]bool{"a": false, "b": false}, true)
	o.reject("a", start.Add(maxOutage))
	o.reject("a", start.Add(maxOutage+time.Second))
	o.reject("b", start)
	o.reject("", start)
	if o.rejected.outage != 1 || o.rejected.other != 3 {
		t.Errorf("got %+v, want 1 and 3", o.rejected)
	}
}

// TestALargeFleetDoesNotOverflow: the sum of 10,000 workload clusters exceeds a time.Duration after ten days.
func TestALargeFleetDoesNotOverflow(t *testing.T) {
	o, begin := newOutages(), time.Now()
	const fleet, days = 10_000, 40
	for i := range fleet {
		o.had[strconv.Itoa(i)] = true
	}
	for day := range days + 1 {
		o.elapse(begin.Add(time.Duration(day) * 24 * time.Hour))
	}
	if want := float64(fleet * days * 24 * 60 * 60); o.expected != want {
		t.Errorf("%g s, want %g s", o.expected, want)
	}
}
