package robustness

import (
	"cmp"
	"fmt"
	"slices"
	"strings"
	"time"
)

// The rules.
const (
	// RuleWrong: no request is answered by another workload cluster than the one it was sent to.
	RuleWrong = "answer of another workload cluster"
	// RuleRevoked: a revoked edge carries nothing.
	RuleRevoked = "answer through a revoked edge"
	// RuleSubject: no edge gets resources of another node, and a revoked one gets none.
	RuleSubject = "resources for another subject"
	// RuleReady: a Tunnel is not ready for long while no request succeeds.
	RuleReady = "ready although nothing answers"
	// RuleNotReady: in the end the Tunnel of a workload cluster that answers is ready.
	RuleNotReady = "not ready although everything answers"
	// RuleKubeconfig: a kubeconfig works if there is a path that does.
	RuleKubeconfig = "kubeconfig does not work although a path does"
	// RuleBound: a request ends within its bound.
	RuleBound = "request exceeds its bound"
	// RuleLost: every request that was sent ends.
	RuleLost = "request without an end"
	// RuleCalm: no request fails unless a step has broken its workload cluster or its gateway a while ago.
	RuleCalm = "request fails although nothing is wrong"
	// RuleSettled: after the last fault every workload cluster that should have a tunnel answers on every path.
	RuleSettled = "no answer long after the last fault"
	// RuleUnwanted: a workload cluster that should have no tunnel does not answer.
	RuleUnwanted = "answer although there should be no tunnel"
	// RuleMoved: a Cluster that has been moved to another management cluster answers there soon, and only there.
	RuleMoved = "moved workload cluster does not answer, or answers in its former place"
	// RuleUsage: processes use as much as before.
	RuleUsage = "resources are not released"
	// RuleSecret: no log contains a secret.
	RuleSecret = "secret in a log"
	// RuleCrash: no program crashes by itself.
	RuleCrash = "program crashed"
	// RuleStep: what a user does succeeds, and leaves nothing behind that it should not.
	RuleStep = "step does not succeed"
	// RuleHistory: the history is complete, so that the other rules mean something.
	RuleHistory = "incomplete history"
)

const (
	// revokedFor is how long a request through an edge may still begin after its revocation was confirmed, and after the
	// end of a fault that held up what the edge had received before.
	revokedFor = 5 * time.Second
	// confirmedFor is how long the confirmation of a revocation may take. Times in which what confirms it is broken, and
	// blindFor after them, do not count.
	confirmedFor = 40 * time.Second
	// replacedFor is how long the previous workload cluster of a name may still answer.
	replacedFor = 5 * time.Second
	// arriveFor is how long a Cluster may take after clusterctl has moved it, or after the last fault that concerned it,
	// until it answers in its new place and only there.
	arriveFor = 30 * time.Second
	// readyFor is how long a Tunnel may still be reported as ready when all requests fail, and unwantedFor how long a
	// workload cluster may still answer that should have no tunnel. Times in which what reports or ends tunnels is broken,
	// and blindFor after them, do not count.
	readyFor, unwantedFor, blindFor = time.Minute, 30 * time.Second, 10 * time.Second
	// recoveredFor is how long requests may fail after the end of a step that has broken their path: docs/slo.md promises
	// no more, because Cluster API notices after 50 s.
	recoveredFor = 40 * time.Second
	// relayedFor is how long requests at another gateway may fail because of a gateway's fault: it may have relayed the
	// tunnels to that one, and a gateway that hangs is replaced only after a while.
	relayedFor = 20 * time.Second
	// doubtFor is how long after a fault of its disk a gateway may have connections without a record. If something is
	// denied meanwhile, it closes all of them within closedFor, with the streams in them (docs/security.md).
	doubtFor, closedFor = 3 * time.Minute, 40 * time.Second
	// lateShare of a bound voids it: a canary that was late for that long proves that the machine was.
	lateShare = 20
)

