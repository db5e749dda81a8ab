package relay

import (
	"fmt"
	"maps"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"

	"google.golang.org/grpc/codes"
)

// quick are the waits of tests. Time passes only by step.
var quick = Times{
	First: 3 * time.Second, Settled: time.Second, Proof: 10 * time.Second,
	Rest: 100 * time.Millisecond, MaxRest: 10 * time.Second, Retry: 30 * time.Second,
}

// The properties of a resource are in its version: <upstream>.<number>.<property>.
const (
	fine   = "fine"
	bad    = "bad"    // Envoy rejects it
	deadly = "deadly" // Envoy ends when it applies it
	faulty = "faulty" // the check rejects it
)

// world is everything around a relay: xds-servers, one Envoy and a disk. It executes effects and checks each of them.
type world struct {
	t     testing.TB
	relay *Relay
	twin  *Relay // gets the same events
	now   time.Time
	ids   uint64 // of streams and sessions, and numbers of versions

	servers map[string]*xdsServer
	envoy   *envoyProcess
	queue   []Effect // for the disk
	disk    map[string]Stored
	trials  int
	broken  bool           // the disk fails
	cut     int            // the agent ends after this number of effects; negative: never
	healed  bool           // deadly resources no longer end Envoy
	ends    map[string]int // ends of Envoy with each deadly version; nil: they are not counted
	log     []string
}

// xdsServer is an xds-server as one membership reaches it.
type xdsServer struct {
	name   string
	member bool
	wants  [Kinds]Set
	stream uint64
	told   [Kinds]map[string]string // versions that it assumes at the agent; nil: not subscribed
	first  [Kinds]bool              // it has not answered the subscription yet
	open   [Kinds][]string          // nonces without an answer
}

// envoyProcess is an Envoy, which outlives its streams.
type envoyProcess struct {
	have    [Kinds]Set
	from    map[string]*Relay // that has sent it a listener
	session uint64
	asked   [Kinds]bool
	pending [Kinds]*Respond
}

func newEnvoyProcess() *envoyProcess {
	return &envoyProcess{have: [Kinds]Set{{}, {}, {}}, from: map[string]*Relay{}}
}

func newWorld(t testing.TB) *world {
	t.Helper()
	w := &world{
		t: t, now: time.Unix(1_000_000, 0), servers: map[string]*xdsServer{}, envoy: newEnvoyProcess(),
		disk: map[string]Stored{}, cut: -1,
	}
	for _, name := range []string{"a", "b", "c"} {
		w.servers[name] = &xdsServer{name: name, member: true, wants: [Kinds]Set{{}, {}, {}}}
	}
	w.start()
	return w
}

func (w *world) sorted() []*xdsServer {
	return slices.SortedFunc(maps.Values(w.servers), func(a, b *xdsServer) int { return strings.Compare(a.name, b.name) })
}

// start starts an agent from the disk.
func (w *world) start() {
	w.relay, w.twin, w.queue, w.cut = New(quick), New(quick), nil, -1
	w.envoy.session, w.envoy.asked, w.envoy.pending = 0, [Kinds]bool{}, [Kinds]*Respond{}
	for _, s := range w.servers {
		s.stream, s.told, s.first, s.open = 0, [Kinds]map[string]string{}, [Kinds]bool{}, [Kinds][]string{}
	}
	stored := func() (files []Stored) {
		for _, key := range slices.Sorted(maps.Keys(w.disk)) {
			file := w.disk[key]
			file.Set = maps.Clone(file.Set)
			files = append(files, file)
		}
		return files
	}
	files := stored()
	w.apply(Restored{Files: files, Trials: w.trials}, Restored{Files: stored(), Trials: w.trials})
	w.restored(files)
	unknown := w.relay.Upstreams()
	for _, s := range w.sorted() {
		if s.member {
			w.do(Vetted{Upstream: s.name})
			unknown = slices.DeleteFunc(unknown, func(name string) bool { return name == s.name })
		}
	}
	for _, name := range unknown {
		w.do(Removed{name})
	}
}

// restored checks that nothing on disk was lost.
func (w *world) restored(files []Stored) {
	for _, f := range files {
		s := w.relay.upstream(f.Upstream).shares[f.Kind]
		for name, res := range f.Set {
			if owner := s.owners()[name]; f.Generation == Accepted && owner == s && s.accepted[name] != res {
				w.fail("the start lost %s of %s", name, f.Upstream)
			}
		}
		if f.Rejected != nil && f.Generation == Accepted {
			for name := range f.Rejected.Versions {
				if s.rejected[name] == nil {
					w.fail("the start lost the rejection of %s", name)
				}
			}
		}
	}
}

