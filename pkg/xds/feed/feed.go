// Package feed shares resources of one type between the streams of many gateways. In go resources to set, names to
// remove, variants for some streams and names that others must not receive; out comes what each stream is to have,
// whole or only what may have changed. It does not know which gateway a stream belongs to, what the stream has already,
// or what the resources mean.
package feed

import (
	"errors"
	"maps"
	"slices"
	"strings"
	"sync"

	"github.com/envoyproxy/go-control-plane/pkg/cache/types"

	"github.com/fairlead/fairlead/pkg/deltaxds"
	"github.com/fairlead/fairlead/pkg/xds/csds"
	"github.com/fairlead/fairlead/pkg/xds/progress"
)

// maxChanges is how many changes a feed records. A stream that is further behind is compared with all resources.
const maxChanges = 4096

// Feed holds resources of one type that many streams share, as they are sent. It records the changed names, so a change
// costs a stream as much among 10,000 resources as among ten. Nothing is encoded or sorted while its lock is held. It
// is safe for concurrent use.
type Feed struct {
	typeURL   string
	mu        sync.Mutex
	resources map[string]*deltaxds.Resource
	variants  map[string]*deltaxds.Resource // of resources, for readers of variants
	last      uint64                        // number of the last change
	changed   []string                      // names of the last changes, the newest at the end
}

// Reader is the position of one stream in a Feed, whose lock guards it.
type Reader struct {
	begun    bool   // seen is set
	seen     uint64 // number of the last change that the stream has
	variants bool   // the stream receives the variants of resources, where they exist
	varied   uint64 // how often the variants have changed for it
	hides    func(name string) bool
}

// Reading is what a stream is to have at one time.
type Reading struct {
	resources []*deltaxds.Resource
	gone      []string
	whole     bool
	last      uint64 // number of the last change in it
	varied    uint64 // of the reader
}

// New returns a Feed of a type without resources.
func New(typeURL string) *Feed {
	return &Feed{typeURL: typeURL, resources: map[string]*deltaxds.Resource{}}
}

// NewReader returns the position of a stream that has read nothing yet. If variants is set, the stream receives the
// variants of resources, where they exist. It receives no resource whose name hides accepts; nil: it receives all.
func NewReader(variants bool, hides func(name string) bool) *Reader {
	return &Reader{variants: variants, hides: hides}
}

// TypeURL returns the type of the resources.
func (f *Feed) TypeURL() string { return f.typeURL }

// Update sets resources and removes others. A resource that is equal to the one under its name does not count as a
// change. Update leaves out resources that cannot be encoded, and returns their errors.
func (f *Feed) Update(set map[string]types.Resource, gone []string) error {
	encoded, err := f.encode(set)
	f.mu.Lock()
	defer f.mu.Unlock()
	for name, r := range encoded {
		if f.resources[name].Version() != r.Version() {
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
	return err
}

// encode returns resources as they are sent, and the errors of resources that cannot be encoded.
func (f *Feed) encode(set map[string]types.Resource) (map[string]*deltaxds.Resource, error) {
	var failed error
	encoded := make(map[string]*deltaxds.Resource, len(set))
	for name, r := range set {
		one, err := deltaxds.Encode(f.typeURL, name, r)
		if err != nil {
			failed = errors.Join(failed, err)
			continue
		}
		encoded[name] = one
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
// variants. A reader for which that makes a difference reads everything again. If a variant cannot be encoded, nothing
// changes.
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
		by.variants, by.begun = has, false
		by.varied++
	}
	return nil
}

func sameVersions(a, b map[string]*deltaxds.Resource) bool {
	return maps.EqualFunc(a, b, func(a, b *deltaxds.Resource) bool { return a.Version() == b.Version() })
}

// of returns a resource as a reader receives it, and nil if it receives none. The caller holds f.mu.
func (f *Feed) of(by *Reader, name string) *deltaxds.Resource {
	if by.hides != nil && by.hides(name) {
		return nil
	}
	r := f.resources[name]
	if variant := f.variants[name]; by.variants && r != nil && variant != nil {
		return variant
	}
	return r
}

// Read returns what a stream is to have: everything if whole is set or if it may lack more than what is recorded, and
// otherwise at least what has changed since the last Keep.
func (f *Feed) Read(by *Reader, whole bool) Reading {
	f.mu.Lock()
	defer f.mu.Unlock()
	is := Reading{last: f.last, varied: by.varied}
	behind := f.last - by.seen
	if is.whole = whole || !by.begun || behind > uint64(len(f.changed)); is.whole {
		is.resources = make([]*deltaxds.Resource, 0, len(f.resources))
		for name := range f.resources {
			if r := f.of(by, name); r != nil {
				is.resources = append(is.resources, r)
			}
		}
		return is
	}
	seen := map[string]bool{}
	for _, name := range f.changed[len(f.changed)-int(behind):] {
		if seen[name] {
			continue
		}
		seen[name] = true
		if r := f.of(by, name); r != nil {
			is.resources = append(is.resources, r)
		} else {
			is.gone = append(is.gone, name)
		}
	}
	return is
}

// Keep records that a stream has what it has read.
func (f *Feed) Keep(by *Reader, is Reading) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if by.varied == is.varied { // otherwise it has to read everything again
		by.begun, by.seen = true, is.last
	}
}

// Offer returns what was read, for the state of the stream.
func (is Reading) Offer() deltaxds.Offer {
	if is.whole {
		return deltaxds.Whole(is.resources)
	}
	return deltaxds.Part(is.resources, is.gone)
}

// Last returns the number of the last change in what was read; 0: there was none.
func (is Reading) Last() uint64 { return is.last }

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

// Published returns the resources of a stream whose names wanted accepts, in name order. has reports whether the stream
// was sent a resource. Times of changes come from marks; the time of a change that is no longer recorded is zero.
func (f *Feed) Published(
	by *Reader, wanted func(string) bool, has func(*deltaxds.Resource) bool, marks *progress.Marks,
) []csds.Resource {
	f.mu.Lock()
	numbers := make(map[string]uint64, len(f.changed))
	for i, name := range f.changed {
		numbers[name] = f.last - uint64(len(f.changed)-1-i)
	}
	published := make([]*deltaxds.Resource, 0, 16)
	for name := range f.resources {
		if r := f.of(by, name); r != nil && wanted(name) {
			published = append(published, r)
		}
	}
	f.mu.Unlock()
	slices.SortFunc(published, func(a, b *deltaxds.Resource) int { return strings.Compare(a.Name(), b.Name()) })
	all := make([]csds.Resource, 0, len(published))
	for _, r := range published {
		is := csds.Resource{Name: r.Name(), Version: r.Version(), Body: r.Message().GetResource(), Behind: !has(r)}
		if number := numbers[r.Name()]; number != 0 {
			is.At = marks.When(number)
		}
		all = append(all, is)
	}
	return all
}
