package xds

import (
	"fmt"
	"slices"
	"strings"

	"github.com/envoyproxy/go-control-plane/pkg/cache/types"
	resourcev3 "github.com/envoyproxy/go-control-plane/pkg/resource/v3"

	"github.com/fairlead/fairlead/pkg/envoy"
	"github.com/fairlead/fairlead/pkg/model"
)

// networks are the networks that apiservers may use. The lock of the server guards them.
type networks struct {
	of       map[string]map[model.Key]bool // the keys of the networks, by Network.EgressID
	stale    map[string]bool               // egress ids whose scope may have changed
	forwards map[string]int                // the numbers of networks, by the id of the tunnel to their apiserver
}

func newNetworks() networks {
	return networks{map[string]map[model.Key]bool{}, map[string]bool{}, map[string]int{}}
}

// replace records that a workload cluster has replaced another one of the same key. The zero value stands for none.
func (n *networks) replace(old, wc model.WorkloadCluster) {
	if id := egressOf(old); id != "" {
		n.stale[id] = true
		if delete(n.of[id], old.Key); len(n.of[id]) == 0 {
			delete(n.of, id)
		}
	}
	id := egressOf(wc)
	if id == "" {
		return
	}
	n.stale[id] = true
	if wc.Egress {
		return
	}
	if n.of[id] == nil {
		n.of[id] = map[model.Key]bool{}
	}
	n.of[id][wc.Key] = true
}

// egressOf returns the egress id whose scope depends on a workload cluster; empty: none does.
func egressOf(wc model.WorkloadCluster) string {
	switch {
	case wc.Prepared:
		return ""
	case wc.Egress:
		return wc.ID
	case wc.Network != nil:
		return wc.Network.EgressID
	}
	return ""
}

// replaceNetwork records that a workload cluster has replaced another one of the same key; the zero value stands for
// none. Gateways use the tunnel to the apiserver under one more name for each network, so its edges may need more
// reverse tunnels. The caller holds s.mu.
func (s *Server) replaceNetwork(old, wc model.WorkloadCluster) {
	s.networks.replace(old, wc)
	before, now := old.ForwardsBy(), wc.ForwardsBy()
	if before == now {
		return
	}
	for id, n := range map[string]int{before: -1, now: 1} {
		if id == "" {
			continue
		}
		if s.networks.forwards[id] += n; s.networks.forwards[id] == 0 {
			delete(s.networks.forwards, id)
		}
		if t := s.tunnels[id]; t != nil {
			for e := range t.streams {
				e.update()
			}
		}
	}
}

// setScopes builds the scopes that may have changed, and adds them to changes. An egress id has a scope while its
// workload cluster is served, even without a network: its apiservers then get an answer to each request. The caller
// holds s.publishing.
func (s *Server) setScopes(changes changes) {
	for id := range s.networks.stale {
		name := envoy.ScopeName(s.domain, id)
		changes.scopes[name] = nil
		if t := s.tunnels[id]; t != nil && t.cluster.Egress && !t.cluster.Prepared {
			if scope := s.scope(t.cluster, name); scope != nil {
				changes.scopes[name] = scope
			}
		}
	}
	clear(s.networks.stale)
}

// scope builds the scope of an egress id. It may refer to an Envoy cluster that is left out: Envoy then answers
// requests for this network with 503, and the other networks are not affected. It returns nil if the result has another
// name.
func (s *Server) scope(egress model.WorkloadCluster, name string) types.Resource {
	var all []model.WorkloadCluster
	var errs []error
	for key := range s.networks.of[egress.ID] {
		// All Tunnels of a Cluster are in its namespace.
		if wc := s.clusters[key]; wc.Network.Cluster.Namespace != egress.Key.Namespace {
			errs = append(errs, fmt.Errorf("checking network %s: it is for apiservers of namespace %s",
				key, egress.Key.Namespace))
		} else {
			all = append(all, wc)
		}
	}
	slices.SortFunc(all, func(a, b model.WorkloadCluster) int { return strings.Compare(a.Key.String(), b.Key.String()) })
	scope := envoy.NetworkScope(s.inst, egress.ID, all)
	if scope.GetName() != name {
		errs = append(errs, fmt.Errorf("checking resource %q: its name is not %s", scope.GetName(), name))
		scope = nil
	}
	s.leftOut(resourcev3.ScopedRouteType, errs, "cluster", egress.Key.String())
	if scope == nil {
		return nil
	}
	return scope
}

// keyOf returns the workload cluster that a shared resource of gateways belongs to; zero: none. The caller holds s.mu.
func (s *Server) keyOf(typeURL, name string) model.Key {
	if typeURL != resourcev3.ScopedRouteType {
		return s.holders[name]
	}
	if id, ok := s.domain.ParseEgressID(name); ok && s.tunnels[id] != nil {
		return s.tunnels[id].cluster.Key
	}
	return model.Key{}
}
