// Package feed shares resources of one type between the ADS streams of many gateways. In go resources to set, names to
// remove, variants for some streams and names that others must not receive; out come responses with the resources that
// differ from what each stream has. It does not know which gateway a stream belongs to, or what the resources mean.
package feed

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
	"google.golang.org/protobuf/types/known/anypb"

	"github.com/fairlead/fairlead/pkg/xds/csds"
	"github.com/fairlead/fairlead/pkg/xds/progress"
)

// maxChanges is how many changes a feed records. A stream that is further behind is compared with all resources.
const maxChanges = 4096

// unseen is the number of no change: all resources are to be compared.
const unseen = ^uint64(0)

// Feed holds resources of one type that many streams share. It does what go-control-plane's LinearCache does, at a
// lower cost for each change: a LinearCache compares all resources with all versions that a stream has, and copies the
// versions, at each change and each ACK, for each stream. A Feed records the changed names and compares only these. It
// stores resources as they are sent. It is safe for concurrent use.
type Feed struct {
	typeURL   string
	mu        sync.Mutex
	resources map[string]*discoveryv3.Resource // the values never change
	variants  map[string]*discoveryv3.Resource // of resources, for readers of variants
	last      uint64                           // number of the last change
	changed   []string                         // names of the last changes, the newest at the end
	watches   map[*Reader]*watch
}

// Reader is the position of one stream in a Feed, whose lock guards it.
type Reader struct {
	known    map[string]string // versions by name; nil: the stream has not sent a request yet
	seen     uint64            // number of the last change that is in known
	variants bool              // the stream receives the variants of resources, where they exist
	hides    func(name string) bool
}

// watch is a request that waits for a change.
type watch struct {
	request *discoveryv3.DeltaDiscoveryRequest
	to      chan cachev3.DeltaResponse
}

// New returns a Feed of a type without resources.
func New(typeURL string) *Feed {
	return &Feed{typeURL: typeURL, resources: map[string]*discoveryv3.Resource{}, watches: map[*Reader]*watch{}}
}

// NewReader returns the position of a stream that has not sent a request yet. If variants is set, the stream receives
// the variants of resources, where they exist. It receives no resource whose name hides accepts; nil: it receives all.
func NewReader(variants bool, hides func(name string) bool) *Reader {
	return &Reader{variants: variants, hides: hides}
}

// TypeURL returns the type of the resources.
func (f *Feed) TypeURL() string { return f.typeURL }

// Update sets resources, removes others and answers the requests that wait for them. A resource that is equal to the
// one under its name does not count as a change. Update leaves out resources that cannot be encoded, and returns their
// errors.
func (f *Feed) Update(set map[string]types.Resource, gone []string) error {
	encoded, err := f.encode(set)
	f.mu.Lock()
	defer f.mu.Unlock()
	for name, r := range encoded {
		if f.resources[name].GetVersion() != r.GetVersion() {
			f.resources[name] = r
			f.record(name)
		}
	}
	for _, name := range gone {
		if f.resources[name] != nil {
			delete(f.resources, name)
			f.record(name)
		}
	}
	for reader, w := range f.watches {
		f.answer(reader, w, false)
	}
	return err
}

// encode returns resources as they are sent, and the errors of resources that cannot be encoded.
func (f *Feed) encode(set map[string]types.Resource) (map[string]*discoveryv3.Resource, error) {
	var failed error
	encoded := make(map[string]*discoveryv3.Resource, len(set))
	for name, r := range set {
		value, err := cachev3.MarshalResource(r)
		if err != nil {
			failed = errors.Join(failed, err)
			continue
		}
		body := &anypb.Any{TypeUrl: f.typeURL, Value: value}
		encoded[name] = &discoveryv3.Resource{Name: name, Version: cachev3.HashResource(value), Resource: body}
	}
	return encoded, failed
}

// record records that a resource has changed. The caller holds f.mu.
func (f *Feed) record(name string) {
	f.last++
	if f.changed = append(f.changed, name); len(f.changed) >= 2*maxChanges {
		f.changed = slices.Clone(f.changed[len(f.changed)-maxChanges:])
	}
}

// Vary replaces the variants, which have the names of resources. It updates whether each of the readers receives
// variants, and answers the readers for which that makes a difference. If a variant cannot be encoded, nothing changes.
func (f *Feed) Vary(variants map[string]types.Resource, readers map[*Reader]bool) error {
	encoded, err := f.encode(variants)
	if err != nil {
		return err
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	before := f.variants
	f.variants = encoded
	for by, has := range readers {
		if by.variants == has && (!has || sameVersions(before, encoded)) {
			continue
		}
		by.variants, by.seen = has, unseen
		if w := f.watches[by]; w != nil {
			f.answer(by, w, false)
		}
	}
	return nil
}

func sameVersions(a, b map[string]*discoveryv3.Resource) bool {
	return maps.EqualFunc(a, b, func(a, b *discoveryv3.Resource) bool { return a.GetVersion() == b.GetVersion() })
}

// of returns a resource as a reader receives it, and nil if it receives none. The caller holds f.mu.
func (f *Feed) of(by *Reader, name string) *discoveryv3.Resource {
	if by.hides != nil && by.hides(name) {
		return nil
	}
	r := f.resources[name]
	if variant := f.variants[name]; by.variants && r != nil && variant != nil {
		return variant
	}
	return r
}

// Watch answers a request as soon as there are changes that its stream does not have: the first request at once. to
// must have room for one response. cancel ends the wait.
func (f *Feed) Watch(
	by *Reader, request *discoveryv3.DeltaDiscoveryRequest, sub cachev3.Subscription, to chan cachev3.DeltaResponse,
) (cancel func()) {
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

// answer sends the changes that a stream does not have, and removes its watch. If there are none, it does nothing,
// unless must is set. The caller holds f.mu.
func (f *Feed) answer(by *Reader, w *watch, must bool) {
	response := &discoveryv3.DeltaDiscoveryResponse{
		TypeUrl: f.typeURL, SystemVersionInfo: strconv.FormatUint(f.last, 10),
	}
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
	// by.known holds the versions. go-control-plane would only keep the map of versions for the next request.
	w.to <- &cachev3.DeltaPassthroughResponse{
		DeltaRequest: w.request, DeltaDiscoveryResponse: response, NextVersionMap: map[string]string{},
	}
}

// since returns the names that may differ from what a stream has, some perhaps more than once. The caller holds f.mu.
func (f *Feed) since(by *Reader) []string {
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

// Last returns the number of the last change; 0: there was none.
func (f *Feed) Last() uint64 {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.last
}

// Len returns the number of resources.
func (f *Feed) Len() int {
	f.mu.Lock()
	defer f.mu.Unlock()
	return len(f.resources)
}

// Published returns the resources whose names wanted accepts, in name order, compared with what one stream has. Times
// of changes come from marks; the time of a change that is no longer recorded is zero.
func (f *Feed) Published(by *Reader, wanted func(string) bool, marks *progress.Marks) []csds.Resource {
	f.mu.Lock()
	numbers := make(map[string]uint64, len(f.changed))
	for i, name := range f.changed {
		numbers[name] = f.last - uint64(len(f.changed)-1-i)
	}
	all := make([]csds.Resource, 0, 16)
	bodies := map[string]*discoveryv3.Resource{} // the values never change
	for name := range f.resources {
		if r := f.of(by, name); r != nil && wanted(name) {
			known := by.known[name]
			all = append(all, csds.Resource{Name: name, Version: r.GetVersion(), Behind: known != r.GetVersion()})
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
