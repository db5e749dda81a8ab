package deltaxds

import (
	"fmt"
	"maps"
	"slices"
	"testing"

	clusterv3 "github.com/envoyproxy/go-control-plane/envoy/config/cluster/v3"
	discoveryv3 "github.com/envoyproxy/go-control-plane/envoy/service/discovery/v3"
	resourcev3 "github.com/envoyproxy/go-control-plane/pkg/resource/v3"
	statusv1 "google.golang.org/genproto/googleapis/rpc/status"
)

const (
	fuzzTypes  = 2
	fuzzNames  = 5
	badContent = 3 // the client rejects it

	oneResource = 1 // the bound of a response that fits none
)

// fuzzed are the resources of all names and contents.
var fuzzed = func() (all [fuzzNames][badContent + 1]*Resource) {
	for n := range all {
		for content := range all[n] {
			name := nameOf(n)
			r, err := Encode(resourcev3.ClusterType, name, &clusterv3.Cluster{Name: name, AltStatName: fmt.Sprint(content)})
			if err != nil {
				panic(err)
			}
			all[n][content] = r
		}
	}
	return all
}()

func nameOf(n int) string { return string(rune('a' + n)) }

// world is a server and a client, with the messages between them. The client does what Envoy does: it applies what is
// valid in a response, and rejects the response if anything is not.
type world struct {
	t      *testing.T
	stream Stream
	types  [fuzzTypes]worldType
	queue  []*discoveryv3.DeltaDiscoveryResponse // not applied by the client yet
	job    *job                                  // an offer that is being made
	nonces map[string]bool                       // of the stream
	most   int                                   // bytes of resources in a response
}

type worldType struct {
	serves  map[string]*Resource
	changes []string // names, as a server records them
	seen    int      // how many of them are in what was sent

	asked, wildcard bool
	names           map[string]bool
	has             map[string]string          // versions of the client
	rejected        map[string]map[string]bool // versions that must not be sent again, by name
	requests        int                        // requests for something since the last answer
	answered        bool                       // there was a response
	last            string                     // last nonce
	since           int                        // requests since the last response
}

type job struct {
	kind, seen int
	offer      Offer
}

func newWorld(t *testing.T, most int) *world {
	w := &world{t: t, stream: NewStream(fuzzTypes, most), nonces: map[string]bool{}, most: most}
	for i := range w.types {
		w.types[i] = worldType{
			serves: map[string]*Resource{}, names: map[string]bool{}, has: map[string]string{},
			rejected: map[string]map[string]bool{},
		}
	}
	return w
}

func (y *worldType) wants(name string) bool { return y.wildcard || y.names[name] }

// serve changes a resource; nil: removes it.
func (w *world) serve(kind, n int, r *Resource) {
	y := &w.types[kind]
	name := nameOf(n)
	if y.serves[name].Version() == r.Version() {
		return
	}
	if y.serves[name] = r; r == nil {
		delete(y.serves, name)
	}
	delete(y.rejected, name)
	y.changes = append(y.changes, name)
	w.stream.Changed(kind)
}

// begin begins an offer: of all resources, or of what has changed.
func (w *world) begin(all bool) bool {
	if w.job != nil {
		return false
	}
	earlier := w.inParts()
	kind, whole, ok := w.stream.Next()
	if !ok {
		return false
	}
	if slices.Contains(earlier[:kind], true) {
		w.t.Fatalf("type %d is next before the last part of an earlier type is sent", kind)
	}
	y := &w.types[kind]
	w.job = &job{kind: kind, seen: len(y.changes)}
	if whole || all {
		w.job.offer = Whole(slices.Collect(maps.Values(y.serves)))
		return true
	}
	var resources []*Resource
	var gone []string
	for name := range set(y.changes[y.seen:]) {
		if r := y.serves[name]; r != nil {
			resources = append(resources, r)
		} else {
			gone = append(gone, name)
		}
	}
	w.job.offer = Part(resources, gone)
	return true
}

func set(names []string) map[string]bool {
	all := map[string]bool{}
	for _, name := range names {
		all[name] = true
	}
	return all
}

// finish sends what the client lacks of the offer.
func (w *world) finish() {
	j := w.job
	if w.job = nil; j == nil {
		return
	}
	y := &w.types[j.kind]
	later := w.inParts()[j.kind+1:]
	r, rest := w.stream.Respond(j.kind, j.offer)
	if len(r.GetRemovedResources()) > 0 && slices.Contains(later, true) {
		w.t.Fatalf("resources of type %d are removed before the last part of a later type", j.kind)
	}
	if !rest {
		y.seen = j.seen
	}
	if r == nil {
		return
	}
	r.TypeUrl = fmt.Sprint(j.kind)
	w.check(r, y)
	w.queue = append(w.queue, r)
}