// Violation is something that must never happen, or that had to happen and did not.
type Violation struct {
	Rule string
	At   time.Duration
	What string
	// Void says that the machine itself was late, so that a missed time proves nothing.
	Void bool
}

func (v Violation) String() string {
	return fmt.Sprintf("%s at %s: %s", v.Rule, v.At.Round(time.Millisecond), v.What)
}

// Check returns the violations that a history shows, in the order of their times. It reads nothing else.
func Check(history []Entry) []Violation {
	r := newRecord(history)
	r.checkHistory(history)
	for _, ask := range r.asks {
		answer, ended := r.answers[ask.ID]
		if !ended {
			r.find(RuleLost, ask.At, "%s %s %s", ask.Client, ask.Cluster, ask.Path)
			continue
		}
		r.checkBound(ask, answer)
		r.checkAnswer(ask, answer)
		r.checkFailure(ask, answer)
	}
	r.checkCarried()
	r.checkFinal()
	r.checkRevocations()
	r.checkMoves()
	r.checkReady()
	r.checkUsage()
	slices.SortStableFunc(r.found, func(a, b Violation) int { return cmp.Compare(a.At, b.At) })
	return r.found
}

// record is a history by what its entries are about.
type record struct {
	run      Entry
	asks     []Entry
	answers  map[int64]Entry
	expected map[string][]Entry       // by workload cluster, in the order of their times
	revoked  map[string][]span        // by the address of the edge, until another one has its place
	held     map[string][]span        // by the address of the edge: faults that hold up what it has received
	carried  []Entry                  // requests that arrived through revoked edges
	retired  map[string][]span        // by the address of the edge, likewise
	revoking map[string]time.Duration // when the revocation of each node began
	nodes    map[string]time.Duration // when it was confirmed
	proven   []revocation
	denied   bool               // an xds-server has denied resources of another node
	ready    map[string][]Entry // by workload cluster, in the order of their times
	readyNow []Entry            // in the end
	kubes    []Entry            // requests with kubeconfigs
	moves    []Entry            // begins and ends of moves, and arrivals
	steps    []span
	late     []span
	usage    []Entry
	found    []Violation
}

// span is a time in which a step was under way, or the canary was late.
type span struct {
	id         int64
	begin, end time.Duration
	text       string
	open       bool
	breaks     string // as Step.Breaks
	action     Action
	blinds     bool // as Step.Blinds
	relays     bool // as Step.Relays
	fault      bool // as Action.IsFault
	networks   bool // as Step.BreaksNetworks
	all        bool // as Step.BreaksAll
	brief      bool // as Step.Brief
	doubts     bool // as Step.Doubts
	denies     bool // as Step.Denies
	// redundant says of a fault of one of two edges that nothing else may have broken what the other one carries.
	redundant bool
	confirmed time.Duration // of a revocation: when it was; 0: it was not
}

// revocation is one that was confirmed.
type revocation struct {
	cluster, node string
	from, to      time.Duration
}

func newRecord(history []Entry) *record {
	r := &record{
		answers: map[int64]Entry{}, expected: map[string][]Entry{}, revoked: map[string][]span{}, held: map[string][]span{},
		nodes: map[string]time.Duration{}, ready: map[string][]Entry{}, retired: map[string][]span{},
		revoking: map[string]time.Duration{},
	}
	for _, e := range history {
		r.read(e)
	}
	for i, s := range r.steps {
		r.steps[i].redundant = s.fault && Inventory[s.breaks] > 1 && !r.beside(s)
	}
	return r
}