func (w *world) fail(format string, args ...any) {
	w.t.Helper()
	w.t.Fatalf("%s\nafter\n  %s\nthe state is\n%s", fmt.Sprintf(format, args...), strings.Join(w.log, "\n  "), w.relay)
}

func (w *world) do(e Event) { w.apply(e, e) }

// apply applies an event, and an equal one to the twin, and executes the effects.
func (w *world) apply(e, same Event) {
	w.log = append(w.log, fmt.Sprintf("%T%+v", e, e))
	before := w.accepted()
	rejected := w.crashed()
	effects := w.relay.Apply(w.now, e)
	if twin := w.twin.Apply(w.now, same); !reflect.DeepEqual(effects, twin) {
		w.fail("equal events have the effects %+v and %+v", effects, twin)
	}
	w.kept(e, effects, before, rejected)
	w.bounded()
	for _, effect := range effects {
		if w.cut == 0 {
			w.log = append(w.log, "the agent ends")
			w.start()
			return
		}
		if w.cut > 0 {
			w.cut--
		}
		w.execute(effect)
	}
}

// accepted returns the versions that the relay has recorded as accepted.
func (w *world) accepted() map[string]string {
	all := map[string]string{}
	for _, c := range w.relay.upstreams {
		for _, s := range c.shares {
			for name, res := range s.accepted {
				all[fmt.Sprint(c.name, " ", s.kind, " ", name)] = res.Version
			}
		}
	}
	return all
}

// crashed returns what the relay rejects after crashes.
func (w *world) crashed() map[string]string {
	all := map[string]string{}
	for _, c := range w.relay.upstreams {
		for _, s := range c.shares {
			for name, why := range s.rejected {
				if why.Crash {
					all[fmt.Sprint(c.name, " ", s.kind, " ", name)] = why.Versions[name]
				}
			}
		}
	}
	return all
}

// kept checks that only the events that may do so change what is accepted and what is rejected after crashes.
func (w *world) kept(e Event, effects []Effect, accepted, crashed map[string]string) {
	var of string // whose resources the event may change
	rolled := slices.ContainsFunc(effects, func(e Effect) bool {
		l, ok := e.(Log)
		return ok && l.Message == "resources rolled back"
	})
	switch e := e.(type) {
	case Received:
		of = e.Upstream
	case Removed:
		of = e.Upstream
	case Vetted:
		of = e.Upstream
	case Restored:
		return
	}
	if rolled {
		return
	}
	if _, ok := e.(Requested); ok {
		accepted = nil // an answer of Envoy changes what is accepted: see reply
	}
	now, still := w.accepted(), w.crashed()
	for key, version := range accepted {
		if upstream, _, _ := strings.Cut(key, " "); upstream != of && now[key] != version {
			w.fail("%T lost %s, which Envoy has accepted", e, key)
		}
	}
	for key, version := range crashed {
		if upstream, _, _ := strings.Cut(key, " "); upstream != of && still[key] != version {
			w.fail("%T forgot that Envoy ended with %s", e, key)
		}
	}
}

// bounded checks that the state is no larger than the names in use.
func (w *world) bounded() {
	r := w.relay
	for k := range r.owners {
		if len(r.owners[k]) > universe || len(r.dropped[k]) > universe {
			w.fail("%d owners and %d dropped names", len(r.owners[k]), len(r.dropped[k]))
		}
		if t := r.table(Kind(k)); t != nil {
			parts := 0
			for _, b := range t.parts {
				parts += len(b.names)
			}
			if len(t.todo) > universe || len(t.stale) > universe || len(t.have) > universe || parts > 2*universe {
				w.fail("%d names to do, %d stale, %d in parts", len(t.todo), len(t.stale), parts)
			}
		}
	}
	if len(r.places) > universe {
		w.fail("%d addresses", len(r.places))
	}
	for _, c := range r.upstreams {
		for _, s := range c.shares {
			p := &s.pending
			if len(p.nonces) > maxPending || len(p.rejections) > maxRejections || len(p.waiting) > universe ||
				len(s.rejected) > universe || len(s.yielded) > universe {
				w.fail("%d nonces, %d rejections", len(p.nonces), len(p.rejections))
			}
		}
	}
}

