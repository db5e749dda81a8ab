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

// kind is the state of one type of an edge.
type kind struct {
	asked    bool    // the edge has subscribed
	first    bool    // the first response is due, even if it is empty
	all      bool    // it subscribes to all resources, which is the only supported subscription
	waiting  bool    // it has answered the last response
	stale    bool    // something may have changed since the last response
	known    []known // not changed in place
	requests uint64  // number of requests
}

// due reports whether there may be something to send now.
func (k kind) due() bool { return k.waiting && k.stale }

// known is a resource that an edge has.
type known struct {
	name    string
	version [32]byte // its hash
}

// request is the content of a request about one type.
type request struct {
	have        []known // the edge's resources; only the first request has them
	subscribes  bool
	unsubscribe map[string]bool
}

// readRequest parses a request. It returns a gRPC status for a request that no edge sends.
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

// apply applies a request to the state of a type.
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
	// A copy, because the slice may be in use: the edge no longer has these resources.
	k.known = slices.DeleteFunc(slices.Clone(k.known), func(have known) bool { return said.unsubscribe[have.name] })
}

// difference returns the response that turns the resources that an edge has into all, and the resources that it has
// then.
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
