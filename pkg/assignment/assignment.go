// Package assignment decides which gateways have the reverse tunnels of a tunnel id. In go the id, the gateways of an
// installation and how many of them a tunnel id has; out come these gateways. xds-servers use it for what edges dial,
// and gateway-agents for where they forward clients. It knows neither Kubernetes nor Envoy.
//
// The result depends on nothing else, so all programs get the same one without a query. It must stay the same in all
// versions, because programs of several versions run together during an upgrade.
package assignment

import (
	"cmp"
	"hash/fnv"
	"slices"

	"github.com/fairlead/fairlead/pkg/model"
)

// Of returns the gateways to which the edges of a tunnel id (Tunnel.spec.id) keep reverse tunnels, in the order of
// gateways. count is their number; if it is 0, or not less than the number of gateways, Of returns all of them.
//
// Each id ranks the gateways by a hash of both names and has the first ones (rendezvous hashing: Thaler and
// Ravishankar, "Using name-based mappings to increase hit rates", 1998). So a gateway that joins or leaves changes only
// the ids that have it.
//
// While gateways join or leave, the result consists of the gateways before and after the change: an edge keeps its
// reverse tunnels until the new ones are open, and a client can be forwarded to either.
func Of(id string, count int, gateways []model.Gateway) []model.Gateway {
	if count <= 0 || count >= len(gateways) {
		return gateways
	}
	ranked := slices.Clone(gateways)
	scores := make(map[string]uint64, len(gateways))
	for _, g := range gateways {
		scores[g.Name] = score(id, g.Name)
	}
	slices.SortFunc(ranked, func(a, b model.Gateway) int {
		return cmp.Or(cmp.Compare(scores[b.Name], scores[a.Name]), cmp.Compare(a.Name, b.Name))
	})
	has := make(map[string]bool, count)
	before, after := count, count
	for _, g := range ranked {
		if !g.Joining && before > 0 {
			before--
			has[g.Name] = true
		}
		if !g.Leaving && after > 0 {
			after--
			has[g.Name] = true
		}
	}
	return slices.DeleteFunc(slices.Clone(gateways), func(g model.Gateway) bool { return !has[g.Name] })
}

// score returns the weight of a gateway for an id: FNV-1a of both names, and the finalizer of MurmurHash3, because
// FNV-1a alone ranks names that differ in the last byte by that byte.
func score(id, gateway string) uint64 {
	sum := fnv.New64a()
	_, _ = sum.Write([]byte(id + "/" + gateway))
	h := sum.Sum64()
	h = (h ^ h>>33) * 0xff51afd7ed558ccd
	h = (h ^ h>>33) * 0xc4ceb9fe1a85ec53
	return h ^ h>>33
}
