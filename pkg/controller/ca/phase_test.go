package ca

import (
	"fmt"
	"math/rand/v2"
	"testing"
	"time"

	"github.com/fairlead/fairlead/api/v1alpha1"
	"github.com/fairlead/fairlead/pkg/certs"
	"github.com/fairlead/fairlead/pkg/controller/config"
	"github.com/fairlead/fairlead/pkg/model"
)

func newIssuer(t *testing.T, name string, at time.Time, life time.Duration) *Issuer {
	t.Helper()
	ca, err := certs.NewCA(name, at, life)
	if err != nil {
		t.Fatal(err)
	}
	return &Issuer{CA: ca, made: true}
}

func TestStep(t *testing.T) {
	at := time.Now()
	timing := config.Timing{Leaf: 24 * time.Hour, Overlap: 90 * 24 * time.Hour, Life: config.DefaultCALifetime}
	old, next, third := newIssuer(
		t, "old", at, config.DefaultCALifetime,
	), newIssuer(t, "next", at, config.DefaultCALifetime), newIssuer(t, "third", at, config.DefaultCALifetime)
	ending, month := newIssuer(t, "ending", at, time.Hour), newIssuer(t, "month", at, 30*24*time.Hour)
	steady := caState{phase: v1alpha1.CAPhaseSteady, signing: old}
	introduce := caState{phase: v1alpha1.CAPhaseIntroduce, signing: old, next: next, since: at}
	waiting := caState{phase: v1alpha1.CAPhaseIntroduce, signing: old, next: next}
	move := caState{phase: v1alpha1.CAPhaseMove, signing: next, previous: old, since: at}
	retire := caState{phase: v1alpha1.CAPhaseRetire, signing: next, previous: old, since: at}
	tests := map[string]struct {
		state caState
		facts caFacts // now is after at by this
		after time.Duration
		want  v1alpha1.CAPhase // empty: nothing changes
		next  *Issuer
	}{
		"nothing is new":        {state: steady, facts: caFacts{source: old}},
		"no source can be used": {state: steady},
		"the source is another": {
			state: steady, facts: caFacts{source: next}, want: v1alpha1.CAPhaseIntroduce, next: next,
		},
		"the bundle is not out yet": {
			state: waiting, facts: caFacts{source: next, published: old.CertPEM()}, after: 100 * time.Hour,
		},
		"the bundle is out": {
			state: waiting, facts: caFacts{source: next, published: waiting.bundle()}, after: time.Hour,
			want: v1alpha1.CAPhaseIntroduce, next: next,
		},
		"leaves of older bundles live": {
			state: introduce, facts: caFacts{source: next}, after: timing.Introduce() - time.Second,
		},
		"they have ended": {
			state: introduce, facts: caFacts{source: next}, after: timing.Introduce(), want: v1alpha1.CAPhaseMove,
		},
		"the signer has been away": {
			state: introduce, facts: caFacts{source: next, up: at.Add(timing.Introduce())},
			after: timing.Introduce() + timing.SignerUptime() - time.Second,
		},
		"the signer has been back for long enough": {
			state: introduce, facts: caFacts{source: next, up: at.Add(timing.Introduce())},
			after: timing.Introduce() + timing.SignerUptime(), want: v1alpha1.CAPhaseMove,
		},
		"the source breaks meanwhile": {
			state: introduce, after: timing.Introduce(), want: v1alpha1.CAPhaseMove,
		},
		"the source becomes a third CA": {
			state: introduce, facts: caFacts{source: third}, after: time.Hour, want: v1alpha1.CAPhaseIntroduce, next: third,
		},
		"the source becomes the old CA again": {
			state: introduce, facts: caFacts{source: old}, after: time.Hour, want: v1alpha1.CAPhaseSteady,
		},
		"the old CA ends before its successor may sign": {
			state: caState{phase: v1alpha1.CAPhaseIntroduce, signing: ending, next: next, since: at},
			facts: caFacts{source: next}, after: 2 * time.Hour, want: v1alpha1.CAPhaseMove,
		},
		"the next CA ends before it may sign": {
			state: caState{phase: v1alpha1.CAPhaseIntroduce, signing: old, next: ending, since: at},
			after: timing.Introduce(), want: v1alpha1.CAPhaseSteady,
		},
		"edges may still be away": {
			state: move, facts: caFacts{source: next}, after: timing.Move() - time.Second,
		},
		"a third CA waits for its turn": {state: move, facts: caFacts{source: third}, after: time.Hour},
		"a third CA waits, and the one that signs has time": {
			state: caState{phase: v1alpha1.CAPhaseMove, signing: month, previous: old, since: at},
			facts: caFacts{source: third}, after: 20 * 24 * time.Hour,
		},
		"a third CA waits, and the one that signs is about to end": {
			state: caState{phase: v1alpha1.CAPhaseMove, signing: month, previous: old, since: at},
			facts: caFacts{source: third}, after: 27 * 24 * time.Hour, want: v1alpha1.CAPhaseRetire,
		},
		"no other CA waits, and the one that signs is about to end": {
			state: caState{phase: v1alpha1.CAPhaseMove, signing: month, previous: old, since: at},
			facts: caFacts{source: month}, after: 27 * 24 * time.Hour,
		},
		"a third CA waits, and the one that signs has ended": {
			state: caState{phase: v1alpha1.CAPhaseRetire, signing: ending, previous: old, since: at},
			facts: caFacts{source: third}, after: 2 * time.Hour, want: v1alpha1.CAPhaseSteady,
		},
		"the overlap has ended": {
			state: move, facts: caFacts{source: next}, after: timing.Move(), want: v1alpha1.CAPhaseRetire,
		},
		"xds-servers have certificates of the old CA": {
			state: retire, facts: caFacts{source: next}, after: timing.Retire() - time.Second,
		},
		"they have others": {
			state: retire, facts: caFacts{source: next}, after: timing.Retire(), want: v1alpha1.CAPhaseSteady,
		},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			tc.facts.now = at.Add(tc.after)
			got, changed := tc.state.step(tc.facts, timing)
			if changed != (tc.want != "") {
				t.Fatalf("changed: %v to %s", changed, got.phase)
			}
			if changed && (got.phase != tc.want || (tc.next != nil && !got.next.Equal(tc.next.CA))) {
				t.Errorf("phase %s, next %v", got.phase, got.next)
			}
		})
	}
}

