package decision_test

import (
	"slices"
	"testing"

	"github.com/fairlead/fairlead/pkg/decision"
)

func TestTheEndpointNameIsServedIfNoOtherTunnelHasIt(t *testing.T) {
	const name = "api.example.com"
	withEndpoint := func(c decision.Candidate, endpoint string) decision.Candidate {
		c.EndpointName = endpoint
		return c
	}
	tests := map[string]struct {
		others []decision.Candidate
		in     decision.Candidate
		want   []string
	}{
		"no other Tunnel has it": {in: withEndpoint(candidate("c1", "a", younger), name), want: []string{name}},
		"after the extra names": {
			in:   withEndpoint(candidate("c1", "a", younger, "x.example.com"), name),
			want: []string{"x.example.com", name},
		},
		"once, if it is an extra name": {in: withEndpoint(candidate("c1", "a", younger, name), name), want: []string{name}},
		"an older one has it": {
			others: []decision.Candidate{candidate("c2", "b", older, name)},
			in:     withEndpoint(candidate("c1", "a", younger), name),
		},
		"an older one has it likewise": {
			others: []decision.Candidate{withEndpoint(candidate("c2", "b", older), name)},
			in:     withEndpoint(candidate("c1", "a", younger), name),
		},
		"it is below the tunnel domain": {in: withEndpoint(candidate("c1", "a", younger), "c9.prod."+string(domain))},
		"it is an address":              {in: withEndpoint(candidate("c1", "a", younger), "192.0.2.1")},
		"it is no name":                 {in: withEndpoint(candidate("c1", "a", younger), "not a name")},
	}
	for what, tc := range tests {
		t.Run(what, func(t *testing.T) {
			var names decision.Names
			for _, other := range tc.others {
				names.Resolve(domain, other)
			}
			got := names.Resolve(domain, tc.in)
			if got.Fatal != nil || len(got.Refused) != 0 || !slices.Equal(got.Cluster.ExtraNames, tc.want) {
				t.Errorf("served as %v, refused %v, %v; want %v", got.Cluster.ExtraNames, got.Refused, got.Fatal, tc.want)
			}
			if len(tc.want) == 0 {
				return
			}
			if holder, held := names.Holder(tc.want[len(tc.want)-1]); !held || holder != tc.in.Key {
				t.Errorf("the holder is %v, %v", holder, held)
			}
		})
	}
	if _, held := (&decision.Names{}).Holder(name); held {
		t.Error("a name that nobody claims has a holder")
	}
}
