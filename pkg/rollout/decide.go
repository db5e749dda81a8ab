package rollout

import (
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/fairlead/fairlead/pkg/model"
)

const (
	// DefaultSoak is how long a change is observed in each phase. It is twice the time that Envoy's pings need to
	// detect a dead tunnel, that an edge needs to dial again with the longest backoff, and that an Envoy needs to
	// restart after a crash.
	DefaultSoak = 2 * time.Minute
	// MinSoak is the shortest time in which a tunnel can be dialled again.
	MinSoak = 4 * time.Second
	// lossPart is the part of the soak for which a fault must last before it counts: a change may make a node dial its
	// tunnels again, which takes seconds.
	lossPart = 4
	// firstPart and restPart state how many tunnels with a faulty edge stop a rollout: one in firstPart edges of the first
	// wave, one in restPart of all edges, and at least one. So one tenant can stop a rollout with a small first wave, but
	// not one of a fleet of thousands.
	firstPart, restPart = 20, 100
	// patience is how many soaks a rollout waits, after the time of a phase, for faults that come and go, for gateways
	// that are away, for nodes that are not served, and for answers. Otherwise two edges that drop their tunnels in turn,
	// or one gateway that was removed, would keep a phase forever.
	patience = 5
	// maxReason is the longest text of a reason, which quotes a node.
	maxReason = 400
)

// Decider decides about one installation. It stores in memory since when nodes have had faults. A new leader
// observes this again: faults that began earlier count from then on, and the soak begins again. It is not safe for
// concurrent use.
type Decider struct {
	Soak      time.Duration // zero: DefaultSoak
	Immediate bool          // a change applies to all nodes at once

	decided time.Time     // when Decide was called last
	watched Record        // the rollout and the phase that the fields below describe
	since   time.Time     // when this decider started to observe it
	delayed time.Duration // how long only patience has delayed the next phase
	faulty  map[Node]time.Time
	before  map[Node]Edge // the edges before all nodes got the profile
	excused map[Node]bool // nodes that had a fault before
	small   time.Time     // since when the fleet is small for the size in its record; zero: it is not
}

// Input is the input of a decision.
type Input struct {
	Record *Record // nil: there is none
	Observation
	Retry string          // the value of RetryAnnotation
	Gone  func(Node) bool // whether an edge's tunnel has ended or the edge is revoked; nil: none
}

// Decide returns the next record; nil: there is none yet. It returns in.Record itself if nothing changes. Times are
// measured by the monotonic clock reading of now, if it has one, so that a changed clock neither ends nor prolongs a
// phase.
func (d *Decider) Decide(in Input, now time.Time) *Record {
	next := d.decide(in, now)
	d.decided = now
	if next == nil {
		return nil
	}
	if size := d.size(in, now); size != next.Size {
		resized := *next
		resized.Size = size
		return &resized
	}
	return next
}

func (d *Decider) decide(in Input, now time.Time) *Record {
	r := in.Record
	target, agreed := in.target()
	switch {
	case r == nil && agreed: // a new installation
		return &Record{Initial: target, Current: target, Since: recorded(now), Retried: in.Retry}
	case r == nil:
		return nil
	case !agreed:
	case d.Immediate && (r.Phase != PhaseNone || target != r.Current):
		return &Record{
			Initial: r.Initial, Current: target, Since: recorded(now), Reason: "applied at once", Retried: in.Retry,
		}
	case target == r.Current && r.Phase != PhaseNone:
		return &Record{
			Initial: r.Initial, Current: target, Since: recorded(now),
			Reason: "the xds-servers are configured as before again", Retried: in.Retry,
		}
	case target != r.Current && (r.Phase == PhaseNone || target != r.Next || in.retries(*r)):
		if (!in.Known || len(in.Gateways) == 0) && stranded(r.Current, target, model.MaxGateways) != "" {
			return r // it depends on the number of gateways
		}
		return d.begin(*r, target, in, now)
	}
	switch r.Phase {
	case PhaseFirst, PhaseRest:
		return d.watch(r, in, agreed, now)
	}
	return r
}

// retries reports whether an operator retries a rollout. A removed annotation is no retry.
func (in Input) retries(r Record) bool { return in.Retry != "" && in.Retry != r.Retried }

// Idle reports whether Decide changes nothing, whatever the nodes do: no rollout is in a phase that observes them, and
// none has to begin, and the size is right. Only Known, Targets, Total and Retry of the input are used, so a caller
// need not collect the others.
func (d *Decider) Idle(in Input, now time.Time) bool {
	r := in.Record
	if r == nil || r.Phase == PhaseFirst || r.Phase == PhaseRest || d.size(in, now) != r.Size {
		return false
	}
	target, agreed := in.target()
	switch {
	case !agreed || target == r.Current && r.Phase == PhaseNone:
		return true
	case d.Immediate || target == r.Current:
		return false
	}
	return r.Phase == PhaseStopped && target == r.Next && !in.retries(*r)
}

