package decision_test

import (
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/fairlead/fairlead/pkg/decision"
	"github.com/fairlead/fairlead/pkg/model"
)

var (
	older   = time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)
	younger = older.Add(time.Hour)
)

// holding returns a candidate that is on record for all that it claims.
func holding(c decision.Candidate) decision.Candidate {
	hostname, _ := domain.Hostname(c.Key)
	c.Held = append([]string{hostname, c.ID}, c.ExtraNames...)
	return c
}

// candidate returns a valid candidate; id is padded to a valid length.
func candidate(name, id string, created time.Time, extra ...string) decision.Candidate {
	return decision.Candidate{
		Key: model.Key{Namespace: "prod", Name: name}, Created: created,
		ID:         id + strings.Repeat("0", 20-len(id)),
		ExtraNames: extra, APIServer: model.Endpoint{Host: "10.0.0.1", Port: 6443},
	}
}

func TestResolve(t *testing.T) {
	tests := map[string]struct {
		before      []decision.Candidate
		in          decision.Candidate
		wantFatal   string
		wantNames   []string
		wantRefused []string
	}{
		"a good one is served with all of its names": {
			in:        candidate("c1", "a", older, "api.example.com"),
			wantNames: []string{"c1.prod.tunnels.example.com", "api.example.com"},
		},
		"bad extra names are left out and named by their index": {
			in: candidate(
				"c1", "a", older, "192.0.2.1", "ok.example.com", "UPPER.example.com", "x.tunnels.example.com", "ok.example.com",
			),
			wantNames:   []string{"c1.prod.tunnels.example.com", "ok.example.com"},
			wantRefused: []string{"spec.extraNames[0]", "spec.extraNames[2]", "spec.extraNames[3]", "spec.extraNames[4]"},
		},
		"of two of one age the second in the order of names has no hostname": {
			before:    []decision.Candidate{candidate("a--b", "a", older)},
			in:        candidate("a.b", "b", older),
			wantFatal: "metadata.name",
		},
		"of two of one age the first in the order of names has the hostname although it comes later": {
			before:    []decision.Candidate{candidate("a.b", "a", older)},
			in:        candidate("a--b", "b", older),
			wantNames: []string{"a--b.prod.tunnels.example.com"},
		},
		"an extra name that an older one has is left out": {
			before:      []decision.Candidate{candidate("c1", "a", older, "api.example.com")},
			in:          candidate("c2", "b", younger, "api.example.com"),
			wantNames:   []string{"c2.prod.tunnels.example.com"},
			wantRefused: []string{"spec.extraNames[0]"},
		},
		"the older gets a free extra name although it is added later": {
			before:    []decision.Candidate{candidate("c1", "a", younger, "api.example.com")},
			in:        candidate("c2", "b", older, "api.example.com"),
			wantNames: []string{"c2.prod.tunnels.example.com", "api.example.com"},
		},
		"a younger holder keeps an extra name": {
			before:      []decision.Candidate{holding(candidate("c1", "a", younger, "api.example.com"))},
			in:          candidate("c2", "b", older, "api.example.com"),
			wantNames:   []string{"c2.prod.tunnels.example.com"},
			wantRefused: []string{"spec.extraNames[0]"},
		},
		"a younger holder keeps an extra name although it comes later": {
			before:    []decision.Candidate{candidate("c1", "a", older, "api.example.com")},
			in:        holding(candidate("c2", "b", younger, "api.example.com")),
			wantNames: []string{"c2.prod.tunnels.example.com", "api.example.com"},
		},
		"of two holders, as from a backup, the older keeps an extra name": {
			before:    []decision.Candidate{holding(candidate("c1", "a", younger, "api.example.com"))},
			in:        holding(candidate("c2", "b", older, "api.example.com")),
			wantNames: []string{"c2.prod.tunnels.example.com", "api.example.com"},
		},
		"a younger holder keeps its id": {
			before:    []decision.Candidate{holding(candidate("c1", "a", younger))},
			in:        candidate("c2", "a", older),
			wantFatal: "spec.id",
		},
		"a younger holder keeps its hostname": {
			before:    []decision.Candidate{holding(candidate("a.b", "a", younger))},
			in:        candidate("a--b", "b", older),
			wantFatal: "metadata.name",
		},
		"an extra name of an older one that is not served": {
			before:    []decision.Candidate{candidate("c1", "a", older), candidate("c2", "a", older, "api.example.com")},
			in:        candidate("c3", "c", younger, "api.example.com"),
			wantNames: []string{"c3.prod.tunnels.example.com", "api.example.com"},
		},
		"a hostname that is another's id": {
			before: []decision.Candidate{holding(candidate("c1", "a", younger))},
			in: decision.Candidate{
				Key:       model.Key{Namespace: "id", Name: "a" + strings.Repeat("0", 19)},
				Created:   older,
				ID:        "b" + strings.Repeat("0", 19),
				APIServer: model.Endpoint{Host: "10.0.0.1", Port: 6443},
			},
			wantFatal: "metadata.name",
		},
		"a hostname that is its own id": {
			in: decision.Candidate{
				Key:       model.Key{Namespace: "id", Name: "a" + strings.Repeat("0", 19)},
				ID:        "a" + strings.Repeat("0", 19),
				APIServer: model.Endpoint{Host: "10.0.0.1", Port: 6443},
			},
			wantNames: []string{"a" + strings.Repeat("0", 19) + ".id.tunnels.example.com"},
		},
		"a hostname that an older one has": {
			before:    []decision.Candidate{candidate("a.b", "a", older)},
			in:        candidate("a--b", "b", younger),
			wantFatal: "metadata.name",
		},
		"an id that an older one has": {
			before:    []decision.Candidate{candidate("c1", "a", older)},
			in:        candidate("c2", "a", younger),
			wantFatal: "spec.id",
		},
		"a name that gives no hostname": {in: candidate(strings.Repeat("c", 64), "a", older), wantFatal: "metadata.name"},
		"an apiserver that is no address": {
			in: decision.Candidate{
				Key:       model.Key{Namespace: "prod", Name: "c1"},
				ID:        strings.Repeat("a", 20),
				APIServer: model.Endpoint{Host: "a b", Port: 1},
			},
			wantFatal: "spec.apiServer",
		},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			var names decision.Names
			for _, c := range tc.before {
				names.Resolve(domain, c)
			}
			r := names.Resolve(domain, tc.in)
			if tc.wantFatal != "" {
				if r.Fatal == nil || r.Fatal.Field != tc.wantFatal {
					t.Fatalf("got %v, want an error of %s", r.Fatal, tc.wantFatal)
				}
				return
			}
			if r.Fatal != nil {
				t.Fatalf("unexpected error: %v", r.Fatal)
			}
			if diff := cmp.Diff(tc.wantNames, r.Cluster.Names()); diff != "" {
				t.Error(diff)
			}
			var refused []string
			for _, e := range r.Refused {
				refused = append(refused, e.Field)
			}
			if diff := cmp.Diff(tc.wantRefused, refused); diff != "" {
				t.Error(diff)
			}
		})
	}
}