func (r *record) read(e Entry) {
	switch e.Kind {
	case KindRun:
		r.run = e
	case KindAsk:
		r.asks = append(r.asks, e)
	case KindAnswer:
		r.answers[e.ID] = e
	case KindStep:
		r.readStep(e)
	case KindDone:
		for i := range r.steps {
			if r.steps[i].id == e.ID {
				r.steps[i].end, r.steps[i].open = e.At, false
				if e.Error != "" {
					r.find(RuleStep, e.At, "%s: %s", r.steps[i].text, e.Error)
				}
			}
		}
	case KindExpect:
		r.expected[e.Cluster] = append(r.expected[e.Cluster], e)
	case KindRevoking:
		r.revoking[e.Name] = e.At
	case KindRevoked:
		r.readRevoked(e)
	case KindRetired:
		r.retired[e.Edge] = append(r.retired[e.Edge], span{begin: e.At, open: true})
	case KindFetched:
		r.readFetched(e)
	case KindCarried:
		r.carried = append(r.carried, e)
	case KindHeld:
		r.held[e.Edge] = append(r.held[e.Edge], span{id: e.ID, begin: e.At, open: true})
	case KindReleased:
		release(r.held[e.Edge], e)
	case KindReady:
		r.readReady(e)
	case KindKubeconfig:
		r.kubes = append(r.kubes, e)
	case KindLeaves, KindMoved, KindArrived:
		r.moves = append(r.moves, e)
	case KindPlaced:
		replaced(r.revoked[e.Edge], e.At)
		replaced(r.retired[e.Edge], e.At)
	case KindLate:
		r.late = append(r.late, span{begin: e.At - e.Late, end: e.At})
	case KindUsage:
		r.usage = append(r.usage, e)
	case KindSecret:
		r.find(RuleSecret, e.At, "%s contains %s", e.Name, e.Text)
	case KindCrashed:
		r.find(RuleCrash, e.At, "%s: %s", e.Name, e.Text)
	case KindDenied:
		r.denied = true
	case KindFinish:
	default:
		r.find(RuleHistory, e.At, "unknown kind %q", e.Kind)
	}
}

// replaced ends what was true of an edge, because another one has its place.
func replaced(spans []span, at time.Duration) {
	for i := range spans {
		if spans[i].open {
			spans[i].end, spans[i].open = at, false
		}
	}
}

func (r *record) readReady(e Entry) {
	if e.Client == Final {
		r.readyNow = append(r.readyNow, e)
		return
	}
	r.ready[e.Cluster] = append(r.ready[e.Cluster], e)
}

func (r *record) readRevoked(e Entry) {
	r.revoked[e.Edge] = append(r.revoked[e.Edge], span{begin: e.At, open: true})
	r.nodes[e.Name] = e.At
	if from, is := r.revoking[e.Name]; is {
		r.proven = append(r.proven, revocation{e.Cluster, e.Name, from, e.At})
	}
	for i, s := range r.steps {
		if s.open && s.action == Revoke && s.breaks == e.Cluster {
			r.steps[i].confirmed = e.At
		}
	}
}

// beside reports whether another step may have broken the same requests as a fault, or shortly before it.
func (r *record) beside(of span) bool {
	return slices.ContainsFunc(r.steps, func(s span) bool {
		return s.id != of.id && (s.breaks == of.breaks || s.relays || s.all) && s.begin <= of.end &&
			(s.open || s.end >= of.begin-recoveredFor)
	})
}

func (r *record) readFetched(e Entry) {
	if e.Client != "" {
		r.find(RuleSubject, e.At, "those of %s for %s", e.Name, e.Client)
	} else if at, revoked := r.nodes[e.Name]; revoked && e.At > at+revokedFor {
		r.find(RuleSubject, e.At, "%s, %s after its revocation", e.Name, e.At-at)
	}
}

// release ends what held up an edge. If packets were lost, they may come after as much time again, because TCP doubles
// the interval of its attempts (RFC 6298, section 5.5).
func release(held []span, e Entry) {
	for i := range held {
		if s := &held[i]; s.open && s.id == e.ID {
			s.end, s.open = e.At, false
			if e.Text != string(Freeze) {
				s.end += e.At - s.begin
			}
		}
	}
}

// checkCarried checks that no request has arrived through a revoked edge.
func (r *record) checkCarried() {
	for _, e := range r.carried {
		for _, s := range r.revoked[e.Edge] {
			if r.after(s, e.Edge, e.At) && (s.open || e.At < s.end) {
				r.find(RuleRevoked, e.At, "a request for %s arrived through %s, %s after its revocation", e.Cluster, e.Edge,
					e.At-s.begin)
			}
		}
	}
}