// begin starts a rollout with its first wave. If no node is eligible, all nodes get the profile. It stops a rollout
// that would leave clients without a tunnel.
func (d *Decider) begin(r Record, target Profile, in Input, now time.Time) *Record {
	if reason := stranded(r.Current, target, len(in.Gateways)); reason != "" {
		return &Record{
			Initial: r.Initial, Current: r.Current, Next: target, Phase: PhaseStopped, Since: recorded(now), Reason: reason,
			Retried: in.Retry,
		}
	}
	next := &Record{
		Initial: r.Initial, Current: r.Current, Next: target, Phase: PhaseFirst, Since: recorded(now),
		Retried: in.Retry, Nodes: choose(in.Observation, now),
	}
	if len(next.Nodes) == 0 {
		next.Phase = PhaseRest
	}
	d.startPhase(next, in, now)
	return next
}

// stranded returns why a profile must not follow another with a number of gateways; empty: it may. While nodes have
// both profiles, gateways that forward no clients need the tunnels of all edges.
func stranded(current, next Profile, gateways int) string {
	before, errBefore := current.Settings()
	after, errAfter := next.Settings()
	if errBefore != nil || errAfter != nil || (before.PerTunnel == 0) == (after.PerTunnel == 0) ||
		max(before.PerTunnel, after.PerTunnel) >= gateways {
		return ""
	}
	return fmt.Sprintf(
		"--gateways-per-tunnel changes from %d to %d, and only gateways of one of the two forward clients: roll out %d first",
		before.PerTunnel, after.PerTunnel, model.MaxGateways,
	)
}

// recorded returns a time in the form of a record.
func recorded(at time.Time) time.Time { return at.UTC().Truncate(time.Second) }

// watch stops a rollout, starts its next phase, completes it, or returns the record unchanged.
func (d *Decider) watch(r *Record, in Input, agreed bool, now time.Time) *Record {
	if !d.startPhase(r, in, now) {
		return r
	}
	found := d.evaluate(r, in, now)
	if reason := found.reason(r, in); reason != "" {
		return stop(*r, reason, now)
	}
	if !agreed || now.Sub(d.since) < d.soak() || found.missing > 0 {
		return r
	}
	if r.Phase == PhaseFirst && found.seen == 0 {
		return d.begin(*r, r.Next, in, now) // all nodes of the first wave have gone for good
	}
	if delay := found.delay(r, in); delay != "" {
		if d.waits(now) {
			return r
		}
		return stop(*r, fmt.Sprintf("%s (delays the rollout for %v)", delay, d.delayed.Round(time.Second)), now)
	}
	if r.Phase == PhaseFirst {
		rest := *r
		rest.Phase, rest.Since, rest.Nodes = PhaseRest, recorded(now), nil
		d.startPhase(&rest, in, now)
		return &rest
	}
	reason := "all nodes run it"
	if open := in.Total - in.Answered; open >= bound(len(in.Edges), restPart) {
		if d.waits(now) {
			return r
		}
		reason = fmt.Sprintf("%d of %d nodes have not answered, all others run it", open, in.Total)
	}
	return &Record{Initial: r.Initial, Current: r.Next, Since: recorded(now), Reason: reason, Retried: r.Retried}
}

func stop(r Record, reason string, now time.Time) *Record {
	r.Phase, r.Since, r.Reason, r.Nodes = PhaseStopped, recorded(now), reason, nil
	return &r
}

// waits adds the time since the previous decision to the delay of a phase, and returns whether it may go on.
func (d *Decider) waits(now time.Time) bool {
	d.delayed += now.Sub(d.decided)
	return d.delayed < patience*d.soak()
}

func (d *Decider) soak() time.Duration {
	if d.Soak == 0 {
		return DefaultSoak
	}
	return d.Soak
}

// startPhase starts to observe a phase, once for each phase. It returns false if it cannot yet, because the nodes to
// compare with are not known.
func (d *Decider) startPhase(r *Record, in Input, now time.Time) bool {
	if d.watched.Next == r.Next && d.watched.Phase == r.Phase && d.watched.Since.Equal(r.Since) {
		return true
	}
	if r.Phase == PhaseRest && !in.Known {
		d.watched = Record{}
		return false
	}
	d.watched, d.since, d.faulty, d.excused = *r, now, map[Node]time.Time{}, map[Node]bool{}
	d.before, d.delayed = nil, 0
	if r.Phase != PhaseRest {
		return true
	}
	d.before = maps.Clone(in.Edges)
	for n, e := range in.Edges {
		if s := in.Nodes[n]; !e.Connected || e.Trouble != "" || s.Refusal != "" && s.Profile != r.Next.ID() {
			d.excused[n] = true
		}
	}
	return true
}