func TestAnUnservedCandidateStillRevokesItsEdges(t *testing.T) {
	bad := map[string]func(c *decision.Candidate){
		"its hostname is none":        func(c *decision.Candidate) { c.Key.Name = strings.Repeat("c", 64) },
		"its apiserver is no address": func(c *decision.Candidate) { c.APIServer.Host = "a b" },
		"an older one has its id":     func(c *decision.Candidate) { c.ID = candidate("", "b", older).ID },
	}
	for name, spoil := range bad {
		t.Run(name, func(t *testing.T) {
			var names decision.Names
			names.Resolve(domain, candidate("c2", "b", older))
			c := candidate("c1", "a", younger)
			c.Revoked = []string{"edge-a", "CN=edge-a"}
			spoil(&c)
			r := names.Resolve(domain, c)
			if r.Fatal == nil || !r.Cluster.Withheld || r.Cluster.Key != c.Key || r.Cluster.ID != c.ID {
				t.Errorf("got %+v", r)
			}
			if diff := cmp.Diff([]model.EdgeRef{{Node: "edge-a", ID: c.ID}}, r.Cluster.RevokedEdges()); diff != "" {
				t.Error(diff)
			}
		})
	}
	var names decision.Names
	if names.Resolve(domain, candidate("c1", "a", older)).Cluster.Withheld {
		t.Error("a good one is withheld")
	}
}