// after reports whether an edge must carry nothing at a time, because it was revoked long before. What it received
// earlier may be held up by a fault, or by several.
func (r *record) after(revoked span, edge string, at time.Duration) bool {
	last := revoked.begin + revokedFor
	for _, s := range r.held[edge] {
		switch {
		case s.begin > last || !s.open && s.end < revoked.begin:
		case s.open:
			return false
		default:
			last = max(last, s.end+revokedFor)
		}
	}
	return at > last
}

func (r *record) readStep(e Entry) {
	s := span{id: e.ID, begin: e.At, end: e.At, text: e.Text, open: true}
	if steps, err := Parse(e.Text); err != nil || len(steps) != 1 {
		r.find(RuleHistory, e.At, "unknown step %q", e.Text)
	} else {
		s.breaks, s.blinds, s.relays = steps[0].Breaks(), steps[0].Blinds(), steps[0].Relays()
		s.networks, s.all, s.fault = steps[0].BreaksNetworks(), steps[0].BreaksAll(), steps[0].Action.IsFault()
		s.action, s.brief, s.doubts, s.denies = steps[0].Action, steps[0].Brief(), steps[0].Doubts(), steps[0].Denies()
	}
	r.steps = append(r.steps, s)
}

func (r *record) find(rule string, at time.Duration, format string, args ...any) {
	r.found = append(r.found, Violation{Rule: rule, At: at, What: fmt.Sprintf(format, args...)})
}

// findLate is find for a missed time, which is void if the machine was late.
func (r *record) findLate(rule string, from, to, bound time.Duration, format string, args ...any) {
	r.find(rule, to, format, args...)
	var late time.Duration
	for _, s := range r.late {
		late += max(0, min(s.end, to)-max(s.begin, from))
	}
	r.found[len(r.found)-1].Void = late > max(bound, to-from)/lateShare
}

// checkHistory finds what is missing. An empty history would else have no violation.
func (r *record) checkHistory(history []Entry) {
	if len(history) == 0 || history[0].Kind != KindRun || r.run.Settle == 0 {
		r.find(RuleHistory, 0, "it does not begin with a run")
	}
	if len(history) == 0 || history[len(history)-1].Kind != KindFinish {
		r.find(RuleHistory, 0, "it has no end")
	}
	if len(r.asks) == 0 {
		r.find(RuleHistory, 0, "it has no request")
	}
	if !r.denied {
		r.find(RuleHistory, 0, "no xds-server was asked for the resources of another node")
	}
	for _, s := range r.steps {
		if s.open {
			r.find(RuleHistory, s.begin, "step %q has no end", s.text)
		}
	}
}

func (r *record) checkBound(ask, answer Entry) {
	if took := answer.At - ask.At; ask.Bound > 0 && took > ask.Bound {
		r.findLate(RuleBound, ask.At, answer.At, ask.Bound, "%s %s %s took %s", ask.Client, ask.Cluster, ask.Path, took)
	}
}

// checkAnswer checks which workload cluster and which edge answered.
func (r *record) checkAnswer(ask, answer Entry) {
	if answer.Answer == "" {
		return
	}
	if !r.may(ask.Cluster, answer.Answer, ask.At-replacedFor, answer.At) {
		r.find(RuleWrong, answer.At, "%s %s %s was answered by %s", ask.Client, ask.Cluster, ask.Path, answer.Answer)
	}
	carried := max(ask.At, answer.Last) // the edge carried something after this time
	for _, s := range r.revoked[answer.Edge] {
		if r.after(s, answer.Edge, carried) && (s.open || answer.At < s.end) {
			r.find(RuleRevoked, answer.At, "%s %s %s was carried by %s, %s after its revocation", ask.Client, ask.Cluster,
				ask.Path, answer.Edge, carried-s.begin)
		}
	}
	for _, s := range r.retired[answer.Edge] {
		if (s.open || answer.At < s.end) && r.sighted(ask.Cluster, s.begin, carried) > unwantedFor {
			r.findLate(RuleUnwanted, s.begin, answer.At, unwantedFor, "%s %s %s was carried by %s, an edge of an earlier Tunnel",
				ask.Client, ask.Cluster, ask.Path, answer.Edge)
		}
	}
	r.checkOutlived(ask, answer)
	down, is := r.down(ask.Cluster, ask.At)
	since, still := r.down(ask.Cluster, answer.At)
	if is && still && since == down && ask.Client != Final && r.sighted(ask.Cluster, down, ask.At) > unwantedFor {
		r.findLate(RuleUnwanted, down, answer.At, unwantedFor, "%s %s %s, %s after its tunnel was to end", ask.Client,
			ask.Cluster, ask.Path, ask.At-down)
	}
}

