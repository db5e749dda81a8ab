package model

import (
	"cmp"
	"fmt"
	"slices"
	"sync"
	"time"
)

// Candidate is what the objects of one workload cluster say, before anything is checked.
type Candidate struct {
	Key        Key
	Created    time.Time // of the Tunnel
	ID         string
	ExtraNames []string
	APIServer  Endpoint
}

// Resolution is what becomes of a Candidate.
type Resolution struct {
	Cluster  WorkloadCluster // to be served, if Fatal is nil: only with the names that it has a right to
	Fatal    *FieldError     // why nothing can be served
	Refused  []*FieldError   // extra names that are left out
	Affected []Key           // other candidates whose own Resolution may have changed by this one, in order
}

// Names decides who keeps a name that several workload clusters claim: the oldest, and of two of one age the first in
// the order of namespace/name. Every process that has seen the same objects decides alike, in whatever order it saw
// them. Its zero value is ready; it may be used by several goroutines.
type Names struct {
	mu     sync.Mutex
	claims map[string][]claim // by name, best right first
	held   map[Key][]string   // by claimant: what it claims
}

type claim struct {
	key     Key
	created time.Time
}

// Resolve checks a candidate, records the names that it claims in place of those that it claimed before, and returns
// what is to be served. A candidate that has no right to its hostname or its id is not served; one that has no right
// to an extra name is served without it.
func (n *Names) Resolve(d TunnelDomain, c Candidate) Resolution {
	w := WorkloadCluster{Key: c.Key, Created: c.Created, ID: c.ID, APIServer: c.APIServer}
	hostname, err := d.Hostname(c.Key)
	if err != nil {
		return Resolution{Cluster: w, Fatal: asFieldError(err), Affected: n.Release(c.Key)}
	}
	w.Hostname = hostname
	if err := w.Validate(); err != nil {
		return Resolution{Cluster: w, Fatal: asFieldError(err), Affected: n.Release(c.Key)}
	}
	good, bad := d.ValidateExtraNames(c.ExtraNames)
	id := d.TunnelID(c.ID)
	owner, affected := n.claim(claim{c.Key, c.Created}, append([]string{hostname, id}, good...))
	r := Resolution{Cluster: w, Refused: bad, Affected: affected}
	switch {
	case owner[hostname] != c.Key:
		r.Fatal = taken("metadata.name", c.Key.Name, fmt.Sprintf("gives the tunnel hostname %s", hostname), owner[hostname], "rename one of the two Clusters")
	case owner[id] != c.Key:
		r.Fatal = taken("spec.id", c.ID, "", owner[id], "delete this Tunnel and let the controller choose another id")
	}
	for i, name := range c.ExtraNames {
		switch holder, claimed := owner[name]; {
		case !claimed || slices.Contains(r.Cluster.ExtraNames, name):
		case holder == c.Key:
			r.Cluster.ExtraNames = append(r.Cluster.ExtraNames, name)
		default:
			r.Refused = append(r.Refused, taken(ExtraNameField(i), name, "", holder, "remove it from one of the two"))
		}
	}
	return r
}

// Release gives up every name that a workload cluster claims, and returns the others that claim one of them.
func (n *Names) Release(key Key) (affected []Key) {
	_, affected = n.claim(claim{key: key}, nil)
	return affected
}

// claim replaces what a claimant claims. It returns the owner of each claimed name, and every other claimant of a name
// that was or is claimed; none where nothing has changed, or two that claim one name would call each other for ever.
func (n *Names) claim(c claim, names []string) (owner map[string]Key, affected []Key) {
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.claims == nil {
		n.claims, n.held = map[string][]claim{}, map[Key][]string{}
	}
	if n.holds(c, names) {
		return n.owners(names), nil
	}
	others := map[Key]bool{}
	for _, name := range n.held[c.key] {
		n.drop(name, c.key)
		n.note(others, name, c.key)
	}
	delete(n.held, c.key)
	for _, name := range names {
		n.claims[name] = insert(n.claims[name], c)
		n.note(others, name, c.key)
	}
	if len(names) > 0 {
		n.held[c.key] = names
	}
	for key := range others {
		affected = append(affected, key)
	}
	slices.SortFunc(affected, func(a, b Key) int { return cmp.Compare(a.String(), b.String()) })
	return n.owners(names), affected
}

// holds says whether a claimant claims exactly these names already.
func (n *Names) holds(c claim, names []string) bool {
	same := func(have claim) bool { return have.key == c.key && have.created.Equal(c.created) }
	return slices.Equal(n.held[c.key], names) && (len(names) == 0 || slices.ContainsFunc(n.claims[names[0]], same))
}

// owners returns who keeps each of these names, all of which somebody claims.
func (n *Names) owners(names []string) map[string]Key {
	owner := make(map[string]Key, len(names))
	for _, name := range names {
		owner[name] = n.claims[name][0].key
	}
	return owner
}

// drop removes one claimant of a name.
func (n *Names) drop(name string, key Key) {
	left := slices.DeleteFunc(n.claims[name], func(c claim) bool { return c.key == key })
	if len(left) == 0 {
		delete(n.claims, name)
		return
	}
	n.claims[name] = left
}

// note adds every claimant of a name but one to a set.
func (n *Names) note(set map[Key]bool, name string, but Key) {
	for _, c := range n.claims[name] {
		if c.key != but {
			set[c.key] = true
		}
	}
}

// insert adds a claim, or finds it there, and keeps the one with the best right first.
func insert(claims []claim, c claim) []claim {
	if slices.ContainsFunc(claims, func(have claim) bool { return have.key == c.key }) {
		return claims
	}
	claims = append(claims, c)
	slices.SortFunc(claims, func(a, b claim) int {
		return cmp.Or(a.created.Compare(b.created), cmp.Compare(a.key.String(), b.key.String()))
	})
	return claims
}

func taken(field, value, what string, by Key, cure string) *FieldError {
	problem := fmt.Sprintf("which the older Tunnel %s has", by)
	if what != "" {
		problem = what + ", " + problem
	} else {
		problem = "is a name " + problem
	}
	return &FieldError{Field: field, Value: value, Problem: problem, Cure: cure, Taken: true}
}

// asFieldError unwraps the errors of this package, which all are of that type where a field is at fault.
func asFieldError(err error) *FieldError {
	if fe, ok := err.(*FieldError); ok { //nolint:errorlint // built in this package, never wrapped
		return fe
	}
	return &FieldError{Field: "spec", Problem: err.Error(), Cure: "correct it"}
}
