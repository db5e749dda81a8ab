package xds

import (
	"encoding/hex"
	"maps"
	"slices"

	discoveryv3 "github.com/envoyproxy/go-control-plane/envoy/service/discovery/v3"
	"github.com/envoyproxy/go-control-plane/pkg/cache/types"
	cachev3 "github.com/envoyproxy/go-control-plane/pkg/cache/v3"
	"google.golang.org/protobuf/types/known/anypb"
)

// kind is what an edge knows of one type.
type kind struct {
	asked   bool // at all
	first   bool // and it has had no answer yet: it gets one in any case
	all     bool // it subscribes to all there are, which is all that can be subscribed to
	waiting bool // it has answered what was sent last
	stale   bool // something may have changed since then
	known   []known
}

// due says whether there may be something to send now.
func (k kind) due() bool { return k.waiting && k.stale }

// known is a resource that an edge has.
type known struct {
	name    string
	version [32]byte // its hash
}

// apply takes what a request says of what the edge has and wants.
func (k *kind) apply(r *discoveryv3.DeltaDiscoveryRequest) {
	k.waiting = true
	if !k.asked {
		k.asked, k.first, k.all, k.stale = true, true, true, true
		for name, version := range r.GetInitialResourceVersions() {
			have := known{name: name}
			if hash, err := hex.DecodeString(version); err == nil && len(hash) == len(have.version) {
				have.version = [32]byte(hash)
			}
			k.known = append(k.known, have)
		}
	} else if len(r.GetResourceNamesSubscribe()) > 0 && !k.all {
		k.all, k.stale = true, true
	}
	for _, name := range r.GetResourceNamesUnsubscribe() {
		k.stale = true
		if name == "*" {
			k.all = false
			continue
		}
		k.known = slices.DeleteFunc(k.known, func(have known) bool { return have.name == name }) // it has it no more
	}
}

// difference is what an edge is to be told of a type, and what it knows then.
func (k *kind) difference(typeURL string, all map[string]types.Resource) (*discoveryv3.DeltaDiscoveryResponse, []known, error) {
	response := &discoveryv3.DeltaDiscoveryResponse{TypeUrl: typeURL}
	had := make(map[string][32]byte, len(k.known))
	for _, have := range k.known {
		had[have.name] = have.version
	}
	now := make([]known, 0, len(all))
	for _, name := range slices.Sorted(maps.Keys(all)) {
		value, err := cachev3.MarshalResource(all[name])
		if err != nil {
			return nil, nil, err
		}
		version := cachev3.HashResource(value)
		hash, err := hex.DecodeString(version)
		if err != nil {
			return nil, nil, err
		}
		is := known{name, [32]byte(hash)}
		now = append(now, is)
		if before, has := had[name]; !has || before != is.version {
			response.Resources = append(response.Resources, &discoveryv3.Resource{Name: name, Version: version, Resource: &anypb.Any{TypeUrl: typeURL, Value: value}})
		}
		delete(had, name)
	}
	response.RemovedResources = slices.Sorted(maps.Keys(had))
	return response, now, nil
}