// checkOutlived finds a stream that continued after its tunnel had ended. A move ends no connection (docs/edge.md).
func (r *record) checkOutlived(ask, answer Entry) {
	if ask.Bound > 0 {
		return
	}
	for _, e := range r.expected[ask.Cluster] {
		if !e.Up && e.At > ask.At && !r.moving(ask.Cluster, e.At) &&
			r.sighted(ask.Cluster, e.At, answer.Last) > unwantedFor {
			r.findLate(RuleUnwanted, e.At, answer.Last, unwantedFor, "%s %s %s outlived its tunnel for %s", ask.Client,
				ask.Cluster, ask.Path, answer.Last-e.At)
			return
		}
	}
}

// moving reports whether a Cluster was being moved at a time.
func (r *record) moving(cluster string, at time.Duration) bool {
	return slices.ContainsFunc(r.steps, func(s span) bool {
		return (s.action == Move || s.action == Transfer) && s.breaks == home(cluster) && s.begin <= at &&
			(s.open || at <= s.end)
	})
}

// may reports whether a name is expected to answer for a workload cluster at some time between two times.
func (r *record) may(cluster, name string, from, to time.Duration) bool {
	all := r.expected[cluster]
	for i, e := range all {
		ends := to
		if i+1 < len(all) {
			ends = all[i+1].At
		}
		if e.Answer == name && e.At <= to && ends >= from {
			return true
		}
	}
	return false
}

// down returns since when a workload cluster should have had no tunnel at a time.
func (r *record) down(cluster string, at time.Duration) (since time.Duration, is bool) {
	for _, e := range r.expected[cluster] {
		if e.At > at {
			break
		}
		if e.Up {
			is = false
			continue
		}
		if !is {
			since, is = e.At, true
		}
	}
	return since, is
}

// up returns since when a workload cluster should have had a tunnel at a time.
func (r *record) up(cluster string, at time.Duration) (since time.Duration, is bool) {
	for _, e := range r.expected[cluster] {
		if e.At <= at {
			since, is = e.At, e.Up
		}
	}
	return since, is
}

// excused reports whether a step that may break a request was under way from a time until its end, or so shortly before
// that not everything had to work again.
func (r *record) excused(ask, answer Entry, from time.Duration) bool {
	// A gateway's agent permits new connections of networks only.
	open := ask.Bound == 0 && answer.Last > 0
	return slices.ContainsFunc(r.steps, func(s span) bool {
		var after time.Duration
		switch {
		case s.begin > answer.At:
			return false
		case s.networks && ask.Path == EgressPath && (!s.fault || !open || ask.At >= s.begin),
			s.all && !inSecond(ask.Cluster):
			after = recoveredFor
		case s.breaks == "" || s.action == Transfer:
			return false
		case s.breaks == home(ask.Cluster) || strings.HasSuffix(ask.Path, s.breaks):
			after = recoveredFor
		case s.relays && !inSecond(ask.Cluster):
			after = relayedFor
		default:
			return false
		}
		until, open := s.over(after)
		return open || until >= from
	}) || r.inDoubt(ask, answer)
}