func TestTheNextCAIsCreatedBeforeTheCurrentOneExpires(t *testing.T) {
	at := time.Now().Truncate(time.Second)
	tests := map[string]struct {
		life, overlap time.Duration
		wantAt        time.Duration
	}{
		"ten years": {
			life: config.DefaultCALifetime, overlap: 90 * 24 * time.Hour, wantAt: config.DefaultCALifetime / 5 * 4,
		},
		"a rotation that takes half the life": {
			life: 1000 * time.Hour, overlap: 450 * time.Hour, wantAt: (1000-450-24-24)*time.Hour - 30*time.Minute,
		},
		"a minute": {life: time.Minute, overlap: 0, wantAt: 0},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			timing := config.Timing{Leaf: 24 * time.Hour, Overlap: tc.overlap, Life: tc.life}
			if tc.life == time.Minute {
				timing.Leaf = 4 * time.Second
				tc.wantAt = min(48*time.Second, time.Minute-timing.Total())
			}
			state := caState{phase: v1alpha1.CAPhaseSteady, signing: newIssuer(t, "c", at, tc.life)}
			if got := state.rotateAt(timing).Sub(at); got != tc.wantAt {
				t.Errorf("after %s, want %s", got, tc.wantAt)
			}
			facts := caFacts{now: at.Add(tc.wantAt - time.Second), source: state.signing}
			if state.wantsAnother(facts, timing) {
				t.Error("too early")
			}
			if facts.now = at.Add(tc.wantAt); !state.wantsAnother(facts, timing) {
				t.Error("not at its time")
			}
			if state.signing.made = false; state.wantsAnother(facts, timing) {
				t.Error("a CA that was brought is replaced")
			}
		})
	}
}

// holder is an agent, reduced to its leaf and trust bundle.
type holder struct {
	name    string
	ca      *Issuer
	trusts  []*Issuer
	end     time.Time
	renewAt time.Time
	asleep  func(time.Duration) bool
}

func (h *holder) accepts(ca *Issuer) bool { return trusted(h.trusts, ca) }