// execute executes an effect.
func (w *world) execute(effect Effect) {
	switch e := effect.(type) {
	case Subscribe:
		s := w.servers[e.Upstream]
		if s.stream == e.Stream {
			s.told[e.Kind], s.first[e.Kind] = maps.Clone(e.Versions), true
		}
	case Answer:
		s := w.servers[e.Upstream]
		if s.stream == e.Stream {
			s.open[e.Kind] = slices.DeleteFunc(s.open[e.Kind], func(nonce string) bool { return nonce == e.Nonce })
		}
	case CloseStream:
		s := w.servers[e.Upstream]
		if s.stream == e.Stream {
			s.close()
		}
	case Respond:
		w.responds(e)
	case CloseSession:
		if w.envoy.session == e.Session {
			w.envoy.disconnect()
		}
	case Write, Erase:
		w.queue = append(w.queue, e)
	case Record:
		result := Recorded{Count: e.Count}
		if w.broken {
			result.Err = "the disk fails"
		} else {
			w.trials = e.Count
		}
		w.do(result)
	}
}

func (s *xdsServer) close() {
	s.stream, s.told, s.first, s.open = 0, [Kinds]map[string]string{}, [Kinds]bool{}, [Kinds][]string{}
}

func (e *envoyProcess) disconnect() {
	e.session, e.asked, e.pending = 0, [Kinds]bool{}, [Kinds]*Respond{}
}

// responds checks a response to Envoy.
func (w *world) responds(e Respond) {
	if w.envoy.session != e.Session {
		return
	}
	if w.envoy.pending[e.Kind] != nil {
		w.fail("Envoy gets %s while it has not answered", e.Kind)
	}
	w.envoy.pending[e.Kind] = &e
	of := ""
	for _, res := range e.Resources {
		owner := w.ownerOf(res)
		if of != "" && owner != of {
			w.fail("one response has resources of %s and %s", of, owner)
		}
		of = owner
		if res.Fault != "" {
			w.fail("Envoy gets %s, which was found faulty", res.Name)
		}
		s := w.relay.upstreams[owner]
		if s == nil {
			w.fail("Envoy gets %s of %s, which was removed", res.Name, owner)
		}
		if why := s.shares[e.Kind].rejected[res.Name]; why != nil && why.Versions[res.Name] == res.Version {
			w.fail("Envoy gets %s, which is rejected: %s", res.Name, why.Message)
		}
		w.mayChange(e.Kind, res.Name, owner)
		for name, other := range w.envoy.have[e.Kind] {
			// An agent that takes Envoy over may not know the address, and one listener may move away as the other comes.
			known, c := w.envoy.from[name] == w.relay, w.relay.upstreams[w.ownerOf(other)]
			leaves := c == nil || c.shares[e.Kind].offered[name] == nil
			rival := name != res.Name && res.Address != "" && other.Address == res.Address && w.ownerOf(other) != owner
			if known && leaves && rival {
				w.fail("Envoy gets %s while %s has its address", res.Name, name)
			}
		}
	}
	for _, name := range e.Removed {
		w.mayChange(e.Kind, name, of)
	}
}

func (w *world) ownerOf(res *Resource) string {
	owner, _, _ := strings.Cut(res.Version, ".")
	return owner
}

// mayChange checks that a response with changes of one membership does not change a resource of another, which still
// offers it. of is empty if the response has only removals.
func (w *world) mayChange(k Kind, name, of string) {
	had := w.envoy.have[k][name]
	if had == nil || w.ownerOf(had) == of {
		return
	}
	if c := w.relay.upstreams[w.ownerOf(had)]; c != nil && c.shares[k].offered[name] != nil {
		w.fail("a response of %q changes %s %s of %s", of, k, name, c.name)
	}
}

// reply has Envoy answer a response.
func (w *world) reply(k Kind) {
	e := w.envoy
	if e.session == 0 || e.pending[k] == nil {
		return
	}
	response := *e.pending[k]
	e.pending[k] = nil
	answer := Requested{Session: e.session, Kind: k, Nonce: response.Nonce}
	is := func(property string) bool {
		has := func(r *Resource) bool { return strings.HasSuffix(r.Version, property) }
		return slices.ContainsFunc(response.Resources, has)
	}
	if is(deadly) && !w.healed {
		w.count(response)
		w.dies()
		return
	}
	if is(bad) {
		answer.Nack = &Rejection{Code: codes.Internal, Message: "Envoy rejects it"}
		w.do(answer)
		return
	}
	for _, res := range response.Resources {
		e.have[k][res.Name] = res
		if k == Listeners {
			e.from[res.Name] = w.relay
		}
	}
	for _, name := range response.Removed {
		delete(e.have[k], name)
	}
	w.do(answer)
	if w.envoy != e || e.session == 0 {
		return
	}
	for _, res := range response.Resources {
		c := w.relay.upstreams[w.ownerOf(res)]
		if c == nil || c.shares[k].owners()[res.Name] != c.shares[k] {
			continue
		}
		if got := c.shares[k].accepted[res.Name]; got != res {
			w.fail("Envoy accepted %s, which is not recorded: %v", res.Name, got)
		}
	}
}