// inDoubt reports whether a gateway may have closed the connection of an open request, because it had no record of it
// when an edge or a tunnel was denied.
func (r *record) inDoubt(ask, answer Entry) bool {
	if ask.Bound > 0 && ask.Client != Idle || inSecond(ask.Cluster) {
		return false
	}
	during := func(s span, after time.Duration) bool {
		return s.begin <= answer.At && (s.open || s.end+after >= answer.At)
	}
	return slices.ContainsFunc(r.steps, func(disk span) bool {
		return disk.doubts && during(disk, doubtFor) && slices.ContainsFunc(r.steps, func(s span) bool {
			return s.denies && during(s, closedFor) && (s.open || s.end >= disk.begin)
		})
	})
}

// over returns when a step is no excuse any longer for requests that may fail for so long after it, and whether that is
// not known because it is under way.
func (s span) over(after time.Duration) (at time.Duration, open bool) {
	switch {
	case s.confirmed > 0: // nothing breaks while the next edge is started
		return s.confirmed + after, false
	case s.brief:
		return s.begin + after, false
	case s.redundant:
		return max(s.end, s.begin+after), s.open
	}
	return s.end + after, s.open
}

// checkFailure checks that there was a reason for a failure.
func (r *record) checkFailure(ask, answer Entry) {
	if from, judged := r.judges(ask, answer); judged && answer.Error != "" {
		r.findLate(RuleCalm, from, answer.At, max(ask.Bound, time.Second), "%s %s %s: %s", ask.Client, ask.Cluster,
			ask.Path, answer.Error)
	}
}

// judges reports whether there is no excuse if a request fails, and from when on it must not: of a stream only the end
// counts.
func (r *record) judges(ask, answer Entry) (from time.Duration, judged bool) {
	from = ask.At
	if ask.Bound == 0 {
		from = answer.At
	}
	since, up := r.up(ask.Cluster, from)
	return from, ask.Client != Final && up && r.due(ask.Cluster, since) <= from &&
		!r.excused(ask, answer, from) && !r.away(ask, from, answer.At)
}

// judged returns the number of requests for whose failure there would have been no excuse.
func (r *record) judged() (sum int) {
	for _, ask := range r.asks {
		answer, ended := r.answers[ask.ID]
		if _, judged := r.judges(ask, answer); ended && judged {
			sum++
		}
	}
	return sum
}

// due returns when everything has to work for a workload cluster that has been expected since a time: at once if it
// answered before, and as soon as it has arrived if it was moved.
func (r *record) due(cluster string, since time.Duration) time.Duration {
	due := since + r.run.Settle
	for _, e := range r.expected[cluster] {
		if e.At == since && e.Settled {
			return since
		}
	}
	for _, e := range r.moves {
		if e.Kind == KindArrived && e.Cluster == cluster && e.At >= since {
			due = min(due, e.At)
		}
	}
	return due
}

// away reports whether a workload cluster was being moved away, or had not come back, between two times. Streams that
// were open then may end later: an edge closes them when the way back is prepared.
func (r *record) away(ask Entry, from, to time.Duration) bool {
	away := false
	for _, e := range r.moves {
		switch {
		case e.Cluster != ask.Cluster || e.At > to:
		case e.Kind == KindLeaves:
			if away = true; ask.At <= e.At {
				return true
			}
		case e.Kind == KindArrived && e.At < from:
			away = false
		}
	}
	return away
}