func trusted(all []*Issuer, ca *Issuer) bool {
	for _, c := range all {
		if c.Equal(ca.CA) {
			return true
		}
	}
	return false
}

// renew takes a leaf and the current bundle. An agent asks again some time after two thirds of the leaf's life.
func (h *holder) renew(role model.Role, state caState, timing config.Timing, now time.Time) {
	h.ca, h.trusts, h.end = state.signer(role, timing, now), state.all(), now.Add(timing.Leaf)
	h.renewAt = now.Add(timing.Leaf*2/3 + time.Duration(rand.Int64N(int64(timing.Leaf/3-time.Minute))))
}

// TestEveryProgramKeepsAccessDuringARotation runs a rotation with edges, gateways and an xds-server, each renewing at
// its own time, and with two edges asleep for weeks. Every minute it checks that all pairs which must verify each other
// can.
func TestEveryProgramKeepsAccessDuringARotation(t *testing.T) {
	at := time.Now()
	timing := config.Timing{Leaf: 24 * time.Hour, Overlap: 20 * 24 * time.Hour, Life: config.DefaultCALifetime}
	old, next := newIssuer(t, "old", at, config.DefaultCALifetime), newIssuer(t, "next", at, config.DefaultCALifetime)
	state := caState{phase: v1alpha1.CAPhaseSteady, signing: old}
	awake := func(time.Duration) bool { return false }
	// From before the rotation until the last day on which the edge may come back, and for all of introduce.
	begin, last := 30*time.Hour, 30*time.Hour+timing.Introduce()+timing.Move()-time.Hour
	edges := []*holder{
		{name: "edge-a", asleep: awake},
		{name: "edge-b", asleep: awake},
		{name: "sleeper", asleep: func(d time.Duration) bool { return d > begin-time.Hour && d < last }},
		{name: "napper", asleep: func(d time.Duration) bool { return d > begin-time.Hour && d < begin+30*time.Hour }},
	}
	gateways := []*holder{{name: "gateway-0", asleep: awake}, {name: "gateway-1", asleep: awake}}
	control := &holder{name: "control"}
	for _, h := range edges {
		h.renew(model.RoleEdge, state, timing, at)
	}
	for _, h := range gateways {
		h.renew(model.RoleGateway, state, timing, at)
	}
	control.renew(model.RoleControl, state, timing, at)
	source := old
	seen := map[v1alpha1.CAPhase]bool{}
	for d := time.Duration(0); d < begin+timing.Total()+48*time.Hour; d += time.Minute {
		now := at.Add(d)
		if d >= begin {
			source = next
		}
		published := state.all()
		if after, changed := state.step(
			caFacts{now: now, up: at, source: source, published: state.bundle()}, timing,
		); changed {
			state = after
		}
		seen[state.phase] = true
		if !now.Before(control.renewAt) {
			control.renew(model.RoleControl, state, timing, now)
		}
		for role, all := range map[model.Role][]*holder{model.RoleEdge: edges, model.RoleGateway: gateways} {
			for _, h := range all {
				if h.asleep(d) || now.Before(h.renewAt) {
					continue
				}
				if !h.accepts(control.ca) || !trusted(published, h.ca) {
					t.Fatalf("after %s, in %s: %s can't renew", d, state.phase, h.name)
				}
				h.renew(role, state, timing, now)
			}
		}
		if err := checkAll(edges, gateways, control, published, d); err != nil {
			t.Fatalf("after %s, in %s: %v", d, state.phase, err)
		}
	}
	if len(seen) != 4 || state.phase != v1alpha1.CAPhaseSteady || !state.signing.Equal(next.CA) {
		t.Errorf("phases %v, now %s", seen, state.phase)
	}
}

func checkAll(edges, gateways []*holder, control *holder, published []*Issuer, d time.Duration) error {
	for _, h := range append(append([]*holder{}, edges...), gateways...) {
		if !h.asleep(d) && (!h.accepts(control.ca) || !trusted(published, h.ca)) {
			return fmt.Errorf("%s and the control channel don't verify each other", h.name)
		}
	}
	for _, e := range edges {
		for _, g := range gateways {
			if !e.asleep(d) && (!e.accepts(g.ca) || !g.accepts(e.ca)) {
				return fmt.Errorf("%s and %s don't verify each other", e.name, g.name)
			}
		}
	}
	return nil
}
