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

// kind is the state of an edge for one type.
type kind struct {
	asked    bool    // a request has come
	first    bool    // and no response was sent yet: one is sent in any case
	all      bool    // the edge subscribes to all resources; single ones are not served
	waiting  bool    // the edge has answered the last response
	stale    bool    // resources may have changed since the last response
	known    []known // the slice is never changed in place
	requests uint64  // number of requests
}

// due reports whether there may be something to send now.
func (k kind) due() bool { return k.waiting && k.stale }

// known is a resource that an edge has.
type known struct {
	name    string
	version [32]byte // its hash
}

// request is the content of an edge's request for one type.
type request struct {
	have        []known // the resources that the edge has; only used in the first request
	subscribes  bool
	unsubscribe map[string]bool
}

// readRequest decodes a request. It returns a gRPC status for a request that no edge sends.
func readRequest(r *discoveryv3.DeltaDiscoveryRequest) (request, error) {
	if n := len(r.GetInitialResourceVersions()) + len(r.GetResourceNamesSubscribe()) + len(
		r.GetResourceNamesUnsubscribe()); n > maxNames {
		return request{}, status.Errorf(codes.InvalidArgument, "the request lists %d names, more than %d", n, maxNames)
	}
	if err := checkNames(r); err != nil {
		return request{}, err
	}
	req := request{subscribes: len(r.GetResourceNamesSubscribe()) > 0, unsubscribe: set(r.GetResourceNamesUnsubscribe())}
	for name, version := range r.GetInitialResourceVersions() {
		have := known{name: name}
		if hash, err := hex.DecodeString(version); err == nil && len(hash) == len(have.version) {
			have.version = [32]byte(hash)
		}
		req.have = append(req.have, have)
	}
	return req, nil
}

// apply updates the state of an edge with a request.
func (k *kind) apply(req request) {
	k.waiting = true
	k.requests++
	if !k.asked {
		k.asked, k.first, k.all, k.stale = true, true, true, true
		k.known = req.have
	} else if req.subscribes && !k.all {
		k.all, k.stale = true, true
	}
	if len(req.unsubscribe) == 0 {
		return
	}
	k.stale = true
	if req.unsubscribe["*"] {
		k.all = false
	}
	// Another slice, because a job may still use the current one. The edge has removed these resources.
	k.known = slices.DeleteFunc(slices.Clone(k.known), func(have known) bool { return req.unsubscribe[have.name] })
}

// difference returns a response with the changes from the resources that an edge has, before, to all, and the
// resources that the edge has after it.
func difference(
	typeURL string, all map[string]types.Resource, before []known,
) (*discoveryv3.DeltaDiscoveryResponse, []known, error) {
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
			response.Resources = append(
				response.Resources,
				&discoveryv3.Resource{Name: name, Version: hash, Resource: &anypb.Any{TypeUrl: typeURL, Value: value}},
			)
		}
		delete(had, name)
	}
	response.RemovedResources = slices.Sorted(maps.Keys(had))
	return response, now, nil
}