// checkFinal checks the requests after the run has settled.
func (r *record) checkFinal() {
	var last time.Duration
	for _, s := range r.steps {
		last = max(last, s.end)
	}
	sent, works := map[string]bool{}, map[string]bool{}
	for _, ask := range r.asks {
		answer, ended := r.answers[ask.ID]
		if ask.Client != Final || !ended {
			continue
		}
		sent[ask.Cluster] = true
		works[ask.Cluster] = works[ask.Cluster] || answer.Error == ""
		_, up := r.up(ask.Cluster, ask.At)
		if up && answer.Error != "" {
			r.findLate(RuleSettled, last, answer.At, r.run.Settle, "%s %s: %s", ask.Cluster, ask.Path, answer.Error)
		}
		if !up && answer.Error == "" {
			r.findLate(RuleUnwanted, last, answer.At, r.run.Settle, "%s %s", ask.Cluster, ask.Path)
		}
	}
	for cluster := range r.expected {
		if !sent[cluster] {
			r.find(RuleHistory, last, "no last request was sent to %s", cluster)
		}
	}
	for _, k := range r.kubes {
		if _, up := r.up(k.Cluster, k.At); up && k.Error != "" && works[k.Cluster] {
			r.findLate(RuleKubeconfig, last, k.At, r.run.Settle, "%s: %s", k.Cluster, k.Error)
		}
	}
	for _, e := range r.readyNow {
		if _, up := r.up(e.Cluster, e.At); up && works[e.Cluster] && !e.Up {
			r.findLate(RuleNotReady, last, e.At, r.run.Settle, "%s", e.Cluster)
		}
	}
}

// checkRevocations checks that each revocation was confirmed in time.
func (r *record) checkRevocations() {
	for _, v := range r.proven {
		if r.sighted(v.cluster, v.from, v.to) > confirmedFor {
			r.findLate(RuleRevoked, v.from, v.to, confirmedFor, "%s of %s: the revocation was confirmed after %s", v.node,
				v.cluster, v.to-v.from)
		}
	}
}

// home returns the name of a workload cluster without the installation, because its edges and its apiserver stay where
// they are. inSecond reports whether it is the second one, in which nothing is ever broken.
func home(cluster string) string { return strings.TrimSuffix(cluster, Second) }

func inSecond(cluster string) bool { return strings.HasSuffix(cluster, Second) }

// checkMoves checks that each Cluster that was moved answered in its new place, and only there, in time. The time does
// not count while a fault had broken the Cluster.
func (r *record) checkMoves() {
	for i, moved := range r.moves {
		if moved.Kind != KindMoved {
			continue
		}
		at := slices.IndexFunc(r.moves[i:], func(e Entry) bool { return e.Kind == KindArrived && e.Cluster == moved.Cluster })
		if at < 0 {
			r.find(RuleMoved, moved.At, "%s never arrived", moved.Cluster)
			continue
		}
		arrived, from := r.moves[i+at].At, moved.At
		for _, s := range r.steps {
			if s.fault && s.begin <= arrived && (s.breaks == home(moved.Cluster) || s.relays || s.blinds) {
				from = max(from, s.end)
			}
		}
		if arrived-from > arriveFor {
			r.findLate(RuleMoved, from, arrived, arriveFor, "%s, for %s", moved.Cluster, arrived-from)
		}
	}
}

// checkReady finds times in which all requests to a workload cluster failed for too long and its Tunnel was ready.
func (r *record) checkReady() {
	type failing struct {
		since time.Duration
		is    bool
	}
	state := map[string]failing{}
	for _, q := range byEnd(r.ended()) {
		f, cluster, at := state[q.ask.Cluster], q.ask.Cluster, q.answer.At
		switch {
		case q.answer.Error == "":
			f.is = false
		case !f.is:
			f = failing{since: q.ask.At, is: true}
		default:
			since, ready := r.readySince(cluster, at)
			since = max(since, f.since)
			if ready && r.sighted(cluster, since, at) > readyFor {
				r.findLate(RuleReady, since, at, readyFor, "%s, for %s", cluster, at-since)
				f.is = false
			}
		}
		state[cluster] = f
	}
}

// readySince returns since when a Tunnel was ready at a time.
func (r *record) readySince(cluster string, at time.Duration) (since time.Duration, is bool) {
	for _, e := range r.ready[cluster] {
		if e.At > at {
			break
		}
		if e.Up && !is {
			since = e.At
		}
		is = e.Up
	}
	return since, is
}

