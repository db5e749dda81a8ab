package source

import (
	"cmp"
	"fmt"
	"maps"
	"slices"

	"github.com/fairlead/fairlead/pkg/model"
)

// records are the translated workload clusters, and which of them is on record for each name and id. The controller
// grants each name and each id to one Tunnel alone. Should two Tunnels have one on record, as after a backup of their
// status was restored, none of them is served by it until the controller has corrected that: an xds-server does not
// decide. It is not safe for concurrent use.
type records struct {
	domain   model.TunnelDomain
	clusters map[model.Key]model.WorkloadCluster
	holders  map[string]map[model.Key]bool // by name; ids as DNS names
}

func newRecords(d model.TunnelDomain) *records {
	return &records{domain: d, clusters: map[model.Key]model.WorkloadCluster{}, holders: map[string]map[model.Key]bool{}}
}

// names are those that belong to one workload cluster alone. What is withheld has none.
func (r *records) names(w model.WorkloadCluster) []string {
	if w.Withheld || w.ID == "" {
		return nil
	}
	return append(w.Names(), r.domain.TunnelID(w.ID))
}

// set replaces what is on record for one key, and returns the other keys that share a name with it or did so before.
func (r *records) set(w model.WorkloadCluster) (shared []model.Key) {
	before, after := r.names(r.clusters[w.Key]), r.names(w)
	for _, name := range before {
		if delete(r.holders[name], w.Key); len(r.holders[name]) == 0 {
			delete(r.holders, name)
		}
	}
	others := map[model.Key]bool{}
	for _, name := range slices.Concat(before, after) {
		maps.Copy(others, r.holders[name])
	}
	for _, name := range after {
		if r.holders[name] == nil {
			r.holders[name] = map[model.Key]bool{}
		}
		r.holders[name][w.Key] = true
	}
	r.clusters[w.Key] = w
	delete(others, w.Key)
	return slices.SortedFunc(maps.Keys(others), func(a, b model.Key) int { return cmp.Compare(a.String(), b.String()) })
}

// remove forgets one key, and returns the others that shared a name with it.
func (r *records) remove(key model.Key) (shared []model.Key) {
	shared = r.set(model.WorkloadCluster{Key: key})
	delete(r.clusters, key)
	return shared
}

// served is what is on record for a key without the names that another key has too. Without its own hostname or id the
// workload cluster is withheld. The error names what is shared.
func (r *records) served(key model.Key) (model.WorkloadCluster, error) {
	w := r.clusters[key]
	if w.Withheld {
		return w, nil
	}
	unique := func(name string) bool { return len(r.holders[name]) <= 1 }
	if !unique(w.Hostname) || !unique(r.domain.TunnelID(w.ID)) {
		return model.WorkloadCluster{Key: key, ID: w.ID, Revoked: w.Revoked, Withheld: true},
			fmt.Errorf("the hostname or the id is also recorded for another Tunnel: %s", r.sharing(key))
	}
	extra := slices.DeleteFunc(slices.Clone(w.ExtraNames), func(name string) bool { return !unique(name) })
	if len(extra) == len(w.ExtraNames) {
		return w, nil
	}
	w.ExtraNames = extra
	return w, fmt.Errorf("an extra name is also recorded for another Tunnel: %s", r.sharing(key))
}

// sharing are the other keys that share a name with this one, in order.
func (r *records) sharing(key model.Key) []model.Key {
	others := map[model.Key]bool{}
	for _, name := range r.names(r.clusters[key]) {
		maps.Copy(others, r.holders[name])
	}
	delete(others, key)
	return slices.SortedFunc(maps.Keys(others), func(a, b model.Key) int { return cmp.Compare(a.String(), b.String()) })
}
