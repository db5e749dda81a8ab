package source

import (
	"cmp"
	"fmt"
	"maps"
	"slices"

	"github.com/fairlead/fairlead/pkg/model"
)

// records holds the translated workload clusters, and which of them has each name and id on record. The controller
// grants each name and each id to one Tunnel only. If two Tunnels have the same one on record, for example after a
// restore of their status, it is served for neither until the controller has corrected that: an xds-server does not
// decide. It is not safe for concurrent use.
type records struct {
	domain   model.TunnelDomain
	clusters map[model.Key]model.WorkloadCluster
	holders  map[string]map[model.Key]bool // by name; ids are included as DNS names
}

func newRecords(d model.TunnelDomain) *records {
	return &records{domain: d, clusters: map[model.Key]model.WorkloadCluster{}, holders: map[string]map[model.Key]bool{}}
}

// names returns the names that belong to one workload cluster only. A withheld workload cluster has none.
func (r *records) names(w model.WorkloadCluster) []string {
	if w.Withheld || w.ID == "" {
		return nil
	}
	return slices.Concat(w.Names(), claims(w.Network), []string{r.domain.TunnelID(w.ID)})
}

// set replaces the record of one key, and returns the other keys that share or shared a name with it.
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

// remove removes one key, and returns the other keys that shared a name with it.
func (r *records) remove(key model.Key) (shared []model.Key) {
	shared = r.set(model.WorkloadCluster{Key: key})
	delete(r.clusters, key)
	return shared
}

// served returns the record of a key without the names that other keys have too. If its hostname or id is shared, the
// workload cluster is withheld. The error names what is shared.
func (r *records) served(key model.Key) (model.WorkloadCluster, error) {
	w := r.clusters[key]
	if w.Withheld {
		return w, nil
	}
	unique := func(name string) bool { return len(r.holders[name]) <= 1 }
	if !unique(w.Hostname) || !unique(r.domain.TunnelID(w.ID)) {
		withheld := model.WorkloadCluster{Key: key, ID: w.ID, Revoked: w.Revoked, Recorded: w.Recorded, Withheld: true}
		return withheld, fmt.Errorf("the hostname or the id is also recorded for another Tunnel: %s", r.sharing(key))
	}
	if w.Network != nil {
		return r.servedNetwork(w, unique)
	}
	extra := slices.DeleteFunc(slices.Clone(w.ExtraNames), func(name string) bool { return !unique(name) })
	if len(extra) == len(w.ExtraNames) {
		return w, nil
	}
	w.ExtraNames = extra
	return w, fmt.Errorf("an extra name is also recorded for another Tunnel: %s", r.sharing(key))
}

// sharing returns the other keys that share a name with this one, in order.
func (r *records) sharing(key model.Key) []model.Key {
	others := map[model.Key]bool{}
	for _, name := range r.names(r.clusters[key]) {
		maps.Copy(others, r.holders[name])
	}
	delete(others, key)
	return slices.SortedFunc(maps.Keys(others), func(a, b model.Key) int { return cmp.Compare(a.String(), b.String()) })
}
