package decision

import (
	"cmp"
	"maps"
	"slices"
	"time"

	"github.com/fairlead/fairlead/pkg/model"
)

// Names decides which of several claimants, one per workload cluster, holds a name. The claimant on record for the
// name holds it, so that editing an object never takes away a name that is served. A name that is on record but no
// longer claimed by its holder stays reserved until it is removed from the record: records and specs are written at
// different times, and a holder that claims the name again must not find another claimant on record. Among several
// holders, or without a holder, the oldest claimant has the name, and among claimants of the same age the first in the
// order of namespace/name. A claimant that does not hold its own hostname and id holds no extra name.
//
// The result of Resolve does not depend on the order in which objects are observed. Decide grants names in the order
// of its calls: a name that it granted counts as recorded. The zero value is ready for use. Names is not safe for
// concurrent use.
type Names struct {
	claims    map[string][]model.Key // by name, best right first
	claimants map[model.Key]claimant // claimants with at least one claim or reserved name
}

// claimant is one workload cluster and its claims. An extra name of one claimant is never a base name of another: base
// names are below the tunnel domain, extra names are not.
type claimant struct {
	key     model.Key
	created time.Time
	base    []string        // hostname and id: without both it is not served
	extra   []string        // further names
	kept    []string        // on record and no longer claimed: reserved, and served to no claimant
	held    map[string]bool // the names that it is on record for
	granted map[string]bool // the names that Decide granted, whether or not they are on record yet
}

// has reports whether a name is this claimant's by a record or by a decision.
func (c claimant) has(name string) bool { return c.held[name] || c.granted[name] }

// right ranks the claimant's right to a name: 2 if it holds and claims the name, 1 if it only keeps it, else 0.
func (c claimant) right(name string) int {
	switch {
	case c.keeps(name):
		return 1
	case c.has(name):
		return 2
	}
	return 0
}

// keeps reports whether a name is on record for this claimant but no longer claimed.
func (c claimant) keeps(name string) bool { return slices.Contains(c.kept, name) }

// names returns all names that the claimant claims or keeps.
func (c claimant) names() []string { return slices.Concat(c.base, c.extra, c.kept) }

// equal reports whether both claim the same names with the same right.
func (c claimant) equal(other claimant) bool {
	return c.created.Equal(other.created) && slices.Equal(c.base, other.base) && slices.Equal(c.extra, other.extra) &&
		maps.Equal(c.held, other.held)
}

// Release gives up every name that a workload cluster claims. It returns the other claimants whose rights may have
// changed.
func (n *Names) Release(key model.Key) (affected []model.Key) {
	_, affected = n.claim(claimant{key: key})
	return affected
}

// Holder returns the claimant that holds or keeps an extra name, if there is one. It must not be called for a base
// name.
func (n *Names) Holder(name string) (holder model.Key, held bool) {
	i := slices.IndexFunc(
		n.claims[name], func(key model.Key) bool { return n.claimants[key].keeps(name) || n.served(key) },
	)
	if i < 0 {
		return model.Key{}, false
	}
	return n.claims[name][i], true
}

// Reserve keeps the recorded names of a claimant that claims nothing. Without a record it is equivalent to Release.
func (n *Names) Reserve(d model.TunnelDomain, c Candidate) (affected []model.Key) {
	_, affected = n.claim(claimant{key: c.Key, created: c.Created, held: held(d, c)})
	return affected
}

// claim replaces the claims of a claimant. It returns the owner of each claimed name, and all other claimants whose
// rights may have changed. affected is empty if nothing has changed; otherwise two claimants of one name would enqueue
// each other for ever.
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
	n.addAffected(others, was)
	n.drop(was)
	n.insert(c)
	n.addAffected(others, c)
	delete(others, c.key)
	affected = slices.SortedFunc(
		maps.Keys(others), func(a, b model.Key) int { return cmp.Compare(a.String(), b.String()) },
	)
	return n.owners(c), affected
}

// grant marks the names that a claimant holds now as its own, before the caller has recorded them. Otherwise an older
// claimant that is not on record could be given a name between a decision and its record. It changes the rights of no
// other claimant.
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

// owners returns the owner of each name of a claimant. An extra name that no claimant may have has no owner.
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

// served reports whether a claimant has a right to each of its base names.
func (n *Names) served(key model.Key) bool {
	return !slices.ContainsFunc(n.claimants[key].base, func(name string) bool { return n.claims[name][0] != key })
}

// addAffected adds to set the claimants whose rights may change with c: all that claim one of its names, and all that
// claim an extra name of a claimant with the same hostname or id, because c decides whether that claimant is served.
func (n *Names) addAffected(set map[model.Key]bool, c claimant) {
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

// insert adds all claims of a claimant that has none, in order of right.
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

// compare orders claimants by their right to a name, best right first.
func compare(name string, a, b claimant) int {
	return cmp.Or(
		cmp.Compare(b.right(name), a.right(name)), a.created.Compare(b.created), cmp.Compare(a.key.String(), b.key.String()),
	)
}
