package ca

import (
	"bytes"
	"time"

	"github.com/fairlead/fairlead/api/v1alpha1"
	"github.com/fairlead/fairlead/pkg/controller/config"
)

// caFacts are what the next step depends on, beside the state.
type caFacts struct {
	now       time.Time
	up        time.Time // since when this process signs
	source    *Issuer   // what the source Secret holds; nil: nothing that can be used
	broken    bool      // there is a source Secret, but it can't be used
	requested bool      // another CA was asked for
	published []byte    // the trust bundle that is out
}

// step returns what the state has to become, if anything: one step at a time, each of which is one write. A rotation
// that has begun to move ends before the next one begins, so there are never more than two CAs.
func (s caState) step(f caFacts, t config.Timing) (next caState, changed bool) {
	switch s.phase {
	case v1alpha1.CAPhaseIntroduce:
		return s.stepIntroduce(f, t)
	case v1alpha1.CAPhaseMove:
		if f.now.Before(s.since.Add(t.Move())) {
			return s, false
		}
		return caState{phase: v1alpha1.CAPhaseRetire, since: f.now, signing: s.signing, previous: s.previous}, true
	case v1alpha1.CAPhaseRetire:
		if f.now.Before(s.since.Add(t.Retire())) {
			return s, false
		}
		return caState{phase: v1alpha1.CAPhaseSteady, since: f.now, signing: s.signing}, true
	}
	if f.source == nil || f.source.Equal(s.signing.CA) {
		return s, false
	}
	return caState{phase: v1alpha1.CAPhaseIntroduce, signing: s.signing, next: f.source}, true
}

func (s caState) stepIntroduce(f caFacts, t config.Timing) (next caState, changed bool) {
	next = s
	switch {
	case f.source != nil && f.source.Equal(
		s.signing.CA,
	): // the next CA has not signed anything: as if it had not been there
		return caState{phase: v1alpha1.CAPhaseSteady, since: f.now, signing: s.signing}, true
	case f.source != nil && !f.source.Equal(s.next.CA):
		next.next, next.since = f.source, time.Time{}
		return next, true
	case s.since.IsZero():
		next.since = f.now
		return next, bytes.Equal(f.published, s.bundle())
	// When the CA that signs ends, no leaf is valid any more, and there is nothing to wait for.
	case f.now.Before(s.signing.NotAfter()) &&
		(f.now.Before(s.since.Add(t.Introduce())) || f.now.Before(f.up.Add(t.Settle()))):
		return s, false
	}
	return caState{phase: v1alpha1.CAPhaseMove, since: f.now, signing: s.next, previous: s.signing}, true
}

// wantsAnother says whether the controller has to make another CA: only one of its own, and only while no rotation
// runs.
func (s caState) wantsAnother(f caFacts, t config.Timing) bool {
	if s.phase != v1alpha1.CAPhaseSteady || !s.signing.made || (f.source != nil && !f.source.Equal(s.signing.CA)) {
		return false
	}
	// What was put into the source by mistake is overwritten only when there is no more time to wait for a cure.
	return (f.requested && !f.broken) || !f.now.Before(s.rotateAt(t))
}

// rotateAt is when a CA that the controller made has to make room for another: at 4/5 of its life, or sooner where a
// rotation takes longer than what is left then.
func (s caState) rotateAt(t config.Timing) time.Time {
	begin, end := s.signing.Begin(), s.signing.NotAfter()
	byLife, byNeed := begin.Add(end.Sub(begin)/5*4), end.Add(-t.Total())
	if byNeed.Before(byLife) {
		return byNeed
	}
	return byLife
}

// deadlines are when the phase ends and when all of the rotation does, if nothing holds it up; zero where that is not
// known.
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
