package decision

import (
	"cmp"
	"maps"
	"slices"
	"time"

	"github.com/fairlead/fairlead/pkg/model"
)

// Names resolves which of several workload clusters has a name: the one on record for it, so that editing an object takes
// no name that is served. A name on record that its holder no longer claims stays reserved until it is removed from the
// record: records and specs are written at different times, and a holder that claims the name again must not find
// another one on record. Among several holders, or without one, the oldest claimant has the name, and of two of the same
// age the first in the order of namespace/name. A claimant without a right to its own hostname or id has no extra name.
//
// The result of Resolve does not depend on the order in which objects are seen. Decide grants names in the order of its
// calls: a name that it granted counts as recorded. The zero value is ready for use. It is not safe for concurrent use.
type Names struct {
	claims    map[string][]model.Key // by name, best right first
	claimants map[model.Key]claimant // those that claim something
}

// claimant is one workload cluster and what it claims. An extra name of one is never a base name of another: base names
// lie below the tunnel domain, extra names don't.
type claimant struct {
	key     model.Key
	created time.Time
	base    []string        // hostname and id: without any of them it is not served
	extra   []string        // further names
	kept    []string        // on record and no longer claimed: reserved, and served to no claimant
	held    map[string]bool // those that it is on record for
	granted map[string]bool // those that Decide gave it, whether or not they are on record yet
}

// has says whether a name is this claimant's by a record or by a decision.
func (c claimant) has(name string) bool { return c.held[name] || c.granted[name] }

// right is how good a claimant's right to a name is: best if it has and claims it, then if it keeps it.
func (c claimant) right(name string) int {
	switch {
	case c.keeps(name):
		return 1
	case c.has(name):
		return 2
	}
	return 0
}

// keeps says whether a name is on record for this claimant and claimed no more.
func (c claimant) keeps(name string) bool { return slices.Contains(c.kept, name) }

// names are all that it claims or keeps.
func (c claimant) names() []string { return slices.Concat(c.base, c.extra, c.kept) }

// equal says whether the other claims the same with the same right.
func (c claimant) equal(other claimant) bool {
	return c.created.Equal(other.created) && slices.Equal(c.base, other.base) && slices.Equal(c.extra, other.extra) &&
		maps.Equal(c.held, other.held)
}

// Release gives up every name that a workload cluster claims, and returns the others whose rights may have changed by
// it.
func (n *Names) Release(key model.Key) (affected []model.Key) {
	_, affected = n.claim(claimant{key: key})
	return affected
}

// Holder returns which claimant has or keeps a name that is no base name, if any does.
func (n *Names) Holder(name string) (holder model.Key, held bool) {
	i := slices.IndexFunc(n.claims[name], func(key model.Key) bool { return n.claimants[key].keeps(name) || n.served(key) })
	if i < 0 {
		return model.Key{}, false
	}
	return n.claims[name][i], true
}

// Reserve has a claimant that claims nothing keep what is on record for it. Without a record it is Release.
func (n *Names) Reserve(d model.TunnelDomain, c Candidate) (affected []model.Key) {
	_, affected = n.claim(claimant{key: c.Key, created: c.Created, held: held(d, c)})
	return affected
}

// claim replaces what a claimant claims. It returns the owner of each claimed name, and everybody else whose rights may
// have changed; nobody where nothing has changed, or two that claim one name would call each other for ever.
func (n *Names) claim(c claimant) (owner map[string]model.Key, affected []model.Key) {
	if n.claims == nil {
		n.claims, n.claimants = map[string][]model.Key{}, map[model.Key]claimant{}
	}
	for _, name := range slices.Sorted(maps.Keys(c.held)) {
		if !slices.Contains(c.base, name) && !slices.Contains(c.extra, name) {
			c.kept = append(c.kept, name)
		}
	}
	was := n.claimants[c.key]
	c.granted = maps.Clone(was.granted)
	maps.DeleteFunc(c.granted, func(name string, _ bool) bool {
		return !slices.Contains(c.base, name) && !slices.Contains(c.extra, name)
	})
	if was.equal(c) {
		return n.owners(c), nil
	}
	others := map[model.Key]bool{}
	n.note(others, was)
	n.drop(was)
	n.insert(c)
	n.note(others, c)
	delete(others, c.key)
	affected = slices.SortedFunc(maps.Keys(others), func(a, b model.Key) int { return cmp.Compare(a.String(), b.String()) })
	return n.owners(c), affected
}

// grant notes that the names which a claimant keeps now are its own, before the caller has recorded that. Else another one, older
// but not on record, could be given a name between a decision and its record. It changes the rights of no other claimant.
func (n *Names) grant(key model.Key) {
	c, ok := n.claimants[key]
	if !ok {
		return
	}
	c.granted = map[string]bool{}
	for name, owner := range n.owners(c) {
		if owner == key {
			c.granted[name] = true
		}
	}
	n.claimants[key] = c
	for _, name := range c.names() {
		slices.SortFunc(n.claims[name], func(a, b model.Key) int { return compare(name, n.claimants[a], n.claimants[b]) })
	}
}

// owners returns who keeps each of the names of a claimant. An extra name that nobody may keep has no owner.
func (n *Names) owners(c claimant) map[string]model.Key {
	owner := make(map[string]model.Key, len(c.base)+len(c.extra))
	for _, name := range c.base {
		owner[name] = n.claims[name][0]
	}
	for _, name := range c.extra {
		if holder, held := n.Holder(name); held {
			owner[name] = holder
		}
	}
	return owner
}

// served says whether a claimant has a right to each of its base names.
func (n *Names) served(key model.Key) bool {
	return !slices.ContainsFunc(n.claimants[key].base, func(name string) bool { return n.claims[name][0] != key })
}

// note adds to a set whose rights may change with a claimant: all that claim a name of it, and, because another of the
// same hostname or id is served or not by this one, all that claim an extra name of that other.
func (n *Names) note(set map[model.Key]bool, c claimant) {
	for _, name := range c.names() {
		for _, key := range n.claims[name] {
			set[key] = true
		}
	}
	for _, name := range c.base {
		for _, other := range n.claims[name] {
			for _, extra := range n.claimants[other].extra {
				for _, key := range n.claims[extra] {
					set[key] = true
				}
			}
		}
	}
}

// drop removes all claims of a claimant.
func (n *Names) drop(c claimant) {
	delete(n.claimants, c.key)
	for _, name := range c.names() {
		left := slices.DeleteFunc(n.claims[name], func(key model.Key) bool { return key == c.key })
		if n.claims[name] = left; len(left) == 0 {
			delete(n.claims, name)
		}
	}
}

// insert adds all claims of a claimant that has none, each at its place.
func (n *Names) insert(c claimant) {
	if len(c.names()) == 0 {
		return
	}
	n.claimants[c.key] = c
	for _, name := range c.names() {
		n.claims[name] = append(n.claims[name], c.key)
		slices.SortFunc(n.claims[name], func(a, b model.Key) int { return compare(name, n.claimants[a], n.claimants[b]) })
	}
}

// compare puts the claimant with the better right to a name first.
func compare(name string, a, b claimant) int {
	return cmp.Or(cmp.Compare(b.right(name), a.right(name)), a.created.Compare(b.created), cmp.Compare(a.key.String(), b.key.String()))
}