// inParts returns which types lack resources that did not fit into their last response.
func (w *world) inParts() []bool {
	all := make([]bool, fuzzTypes)
	for kind := range all {
		all[kind] = w.stream.types[kind].inParts()
	}
	return all
}

// check checks a response by itself, and by what was sent before.
func (w *world) check(r *discoveryv3.DeltaDiscoveryResponse, y *worldType) {
	if w.nonces[r.GetNonce()] {
		w.t.Fatalf("the nonce %s was used twice", r.GetNonce())
	}
	w.nonces[r.GetNonce()] = true
	y.last, y.since = r.GetNonce(), 0
	twice := map[string]bool{}
	for _, resource := range r.GetResources() {
		if twice[resource.GetName()] {
			w.t.Fatalf("%s is in a response twice", resource.GetName())
		}
		twice[resource.GetName()] = true
		if y.rejected[resource.GetName()][resource.GetVersion()] {
			w.t.Fatalf("a rejected version of %s is sent again", resource.GetName())
		}
	}
	if w.most == oneResource && len(r.GetResources()) > 1 {
		w.t.Fatalf("a response has %d resources, want one", len(r.GetResources()))
	}
	for _, name := range r.GetRemovedResources() {
		if twice[name] {
			w.t.Fatalf("%s is in a response twice", name)
		}
		twice[name] = true
	}
	waiting := 0
	for _, other := range w.queue {
		if other.GetTypeUrl() == r.GetTypeUrl() {
			waiting++
		}
	}
	if waiting > y.requests {
		w.t.Fatalf("%d responses wait for their answers, and %d requests have come since the last", waiting+1, y.requests)
	}
	if !y.answered && y.wildcard {
		y.answered = true
	}
}

// take has the client apply and answer the oldest response.
func (w *world) take() bool {
	if len(w.queue) == 0 {
		return false
	}
	r := w.queue[0]
	w.queue = w.queue[1:]
	kind := int(r.GetTypeUrl()[0] - '0')
	y := &w.types[kind]
	answer := &discoveryv3.DeltaDiscoveryRequest{ResponseNonce: r.GetNonce()}
	for _, resource := range r.GetResources() {
		name, version := resource.GetName(), resource.GetVersion()
		switch {
		case !y.wants(name):
		case version == fuzzed[name[0]-'a'][badContent].Version():
			answer.ErrorDetail = &statusv1.Status{Message: name}
			if y.serves[name].Version() == version && r.GetNonce() == y.last && y.since == 0 {
				y.rejected[name] = map[string]bool{version: true}
			}
		default:
			y.has[name] = version
		}
	}
	for _, name := range r.GetRemovedResources() {
		delete(y.has, name)
	}
	want := ACK
	switch {
	case r.GetNonce() != y.last:
		want = Outdated
	case answer.ErrorDetail != nil:
		want = NACK
	}
	if got := w.stream.Receive(kind, answer); got != want {
		w.t.Fatalf("an answer is taken for %v, want %v", got, want)
	}
	if want != Outdated {
		y.requests = 0
	}
	return true
}

// ask sends a request that is not an answer.
func (w *world) ask(kind int, subscribe, unsubscribe []string, nonce string) {
	y := &w.types[kind]
	y.requests++
	y.since++
	if !y.asked {
		y.asked, y.wildcard = true, len(subscribe) == 0
	}
	for _, name := range subscribe {
		y.wildcard = y.wildcard || name == Wildcard
		if name != Wildcard {
			y.names[name] = true
			delete(y.rejected, name)
		} else {
			clear(y.rejected)
		}
	}
	for _, name := range unsubscribe {
		if name == Wildcard {
			y.wildcard = false
			maps.DeleteFunc(y.has, func(name string, _ string) bool { return !y.wants(name) })
			continue
		}
		delete(y.names, name)
		delete(y.has, name)
		delete(y.rejected, name)
	}
	got := w.stream.Receive(kind, &discoveryv3.DeltaDiscoveryRequest{
		ResourceNamesSubscribe: subscribe, ResourceNamesUnsubscribe: unsubscribe, ResponseNonce: nonce,
	})
	if want := map[bool]Answer{true: NoAnswer, false: Outdated}[nonce == ""]; got != want {
		w.t.Fatalf("a request is taken for %v, want %v", got, want)
	}
}