func TestABadAddressOrNodeNameAffectsNothingElse(t *testing.T) {
	var names decision.Names
	c := candidate("c1", "a", older, "192.0.2.1")
	good := model.Endpoint{Host: "10.0.0.2", Port: 6443}
	c.Others = []model.Endpoint{{Host: "a b", Port: 1}, good, {Host: "10.0.0.3"}}
	c.Revoked = []string{"edge-b", "CN=edge-a", "", "edge-a"}
	r := names.Resolve(domain, c)
	if r.Fatal != nil {
		t.Fatal(r.Fatal)
	}
	if diff := cmp.Diff([]model.Endpoint{good}, r.Cluster.Others); diff != "" {
		t.Error(diff)
	}
	if diff := cmp.Diff([]string{"edge-b", "edge-a"}, r.Cluster.Revoked); diff != "" {
		t.Error(diff)
	}
	var refused []string
	for _, e := range r.Refused {
		refused = append(refused, e.Field)
	}
	want := []string{
		"spec.extraNames[0]",
		"spec.apiServer.others[0]",
		"spec.apiServer.others[2]",
		"spec.revokedEdges[1]",
		"spec.revokedEdges[2]",
	}
	if diff := cmp.Diff(want, refused); diff != "" {
		t.Error(diff)
	}
}

func TestResolveReturnsTheAffectedCandidates(t *testing.T) {
	var names decision.Names
	first, second := candidate("c1", "a", older, "api.example.com"), candidate("c2", "b", younger, "api.example.com")
	names.Resolve(domain, first)
	if got := names.Resolve(domain, second).Affected; !slices.Equal(got, []model.Key{first.Key}) {
		t.Errorf("a second claimant affects %v, want the first", got)
	}
	first.ExtraNames = nil
	if got := names.Resolve(domain, first).Affected; !slices.Equal(got, []model.Key{second.Key}) {
		t.Errorf("giving up a name affects %v, want the second", got)
	}
	if got := names.Resolve(domain, second).Cluster.ExtraNames; !slices.Equal(got, []string{"api.example.com"}) {
		t.Errorf("the second now has %v, want the name", got)
	}
	if got := names.Release(second.Key); got != nil {
		t.Errorf("releasing the only claimant affects %v, want nobody", got)
	}
}

func TestTwoClaimantsOfANameDoNotEnqueueEachOtherForever(t *testing.T) {
	var names decision.Names
	first, second := candidate("c1", "a", older, "api.example.com"), candidate("c2", "b", younger, "api.example.com")
	names.Resolve(domain, first)
	names.Resolve(domain, second)
	for _, c := range []decision.Candidate{first, second, first} {
		if got := names.Resolve(domain, c).Affected; got != nil {
			t.Errorf("%s has changed nothing, but affects %v", c.Key, got)
		}
	}
	first.Created = younger.Add(time.Hour)
	if got := names.Resolve(domain, first).Affected; !slices.Equal(got, []model.Key{second.Key}) {
		t.Errorf("getting younger affects %v, want the second", got)
	}
	first = holding(first)
	if got := names.Resolve(domain, first).Affected; !slices.Equal(got, []model.Key{second.Key}) {
		t.Errorf("being on record affects %v, want the second", got)
	}
	first.Held = append([]string{"gone.example.com"}, first.Held...)
	names.Resolve(domain, first) // it keeps one more name
	for _, c := range []decision.Candidate{second, first, second} {
		if got := names.Resolve(domain, c).Affected; got != nil {
			t.Errorf("%s has changed nothing, but affects %v", c.Key, got)
		}
	}
}

func TestAHolderThatGivesUpANameNoLongerHoldsIt(t *testing.T) {
	var names decision.Names
	holder, other := holding(
		candidate("c1", "a", younger, "api.example.com"),
	), candidate("c2", "b", older, "api.example.com")
	names.Resolve(domain, holder)
	names.Resolve(domain, other)
	holder.ExtraNames = nil
	names.Resolve(domain, holder)
	if r := names.Resolve(domain, other); len(r.Cluster.ExtraNames) != 0 || len(r.Refused) != 1 {
		t.Errorf("the name is on record for another one still, and is given away: %+v", r)
	}
	holder.Held = nil // the record has been written
	if got := names.Resolve(domain, holder).Affected; !slices.Equal(got, []model.Key{other.Key}) {
		t.Errorf("giving up a name affects %v, want the other", got)
	}
	if got := names.Resolve(domain, other).Cluster.ExtraNames; !slices.Equal(got, []string{"api.example.com"}) {
		t.Errorf("the other now has %v, want the name", got)
	}
}