// findings are the observed faults of a rollout. Texts are a node and a cause.
type findings struct {
	edges, gateways []string        // nodes whose fault has lasted
	tunnels         map[string]bool // of these edges
	brief           []string        // nodes with a fault that may pass, or that are away
	afflicted       map[string]bool // tunnels with an edge in edges or brief
	away            bool            // a gateway is in brief
	seen            int             // nodes that have not gone for good
	missing         int             // nodes about which nothing is known
}

// reason returns why a rollout has to stop; empty: it continues.
func (f findings) reason(r *Record, in Input) string {
	total, part := len(in.Edges), restPart
	if r.Phase == PhaseFirst {
		total, part = edgesOf(r.Nodes), firstPart
	}
	reason := ""
	switch {
	case len(f.gateways) > 0:
		reason = f.gateways[0]
	case len(f.tunnels) >= bound(total, part):
		reason = f.edges[0]
	default:
		return ""
	}
	if more := len(f.gateways) + len(f.edges) - 1; more > 0 {
		reason += fmt.Sprintf(" (and %d more)", more)
	}
	return reason
}

// delay returns for which node the next phase has to wait; empty: for none. Later than in the first wave, some edges of
// a large fleet always dial again, so these delay nothing unless so many faults would stop the rollout.
func (f findings) delay(r *Record, in Input) string {
	if len(f.brief) == 0 ||
		r.Phase == PhaseRest && !f.away && len(f.afflicted) < bound(len(in.Edges), restPart) {
		return ""
	}
	return f.brief[0]
}

// bound returns how many edges with faults stop a rollout.
func bound(total, part int) int { return max(1, total/part) }

func edgesOf(members []Member) (n int) {
	for _, m := range members {
		if m.ID != "" {
			n++
		}
	}
	return n
}

// evaluate compares the nodes of a rollout with their state before it.
func (d *Decider) evaluate(r *Record, in Input, now time.Time) findings {
	f, c := findings{tunnels: map[string]bool{}, afflicted: map[string]bool{}}, newComparison(r, in)
	for _, m := range d.subjects(r, in) {
		if in.Gone != nil && m.ID != "" && absent(m, in.Edges[m.Node]) && in.Gone(m.Node) {
			continue
		}
		f.seen++
		if d.excused[m.Node] {
			continue
		}
		cause, is := c.fault(m)
		if is == missing {
			f.missing++
		}
		if is == healthy || is == missing {
			delete(d.faulty, m.Node)
			continue
		}
		if d.faulty[m.Node].IsZero() {
			d.faulty[m.Node] = now
		}
		lasts := is == rejects || is == faulty && now.Sub(d.faulty[m.Node]) >= d.soak()/lossPart
		f.add(m, cut(m.String()+": "+cause), lasts)
	}
	return f
}

func (f *findings) add(m Member, text string, lasts bool) {
	switch {
	case !lasts:
		f.brief = append(f.brief, text)
	case m.ID == "":
		f.gateways = append(f.gateways, text)
	default:
		f.edges, f.tunnels[m.ID] = append(f.edges, text), true
	}
	if m.ID != "" {
		f.afflicted[m.ID] = true
	} else if !lasts {
		f.away = true
	}
}

// absent reports whether an edge has no stream, or none of the tunnels that it had, so that it may be gone for good.
// The Envoy beside an apiserver never has a tunnel, nor has an edge of a network that nobody uses yet.
func absent(m Member, e Edge) bool {
	return !e.Connected || len(m.Tunnels) > 0 && len(e.Tunnels) == 0
}

// subjects returns the nodes whose faults count: the first wave, and later all nodes.
func (d *Decider) subjects(r *Record, in Input) []Member {
	if r.Phase == PhaseFirst {
		return r.Nodes
	}
	all := make([]Member, 0, len(in.Gateways)+len(d.before))
	for name := range in.Gateways {
		all = append(all, Member{Node: Node{Name: name}})
	}
	for n, e := range d.before {
		all = append(all, Member{Node: n, Tunnels: e.Tunnels})
	}
	for n := range in.Nodes { // edges that have connected since, and reject something
		if _, had := d.before[n]; !had && n.ID != "" {
			all = append(all, Member{Node: n})
		}
	}
	slices.SortFunc(all, func(a, b Member) int { return a.Compare(b.Node) })
	return all
}

// cut bounds the length of a reason.
func cut(text string) string {
	if len(text) > maxReason {
		text = strings.ToValidUTF8(text[:maxReason], "") + "…"
	}
	return text
}