// reconnect replaces the stream. The client states what it has, and some resources that do not exist.
func (w *world) reconnect(invented int) {
	w.stream, w.queue, w.job, w.nonces = NewStream(fuzzTypes, w.most), nil, nil, map[string]bool{}
	for kind := range w.types {
		y := &w.types[kind]
		clear(y.rejected)
		y.answered, y.requests, y.last = false, 1, ""
		if y.asked = y.wildcard || len(y.names) > 0; !y.asked {
			continue
		}
		subscribe := slices.Sorted(maps.Keys(y.names))
		if y.wildcard {
			subscribe = append(subscribe, Wildcard)
		}
		for i := range invented {
			y.has[fmt.Sprintf("invented-%d", i)] = "1"
		}
		w.stream.Receive(kind, &discoveryv3.DeltaDiscoveryRequest{
			ResourceNamesSubscribe: subscribe, InitialResourceVersions: maps.Clone(y.has),
		})
		maps.DeleteFunc(y.has, func(name string, _ string) bool { return !y.wants(name) })
	}
}

// converge delivers everything, and checks that the client has what it subscribes to.
func (w *world) converge() {
	w.finish()
	for round := 0; ; round++ {
		if round > 1000 {
			w.t.Fatal("the server does not stop sending")
		}
		sent := w.begin(round%2 == 0)
		w.finish()
		if took := w.take(); !sent && !took {
			break
		}
	}
	for kind := range w.types {
		y, known := &w.types[kind], 0
		for n := range fuzzNames {
			name := nameOf(n)
			r := y.serves[name]
			if r == nil || !y.wants(name) {
				if has, does := y.has[name]; does {
					w.t.Fatalf("type %d: the client still has %s of %s", kind, has, name)
				}
				continue
			}
			known++
			if y.has[name] != r.Version() && r != fuzzed[n][badContent] {
				w.t.Fatalf("type %d: the client has %q of %s, want %s", kind, y.has[name], name, r.Version())
			}
			if !w.stream.Has(kind, r) {
				w.t.Fatalf("type %d: the server does not know that the client was sent %s", kind, name)
			}
		}
		if got := len(w.stream.types[kind].known); got != known {
			w.t.Fatalf("type %d: %d resources are recorded, want %d", kind, got, known)
		}
		if len(w.stream.types[kind].names) > fuzzNames {
			w.t.Fatalf("type %d: more names are recorded than were subscribed to", kind)
		}
		if y.wildcard && !y.answered {
			w.t.Fatalf("type %d: there was no response to a subscription to all", kind)
		}
		if y.asked && (y.wildcard || len(y.names) > 0) && !w.stream.Idle(kind) {
			w.t.Fatalf("type %d: everything is answered, but it is not idle", kind)
		}
	}
}

// step does what two bytes say.
func (w *world) step(op, arg byte) {
	kind, n, content := int(arg)%fuzzTypes, int(arg>>1)%fuzzNames, int(arg>>4)%(badContent+1)
	names := [][]string{nil, {Wildcard}, {nameOf(n)}, {nameOf(n), Wildcard}, {nameOf(n), nameOf((n + 1) % fuzzNames)}}
	some := names[int(arg>>4)%len(names)]
	switch op % 12 {
	case 0, 1, 2:
		w.serve(kind, n, fuzzed[n][content])
	case 3:
		w.serve(kind, n, nil)
	case 4, 5:
		w.take()
	case 6:
		w.ask(kind, some, nil, "")
	case 7:
		w.ask(kind, nil, some, "")
	case 8:
		w.ask(kind, nil, nil, fmt.Sprintf("invented %d", arg))
	case 9:
		w.reconnect(int(arg) % 3)
	case 10:
		w.begin(arg%2 == 0)
	case 11:
		w.finish()
	}
}

// FuzzStream has a server and a client of two types do anything in any order, and then deliver everything. The client
// then has exactly what it subscribes to: no removal and no change is lost. No rejected version was sent twice, no more
// responses than requests waited for answers, invented nonces were no answers, and nothing else is recorded. It does so
// with responses of any size, and of one resource each, which keep the order of types.
func FuzzStream(f *testing.F) {
	f.Add([]byte{0, 0, 6, 0, 10, 0, 11, 0, 4, 0, 3, 0})
	f.Add([]byte{6, 1, 0, 0x11, 0, 0x33, 10, 1, 11, 0, 4, 0, 0, 0x31, 9, 2, 7, 0x11, 6, 0x11, 8, 3})
	f.Add([]byte{0, 0, 0, 1, 6, 0, 6, 1, 10, 0, 3, 0, 3, 1, 11, 0, 10, 1, 0, 0x21, 11, 0, 5, 0, 5, 0, 7, 0x20, 6, 0x20})
	// A client that ends its subscription to all, and begins it again, waits for a response even if there is nothing.
	f.Add([]byte{200, 51, 253, 26, 190, 30, 127, 59, 114, 35, 197, 147, 155, 17, 135, 68, 94, 1, 150, 191})
	f.Fuzz(func(t *testing.T, ops []byte) {
		for _, most := range []int{0, oneResource} {
			w := newWorld(t, most)
			for rest := ops; len(rest) > 1; rest = rest[2:] {
				w.step(rest[0], rest[1])
			}
			w.converge()
		}
	})
}
