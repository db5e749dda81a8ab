package ca

import (
	"bytes"
	"time"

	"github.com/fairlead/fairlead/api/v1alpha1"
	"github.com/fairlead/fairlead/pkg/controller/config"
)

// caFacts holds what the next step depends on besides the state.
type caFacts struct {
	now       time.Time
	up        time.Time // since when this process signs
	source    *Issuer   // the usable CA in the source Secret; nil: none
	broken    bool      // the source Secret exists, but is unusable
	requested bool      // another CA was requested
	published []byte    // the published trust bundle
}

// step returns the next state, and whether it differs from the present one. It takes one step at a time, and each step
// is one write. A rotation whose move has begun ends before the next one begins, so there are never more than two CAs.
// If another CA waits and the one that signs is about to end, the phases are cut short: see latest.
func (s caState) step(f caFacts, t config.Timing) (next caState, changed bool) {
	switch s.phase {
	case v1alpha1.CAPhaseIntroduce:
		return s.stepIntroduce(f, t)
	case v1alpha1.CAPhaseMove:
		if f.now.Before(s.latest(s.since.Add(t.Move()), f, t.Retire()+t.Introduce()+t.Leaf)) {
			return s, false
		}
		return caState{phase: v1alpha1.CAPhaseRetire, since: f.now, signing: s.signing, previous: s.previous}, true
	case v1alpha1.CAPhaseRetire:
		if f.now.Before(s.latest(s.since.Add(t.Retire()), f, t.Introduce())) {
			return s, false
		}
		return caState{phase: v1alpha1.CAPhaseSteady, since: f.now, signing: s.signing}, true
	}
	if f.source == nil || f.source.Equal(s.signing.CA) {
		return s, false
	}
	return caState{phase: v1alpha1.CAPhaseIntroduce, signing: s.signing, next: f.source}, true
}

// latest returns when a phase that usually lasts until end must end: another CA that waits needs the given time until
// it signs, before the CA that signs now ends. An edge that is away may have to enrol again, but otherwise none could
// renew.
func (s caState) latest(end time.Time, f caFacts, needs time.Duration) time.Time {
	if f.source == nil || f.source.Equal(s.signing.CA) {
		return end
	}
	if last := s.signing.NotAfter().Add(-needs); last.Before(end) {
		return last
	}
	return end
}

func (s caState) stepIntroduce(f caFacts, t config.Timing) (next caState, changed bool) {
	next = s
	switch {
	case f.source != nil && f.source.Equal(
		s.signing.CA,
	): // the next CA has signed nothing: drop it
		return caState{phase: v1alpha1.CAPhaseSteady, since: f.now, signing: s.signing}, true
	case f.source != nil && !f.source.Equal(s.next.CA):
		next.next, next.since = f.source, time.Time{}
		return next, true
	case !f.now.Before(s.next.NotAfter()): // it ended before it could sign
		return caState{phase: v1alpha1.CAPhaseSteady, since: f.now, signing: s.signing}, true
	case s.since.IsZero():
		next.since = f.now
		return next, bytes.Equal(f.published, s.bundle())
	// When the signing CA ends, no leaf is valid any longer, so there is nothing to wait for.
	case f.now.Before(s.signing.NotAfter()) &&
		(f.now.Before(s.since.Add(t.Introduce())) || f.now.Before(f.up.Add(t.SignerUptime()))):
		return s, false
	}
	return caState{phase: v1alpha1.CAPhaseMove, since: f.now, signing: s.next, previous: s.signing}, true
}

// wantsAnother reports whether the controller must create another CA. That is so only if the CA is its own and no
// rotation runs.
func (s caState) wantsAnother(f caFacts, t config.Timing) bool {
	if s.phase != v1alpha1.CAPhaseSteady || !s.signing.made || (f.source != nil && !f.source.Equal(s.signing.CA)) {
		return false
	}
	// An unusable source may be a mistake, so it is overwritten only when there is no time left for a cure.
	return (f.requested && !f.broken) || !f.now.Before(s.rotateAt(t))
}

// rotateAt returns when a CA that the controller created must be replaced: at 4/5 of its life, or sooner if a rotation
// takes longer than the rest.
func (s caState) rotateAt(t config.Timing) time.Time {
	begin, end := s.signing.Begin(), s.signing.NotAfter()
	byLife, byNeed := begin.Add(end.Sub(begin)/5*4), end.Add(-t.Total())
	if byNeed.Before(byLife) {
		return byNeed
	}
	return byLife
}

// deadlines returns when the phase and the whole rotation end if nothing delays them; zero if that is not known.
func (s caState) deadlines(t config.Timing) (phase, all time.Time) {
	switch {
	case s.since.IsZero():
	case s.phase == v1alpha1.CAPhaseIntroduce:
		phase = s.since.Add(t.Introduce())
		all = phase.Add(t.Move() + t.Retire())
	case s.phase == v1alpha1.CAPhaseMove:
		phase = s.since.Add(t.Move())
		all = phase.Add(t.Retire())
	case s.phase == v1alpha1.CAPhaseRetire:
		phase = s.since.Add(t.Retire())
		all = phase
	}
	return phase, all
}