// count counts the end of Envoy with a response. It does not ask the relay what it has rejected.
func (w *world) count(response Respond) {
	for _, res := range response.Resources {
		if w.ends == nil || !strings.HasSuffix(res.Version, deadly) {
			continue
		}
		if w.ends[res.Version]++; w.ends[res.Version] > crashLimit {
			w.fail("Envoy has ended %d times with %s", w.ends[res.Version], res.Version)
		}
	}
}

// dies ends Envoy, and starts the next one.
func (w *world) dies() {
	w.envoy = newEnvoyProcess()
	w.do(Crashed{})
}

// connect connects Envoy, if it is not.
func (w *world) connect() {
	if w.envoy.session == 0 {
		w.ids++
		w.envoy.session = w.ids
		w.do(Attached{w.ids})
	}
}

// subscribe has Envoy subscribe to a kind.
func (w *world) subscribe(k Kind) {
	e := w.envoy
	if e.session == 0 || e.asked[k] {
		return
	}
	e.asked[k] = true
	w.do(Requested{Session: e.session, Kind: k, Have: e.have[k].versions()})
}

// open opens the stream of an xds-server.
func (w *world) open(s *xdsServer) {
	if s.stream == 0 && s.member {
		w.ids++
		s.stream = w.ids
		w.do(Opened{s.name, s.stream})
	}
}

// lose ends the stream of an xds-server.
func (w *world) lose(s *xdsServer, code codes.Code) {
	if id := s.stream; id != 0 {
		s.close()
		w.do(Closed{s.name, id, code})
	}
}

// respond has an xds-server send what differs.
func (w *world) respond(s *xdsServer, k Kind) {
	if s.told[k] == nil {
		return
	}
	changes := Set{}
	for name, res := range s.wants[k] {
		if s.told[k][name] != res.Version {
			changes[name] = res
		}
	}
	for name := range s.told[k] {
		if s.wants[k][name] == nil {
			changes[name] = nil
		}
	}
	if len(changes) == 0 && !s.first[k] {
		return
	}
	w.ids++
	nonce := fmt.Sprint(w.ids)
	s.told[k], s.first[k] = s.wants[k].versions(), false
	s.open[k] = append(s.open[k], nonce)
	w.do(Received{Upstream: s.name, Stream: s.stream, Kind: k, Nonce: nonce, Changes: changes})
}

// want changes what an xds-server wants Envoy to have; an empty property: nothing under this name.
func (w *world) want(s *xdsServer, k Kind, name, property, address string) {
	w.ids++
	if property == "" {
		delete(s.wants[k], name)
		return
	}
	res := &Resource{Name: name, Version: fmt.Sprintf("%s.%d.%s", s.name, w.ids, property)}
	if k == Listeners {
		res.Address = address
	}
	if property == faulty {
		res.Fault = "it is faulty"
	}
	s.wants[k][name] = res
}

// remove ends a membership.
func (w *world) remove(s *xdsServer) {
	s.member = false
	s.close()
	s.wants = [Kinds]Set{{}, {}, {}}
	w.do(Removed{s.name})
}

// work executes the next effect for the disk. A write that fails may have been done nevertheless.
func (w *world) work(fails, done bool) {
	if len(w.queue) == 0 {
		return
	}
	next := w.queue[0]
	w.queue = w.queue[1:]
	write, ok := next.(Write)
	if !ok {
		maps.DeleteFunc(w.disk, func(_ string, f Stored) bool { return f.Upstream == next.(Erase).Upstream })
		return
	}
	result := Written{Write: write}
	for _, out := range write.Files {
		if !fails || done {
			w.write(write.Upstream, out)
		}
		size := int64(len(out.Set)) * 100 << 10
		if fails {
			size, result.Err = -1, "the disk fails"
		}
		result.Sizes = append(result.Sizes, size)
	}
	w.do(result)
}

func (w *world) write(upstream string, out File) {
	key := fmt.Sprint(upstream, out.Kind, out.Generation)
	file := w.disk[key]
	if out.Whole {
		file = Stored{Upstream: upstream, Kind: out.Kind, Generation: out.Generation, Set: Set{}}
	}
	file.Set, file.Rejected = maps.Clone(file.Set), out.Rejected
	for name, res := range out.Set {
		file.Set.put(name, res)
	}
	w.disk[key] = file
}

