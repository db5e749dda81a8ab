package model_test

import (
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/fairlead/fairlead/pkg/model"
)

var (
	older   = time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)
	younger = older.Add(time.Hour)
)

// candidate is a good one; id is filled up to a valid length.
func candidate(name, id string, created time.Time, extra ...string) model.Candidate {
	return model.Candidate{
		Key: model.Key{Namespace: "prod", Name: name}, Created: created,
		ID:         id + strings.Repeat("0", 20-len(id)),
		ExtraNames: extra, APIServer: model.Endpoint{Host: "10.0.0.1", Port: 6443},
	}
}

func TestResolve(t *testing.T) {
	tests := map[string]struct {
		before      []model.Candidate
		in          model.Candidate
		wantFatal   string
		wantNames   []string
		wantRefused []string
	}{
		"a good one is served with all of its names": {
			in:        candidate("c1", "a", older, "api.example.com"),
			wantNames: []string{"c1.prod.tunnels.example.com", "api.example.com"},
		},
		"bad extra names are left out and named by their index": {
			in:          candidate("c1", "a", older, "192.0.2.1", "ok.example.com", "UPPER.example.com", "x.tunnels.example.com", "ok.example.com"),
			wantNames:   []string{"c1.prod.tunnels.example.com", "ok.example.com"},
			wantRefused: []string{"spec.extraNames[0]", "spec.extraNames[2]", "spec.extraNames[3]", "spec.extraNames[4]"},
		},
		"an extra name that an older one has is left out": {
			before:      []model.Candidate{candidate("c1", "a", older, "api.example.com")},
			in:          candidate("c2", "b", younger, "api.example.com"),
			wantNames:   []string{"c2.prod.tunnels.example.com"},
			wantRefused: []string{"spec.extraNames[0]"},
		},
		"the older keeps an extra name although it comes later": {
			before:    []model.Candidate{candidate("c1", "a", younger, "api.example.com")},
			in:        candidate("c2", "b", older, "api.example.com"),
			wantNames: []string{"c2.prod.tunnels.example.com", "api.example.com"},
		},
		"a hostname that an older one has": {
			before:    []model.Candidate{candidate("a.b", "a", older)},
			in:        candidate("a--b", "b", younger),
			wantFatal: "metadata.name",
		},
		"an id that an older one has": {
			before:    []model.Candidate{candidate("c1", "a", older)},
			in:        candidate("c2", "a", younger),
			wantFatal: "spec.id",
		},
		"a name that gives no hostname": {in: candidate(strings.Repeat("c", 64), "a", older), wantFatal: "metadata.name"},
		"an apiserver that is no address": {
			in:        model.Candidate{Key: model.Key{Namespace: "prod", Name: "c1"}, ID: strings.Repeat("a", 20), APIServer: model.Endpoint{Host: "a b", Port: 1}},
			wantFatal: "spec.apiServer",
		},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			var names model.Names
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

func TestResolveTellsWhoElseIsAffected(t *testing.T) {
	var names model.Names
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

func TestTwoClaimantsOfOneNameDoNotCallEachOtherForEver(t *testing.T) {
	var names model.Names
	first, second := candidate("c1", "a", older, "api.example.com"), candidate("c2", "b", younger, "api.example.com")
	names.Resolve(domain, first)
	names.Resolve(domain, second)
	for _, c := range []model.Candidate{first, second, first} {
		if got := names.Resolve(domain, c).Affected; got != nil {
			t.Errorf("%s has changed nothing, but affects %v", c.Key, got)
		}
	}
	first.Created = younger.Add(time.Hour)
	if got := names.Resolve(domain, first).Affected; !slices.Equal(got, []model.Key{second.Key}) {
		t.Errorf("getting younger affects %v, want the second", got)
	}
}