func TestACandidateThatIsNoLongerServedGivesUpItsExtraNames(t *testing.T) {
	var names decision.Names
	// The first two claim one id; the second is not served, and so the third holds the name.
	first, second, third := candidate("c1", "a", older), candidate(
		"c2", "a", younger, "api.example.com",
	), candidate("c3", "c", younger.Add(1), "api.example.com")
	for _, c := range []decision.Candidate{third, second, first} {
		names.Resolve(domain, c)
	}
	if got := names.Resolve(domain, third).Cluster.ExtraNames; !slices.Equal(got, []string{"api.example.com"}) {
		t.Errorf("the third has %v, want the name", got)
	}
	if got := names.Release(first.Key); !slices.Equal(got, []model.Key{second.Key, third.Key}) {
		t.Errorf("the end of the first affects %v, want both others", got)
	}
	if got := names.Resolve(domain, second); got.Fatal != nil ||
		!slices.Equal(got.Cluster.ExtraNames, []string{"api.example.com"}) {
		t.Errorf("the second has %v, %v, want the name", got.Cluster.ExtraNames, got.Fatal)
	}
	if got := names.Resolve(domain, third).Cluster.ExtraNames; len(got) != 0 {
		t.Errorf("the third still has %v", got)
	}
	if got := names.Resolve(domain, first).Affected; !slices.Equal(got, []model.Key{second.Key, third.Key}) {
		t.Errorf("the first affects %v, want both others", got)
	}
	if got := names.Resolve(domain, third).Cluster.ExtraNames; len(got) != 1 {
		t.Error("the third did not get the name back")
	}
}

// TestADecisionIsHeldBeforeItIsRecorded: the record is written after the decision, and a claim in between must not
// undo it.
func TestADecisionIsHeldBeforeItIsRecorded(t *testing.T) {
	var n decision.Names
	now := time.Now()
	first, second := candidate("b", "id", now, "api.shop.example"), candidate(
		"a", "id", now.Add(-time.Hour), "api.shop.example",
	)
	if r := n.Decide(domain, first); r.Fatal != nil || !r.HoldsID || len(r.Cluster.ExtraNames) != 1 {
		t.Fatalf("%+v", r)
	}
	if r := n.Decide(domain, second); r.Fatal == nil || r.HoldsID {
		t.Errorf("an older claimant gets what was given before: %+v", r)
	}
	if r := n.Resolve(domain, first); r.Fatal != nil || !r.HoldsID || len(r.Cluster.ExtraNames) != 1 {
		t.Errorf("the holder has lost it: %+v", r)
	}
	n.Release(first.Key)
	if r := n.Decide(domain, second); r.Fatal != nil || !r.HoldsID || len(r.Cluster.ExtraNames) != 1 {
		t.Errorf("what was given up is not given to the other one: %+v", r)
	}
	if r := n.Decide(domain, first); r.Fatal == nil || r.HoldsID {
		t.Errorf("what was given up is held still: %+v", r)
	}
}

// TestARecordedNameIsGivenToNoOtherTunnel: otherwise a user of one namespace could pause a Cluster, drop a name, wait
// until another Tunnel has it on record, and claim it again with an older record.
func TestARecordedNameIsGivenToNoOtherTunnel(t *testing.T) {
	const name = "api.shop.example"
	hostile, victim := holding(candidate("c1", "a", older, name)), candidate("c2", "b", younger, name)
	given := hostile
	given.ExtraNames = nil
	for how, first := range map[string]func(n *decision.Names){
		"it no longer claims the name":  func(n *decision.Names) { n.Resolve(domain, given) },
		"it claims nothing":             func(n *decision.Names) { n.Reserve(domain, hostile) },
		"it claims its id alone":        func(n *decision.Names) { c := given; c.Unserved = true; n.Resolve(domain, c) },
		"it is not to be served at all": func(n *decision.Names) { c := given; c.APIServer.Port = 0; n.Resolve(domain, c) },
	} {
		t.Run(how, func(t *testing.T) {
			var n decision.Names
			first(&n)
			if r := n.Decide(domain, victim); r.Fatal != nil || len(r.Cluster.ExtraNames) != 0 {
				t.Errorf("the name has two holders on record: %+v", r)
			}
			if holder, held := n.Holder(name); !held || holder != hostile.Key {
				t.Errorf("the holder is %v, %v", holder, held)
			}
			if r := n.Decide(domain, hostile); len(r.Cluster.ExtraNames) != 1 {
				t.Errorf("it has lost a name that is on record for it: %+v", r)
			}
			n.Release(hostile.Key)
			if r := n.Decide(domain, victim); len(r.Cluster.ExtraNames) != 1 {
				t.Errorf("a name without a holder is given to none: %+v", r)
			}
		})
	}
}