// wait lets time pass.
func (w *world) wait(d time.Duration) {
	w.now = w.now.Add(d)
	if wake := w.relay.Wake(); !wake.IsZero() && !wake.After(w.now) {
		w.do(Ticked{})
		if next := w.relay.Wake(); !next.IsZero() && !next.After(w.now) {
			w.fail("it has to be woken in the past, at %s", next)
		}
	}
}

// flow lets everything work for a while.
func (w *world) flow() {
	for _, s := range w.sorted() {
		w.open(s)
		for k := range Kinds {
			w.respond(s, k)
		}
	}
	w.connect()
	for k := range Kinds {
		w.subscribe(k)
		for range 3 * universe {
			w.reply(k)
		}
	}
	for len(w.queue) > 0 {
		w.work(false, true)
	}
}

// survive lets everything work while the xds-servers change nothing, until Envoy does not end any more. A version may
// end it crashLimit times: see count.
func (w *world) survive() {
	w.broken, w.cut, w.ends = false, -1, map[string]int{}
	w.flow()
	w.wait(quick.First) // it gets resources even if an xds-server has never answered
	for before := w.envoy; ; before = w.envoy {
		if w.flow(); w.envoy == before {
			return
		}
	}
}

// converge lets everything work for as long as something changes, and checks the result.
func (w *world) converge() {
	w.survive()
	w.healed = true
	for _, s := range w.sorted() { // one that was taken for an xds-server without scopes is asked for them again
		w.open(s)
		w.lose(s, codes.Unavailable)
	}
	for round := 0; ; round++ {
		before := len(w.log)
		w.flow()
		ran := len(w.log) > before
		w.wait(time.Minute)
		if !ran && len(w.queue) == 0 && w.relay.Wake().IsZero() {
			break
		}
		if round > 100 {
			w.fail("it does not converge")
		}
	}
	w.converged()
}

// converged checks that Envoy, the disk and the xds-servers agree.
func (w *world) converged() {
	r := w.relay
	for k := range Kinds {
		want := map[string]string{}
		for _, c := range r.sorted() {
			s := c.shares[k]
			maps.Copy(want, s.offered.versions())
			if names := differing(s.newest, w.servers[c.name].wants[k]); len(names) > 0 {
				w.fail("of %s, %s are not known", c.name, names)
			}
			for _, name := range differing(s.newest, s.offered) {
				if s.yielded[name] && len(r.at(s.newest[name])) > 0 {
					continue
				}
				why := s.rejected[name]
				if why == nil || why.Versions[name] != s.newest[name].version() {
					w.fail("%s %s of %s is not offered, for no reason", k, name, c.name)
				}
			}
			if names := differing(s.offered, s.accepted); len(names) > 0 {
				w.fail("of %s, %s are not accepted", c.name, names)
			}
			w.onDisk(s, Accepted, s.accepted)
			w.onDisk(s, Good, s.good)
		}
		unknown := len(r.upstreams) == 0 && !r.removedAny // an agent without enrolments leaves Envoy what it has
		if have := w.envoy.have[k].versions(); !maps.Equal(have, want) && !unknown {
			w.fail("Envoy has the %s %v, want %v", k, have, want)
		}
		for _, s := range w.servers {
			if len(s.open[k]) > 0 {
				w.fail("%s gets no answer about %s", s.name, s.open[k])
			}
		}
	}
	for _, f := range w.disk {
		if r.upstreams[f.Upstream] == nil {
			w.fail("the disk has files of %s, which was removed", f.Upstream)
		}
	}
	if w.trials != 0 && w.trials != r.trials.count {
		w.fail("%d trials are on disk, want %d", w.trials, r.trials.count)
	}
}

func (w *world) onDisk(s *share, g Generation, want Set) {
	file, ok := w.disk[fmt.Sprint(s.of.name, s.kind, g)]
	if names := differing(file.Set, want); ok != (want != nil) || len(names) > 0 {
		w.fail("on disk (%t), %s of %s of %s differ", ok, names, s.kind, s.of.name)
	}
}

// String returns the version and the address, for logs of tests.
func (r *Resource) String() string {
	if r == nil {
		return "-"
	}
	return r.Version + "@" + r.Address
}

// String returns the versions, for logs of tests.
func (r *Rejection) String() string {
	if r == nil {
		return "-"
	}
	return fmt.Sprint(r.Versions, r.Message)
}
