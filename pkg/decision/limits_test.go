package decision_test

import (
	"testing"
	"time"

	"github.com/fairlead/fairlead/pkg/decision"
	"github.com/fairlead/fairlead/pkg/model"
)

func TestLimits(t *testing.T) {
	tests := map[string]struct {
		in, want model.Limits
		wantBad  []string
	}{
		"none": {},
		"good": {
			in:   model.Limits{Connections: 1, Pending: 10_000, Bandwidth: 64 << 10},
			want: model.Limits{Connections: 1, Pending: 10_000, Bandwidth: 64 << 10},
		},
		"too few": {
			in:      model.Limits{Connections: -1, Pending: -1, Bandwidth: -1},
			wantBad: []string{"connections", "pendingConnections", "bandwidth"},
		},
		"too many": {
			in:      model.Limits{Connections: 10_001, Pending: 5, Bandwidth: 1 << 41},
			want:    model.Limits{Pending: 5},
			wantBad: []string{"connections", "bandwidth"},
		},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			c := candidate("c1", "a", time.Time{})
			c.Limits = tc.in
			got := (&decision.Names{}).Resolve(domain, c)
			if got.Fatal != nil || got.Cluster.Limits != tc.want {
				t.Errorf("got %+v, %v", got.Cluster.Limits, got.Fatal)
			}
			var bad []string
			for _, e := range got.Refused {
				bad = append(bad, e.Field)
				if e.Cure == "" || e.Problem == "" {
					t.Errorf("%v", e)
				}
			}
			if len(bad) != len(tc.wantBad) {
				t.Fatalf("refused are %q, want %q", bad, tc.wantBad)
			}
			for i, field := range tc.wantBad {
				if bad[i] != "spec.limits."+field {
					t.Errorf("refused are %q, want %q", bad, tc.wantBad)
				}
			}
		})
	}
	if l := (model.Limits{}); l.MaxConnections() != model.DefaultConnections || l.MaxPending() != model.DefaultPending {
		t.Errorf("the defaults are %d and %d", l.MaxConnections(), l.MaxPending())
	}
}
