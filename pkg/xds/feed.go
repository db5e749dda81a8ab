package xds

import (
	"errors"
	"maps"
	"slices"
	"strconv"
	"strings"
	"sync"

	discoveryv3 "github.com/envoyproxy/go-control-plane/envoy/service/discovery/v3"
	"github.com/envoyproxy/go-control-plane/pkg/cache/types"
	cachev3 "github.com/envoyproxy/go-control-plane/pkg/cache/v3"
	resourcev3 "github.com/envoyproxy/go-control-plane/pkg/resource/v3"
	"google.golang.org/protobuf/types/known/anypb"

	"github.com/fairlead/fairlead/pkg/xds/csds"
	"github.com/fairlead/fairlead/pkg/xds/progress"
)

// remembered is the number of changes that a feed keeps. A stream that is further behind is compared with all
// resources.
const remembered = 4096

// feed holds Envoy clusters that many streams share. It replaces go-control-plane's LinearCache because of the cost of
// a change: for each stream, at each change and each ACK, LinearCache compares all resources with the stream's
// versions and copies these. A feed records what has changed, and processes only that. It keeps resources in the
// encoding that is sent.
type feed struct {
	typeURL string

	mu        sync.Mutex
	resources map[string]*discoveryv3.Resource // immutable
	variants  map[string]*discoveryv3.Resource // of resources, for readers of variants
	last      uint64                           // number of the last change
	changed   []string                         // names of the last changes, the newest at the end
	watches   map[*reader]*watch
}

// reader is the progress of one stream. Its feed's lock guards it.
type reader struct {
	known map[string]string // versions by name; nil: the stream has not subscribed yet
	seen  uint64            // number of the last change that known includes
	// variants is set if the stream gets the variants of resources.
	variants bool
}

// watch is a request that waits for a change.
type watch struct {
	request *discoveryv3.DeltaDiscoveryRequest
	to      chan cachev3.DeltaResponse
}

func newFeed() *feed {
	return &feed{typeURL: resourcev3.ClusterType, resources: map[string]*discoveryv3.Resource{}, watches: map[*reader]*watch{}}
}

// update sets resources and removes others. A resource that is equal to the previous one does not count as changed.
func (f *feed) update(set map[string]types.Resource, gone []string) error {
	var failed error
	encoded := make(map[string]*discoveryv3.Resource, len(set))
	for name, r := range set {
		value, err := cachev3.MarshalResource(r)
		if err != nil {
			failed = errors.Join(failed, err)
			continue
		}
		encoded[name] = &discoveryv3.Resource{Name: name, Version: cachev3.HashResource(value), Resource: &anypb.Any{TypeUrl: f.typeURL, Value: value}}
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	for name, r := range encoded {
		if f.resources[name].GetVersion() != r.GetVersion() {
			f.resources[name] = r
			f.note(name)
		}
	}
	for _, name := range gone {
		if f.resources[name] != nil {
			delete(f.resources, name)
			f.note(name)
		}
	}
	for reader, w := range f.watches {
		f.answer(reader, w, false)
	}
	return failed
}

func (f *feed) note(name string) {
	f.last++
	if f.changed = append(f.changed, name); len(f.changed) >= 2*remembered {
		f.changed = slices.Clone(f.changed[len(f.changed)-remembered:])
	}
}

// watch answers a request as soon as its stream lacks something; it answers the first request immediately. It returns
// a function that cancels the watch.
func (f *feed) watch(by *reader, request *discoveryv3.DeltaDiscoveryRequest, sub cachev3.Subscription, to chan cachev3.DeltaResponse) (cancel func()) {
	f.mu.Lock()
	defer f.mu.Unlock()
	first := by.known == nil
	if first || len(request.GetResourceNamesUnsubscribe()) > 0 {
		by.known, by.seen = maps.Clone(sub.ReturnedResources()), unseen
		if by.known == nil {
			by.known = map[string]string{}
		}
	}
	if sub.IsWildcard() {
		f.watches[by] = &watch{request, to}
		f.answer(by, f.watches[by], first)
	}
	return func() {
		f.mu.Lock()
		defer f.mu.Unlock()
		delete(f.watches, by)
	}
}

// unseen is not the number of a change: all resources are compared.
const unseen = ^uint64(0)

// answer sends what a stream lacks, and removes its watch. If there is nothing to send, it answers only if it must.
func (f *feed) answer(by *reader, w *watch, must bool) {
	response := &discoveryv3.DeltaDiscoveryResponse{TypeUrl: f.typeURL, SystemVersionInfo: strconv.FormatUint(f.last, 10)}
	for _, name := range f.since(by) {
		r, known := f.of(by, name), by.known[name]
		switch _, has := by.known[name]; {
		case r != nil && r.GetVersion() != known:
			by.known[name] = r.GetVersion()
			response.Resources = append(response.Resources, r)
		case r == nil && has:
			delete(by.known, name)
			response.RemovedResources = append(response.RemovedResources, name)
		}
	}
	by.seen = f.last
	if len(response.GetResources())+len(response.GetRemovedResources()) == 0 && !must {
		return
	}
	delete(f.watches, by)
	// The feed keeps the versions: go-control-plane would only store them for the next request.
	w.to <- &cachev3.DeltaPassthroughResponse{DeltaRequest: w.request, DeltaDiscoveryResponse: response, NextVersionMap: map[string]string{}}
}

// since returns the names that may differ from a stream's versions, possibly with duplicates.
func (f *feed) since(by *reader) []string {
	if behind := f.last - by.seen; by.seen != unseen && behind <= uint64(len(f.changed)) {
		return f.changed[len(f.changed)-int(behind):]
	}
	all := slices.Collect(maps.Keys(f.resources))
	for name := range by.known {
		if f.resources[name] == nil {
			all = append(all, name)
		}
	}
	return all
}

// number returns the number of the last change.
func (f *feed) number() uint64 {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.last
}

func (f *feed) size() int {
	f.mu.Lock()
	defer f.mu.Unlock()
	return len(f.resources)
}

// published returns the resources whose names wanted accepts, in name order, compared with the versions of one stream.
func (f *feed) published(by *reader, wanted func(string) bool, marks *progress.Marks) []csds.Resource {
	f.mu.Lock()
	numbers := make(map[string]uint64, len(f.changed))
	for i, name := range f.changed {
		numbers[name] = f.last - uint64(len(f.changed)-1-i)
	}
	all := make([]csds.Resource, 0, 16)
	bodies := map[string]*discoveryv3.Resource{} // immutable
	for name := range f.resources {
		if r := f.of(by, name); wanted(name) {
			all = append(all, csds.Resource{Name: name, Version: r.GetVersion(), Behind: by.known[name] != r.GetVersion()})
			bodies[name] = r
		}
	}
	f.mu.Unlock()
	slices.SortFunc(all, func(a, b csds.Resource) int { return strings.Compare(a.Name, b.Name) })
	for i := range all {
		all[i].Body = bodies[all[i].Name].GetResource()
		if number := numbers[all[i].Name]; number != 0 {
			all[i].At = marks.When(number)
		}
	}
	return all
}
