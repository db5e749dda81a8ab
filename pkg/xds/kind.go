package xds

import (
	"encoding/hex"
	"maps"
	"slices"

	discoveryv3 "github.com/envoyproxy/go-control-plane/envoy/service/discovery/v3"
	"github.com/envoyproxy/go-control-plane/pkg/cache/types"
	cachev3 "github.com/envoyproxy/go-control-plane/pkg/cache/v3"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/types/known/anypb"
)

// kind is what an edge knows of one type.
type kind struct {
	asked    bool    // at all
	first    bool    // and it has had no answer yet: it gets one in any case
	all      bool    // it subscribes to all there are, which is all that can be subscribed to
	waiting  bool    // it has answered what was sent last
	stale    bool    // something may have changed since then
	known    []known // never changed in place
	requests uint64  // how many came
}

// due says whether there may be something to send now.
func (k kind) due() bool { return k.waiting && k.stale }

// known is a resource that an edge has.
type known struct {
	name    string
	version [32]byte // its hash
}

// request is what an edge says of one type.
type request struct {
	have        []known // the resources that it has; of use in the first request alone
	subscribes  bool
	unsubscribe map[string]bool
}

// readRequest reads what a request says. It returns a gRPC status for one that no edge sends.
func readRequest(r *discoveryv3.DeltaDiscoveryRequest) (request, error) {
	if n := len(r.GetInitialResourceVersions()) + len(r.GetResourceNamesSubscribe()) + len(r.GetResourceNamesUnsubscribe()); n > maxNames {
		return request{}, status.Errorf(codes.InvalidArgument, "the request lists %d names, more than %d", n, maxNames)
	}
	if err := checkNames(r); err != nil {
		return request{}, err
	}
	said := request{subscribes: len(r.GetResourceNamesSubscribe()) > 0, unsubscribe: set(r.GetResourceNamesUnsubscribe())}
	for name, version := range r.GetInitialResourceVersions() {
		have := known{name: name}
		if hash, err := hex.DecodeString(version); err == nil && len(hash) == len(have.version) {
			have.version = [32]byte(hash)
		}
		said.have = append(said.have, have)
	}
	return said, nil
}

// apply takes what a request says of what the edge has and wants.
func (k *kind) apply(said request) {
	k.waiting = true
	k.requests++
	if !k.asked {
		k.asked, k.first, k.all, k.stale = true, true, true, true
		k.known = said.have
	} else if said.subscribes && !k.all {
		k.all, k.stale = true, true
	}
	if len(said.unsubscribe) == 0 {
		return
	}
	k.stale = true
	if said.unsubscribe["*"] {
		k.all = false
	}
	// Another slice, for the one that is there may be in use: the edge has these resources no more.
	k.known = slices.DeleteFunc(slices.Clone(k.known), func(have known) bool { return said.unsubscribe[have.name] })
}

// difference is what an edge is to be told of a type, where it knows some resources before, and what it knows then.
func difference(typeURL string, all map[string]types.Resource, before []known) (*discoveryv3.DeltaDiscoveryResponse, []known, error) {
	response := &discoveryv3.DeltaDiscoveryResponse{TypeUrl: typeURL}
	had := make(map[string][32]byte, len(before))
	for _, have := range before {
		had[have.name] = have.version
	}
	now := make([]known, 0, len(all))
	for _, name := range slices.Sorted(maps.Keys(all)) {
		value, err := cachev3.MarshalResource(all[name])
		if err != nil {
			return nil, nil, err
		}
		hash := cachev3.HashResource(value)
		binary, err := hex.DecodeString(hash)
		if err != nil {
			return nil, nil, err
		}
		is := known{name, [32]byte(binary)}
		now = append(now, is)
		if version, has := had[name]; !has || version != is.version {
			response.Resources = append(response.Resources, &discoveryv3.Resource{Name: name, Version: hash, Resource: &anypb.Any{TypeUrl: typeURL, Value: value}})
		}
		delete(had, name)
	}
	response.RemovedResources = slices.Sorted(maps.Keys(had))
	return response, now, nil
}