// sighted returns for how long, between two times, nothing kept the status of a workload cluster from being current,
// and its tunnel from beginning or ending.
func (r *record) sighted(cluster string, from, to time.Duration) time.Duration {
	var blind []span
	for _, s := range r.steps {
		if s.blinds && !inSecond(cluster) || strings.HasSuffix(s.text, string(Pause)+" "+home(cluster)) {
			end := s.end + blindFor
			if s.open {
				end = to
			}
			blind = append(blind, span{begin: s.begin, end: end})
		}
	}
	slices.SortFunc(blind, func(a, b span) int { return cmp.Compare(a.begin, b.begin) })
	sum, seen := time.Duration(0), from
	for _, s := range blind {
		sum += max(0, min(s.begin, to)-seen)
		seen = max(seen, s.end)
	}
	return sum + max(0, to-seen)
}

// The most that a process may use in the end, compared with the most of its kind before: a factor and an absolute
// amount. Both are generous, because garbage collection and caches vary, and a leak grows with the length of a run.
const (
	memoryFactor, memoryMore = 2, 64 << 20
	heapFactor, heapMore     = 2, 16 << 20
	filesFactor, filesMore   = 2, 64
	// The Envoy of an edge opens its lanes when it has clients, maybe after the first measurement: at each of three
	// gateways up to 64 reverse tunnels with three files each.
	laneFiles        = 3 * 3 * 64
	goFactor, goMore = 2, 64
	// A gateway replaces its log of tunnels when it has 8 MiB, and has two of them for a while.
	diskFactor, diskMore = 2, 20 << 20
	// An edge has no such log, and its disk has 4 MiB.
	edgeDiskMore = 1 << 20
	// Objects do not vary, but a Cluster that exists in the end may not have existed before.
	objectsFactor, objectsMore = 1, 40
)

func (r *record) checkUsage() {
	before := map[string]Entry{}
	for _, e := range r.usage {
		if b := before[e.Process]; !e.After {
			b.Memory, b.Files = max(b.Memory, e.Memory), max(b.Files, e.Files)
			b.Goroutines, b.Disk = max(b.Goroutines, e.Goroutines), max(b.Disk, e.Disk)
			b.Objects, b.Heap = max(b.Objects, e.Objects), max(b.Heap, e.Heap)
			before[e.Process] = b
		}
	}
	for _, e := range r.usage {
		if !e.After {
			continue
		}
		b, known := before[e.Process]
		files, disk := b.Files*filesFactor+filesMore, b.Disk*diskFactor+diskMore
		if e.Process == "edge-agent" {
			disk = b.Disk*diskFactor + edgeDiskMore
		}
		if strings.HasSuffix(e.Process, "-envoy") {
			files += laneFiles
		}
		switch {
		case e.Error != "":
			r.findLate(RuleUsage, e.At-r.run.Settle, e.At, r.run.Settle, "a process cannot be measured: %s", e.Error)
		case !known:
			r.find(RuleHistory, e.At, "nothing is known of a %s before the run", e.Process)
		case e.Memory > b.Memory*memoryFactor+memoryMore:
			r.find(RuleUsage, e.At, "%s uses %d MiB, before at most %d", e.Name, e.Memory>>20, b.Memory>>20)
		case e.Heap > b.Heap*heapFactor+heapMore:
			r.find(RuleUsage, e.At, "%s uses %d MiB of its heap, before at most %d", e.Name, e.Heap>>20, b.Heap>>20)
		case e.Files > files:
			r.find(RuleUsage, e.At, "%s has %d open files, before at most %d", e.Name, e.Files, b.Files)
		case e.Goroutines > b.Goroutines*goFactor+goMore:
			r.find(RuleUsage, e.At, "%s has %d goroutines, before at most %d", e.Name, e.Goroutines, b.Goroutines)
		case e.Disk > disk:
			r.find(RuleUsage, e.At, "%s stores %d KiB, before at most %d", e.Name, e.Disk>>10, b.Disk>>10)
		case e.Objects > b.Objects*objectsFactor+objectsMore:
			r.find(RuleUsage, e.At, "%s are %d, before %d", e.Name, e.Objects, b.Objects)
		}
	}
}
