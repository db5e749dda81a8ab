// Package faults proves that `fairlead check` names known faults, and that its cures work. Input: an installation, and
// faults with the answers that are expected. Output: promises, and the tables of faults in docs/troubleshooting.md. It
// does not know how a fault is injected.
package faults

import (
	"cmp"
	"context"
	"fmt"
	"os"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/fairlead/fairlead/pkg/diagnose/check"
	"github.com/fairlead/fairlead/test/lab/proc"
	"github.com/fairlead/fairlead/test/promise"
)

const (
	// NameTime is how long check may take to name a fault after its injection, on a busy machine. Most faults are found
	// at once; reports of edges and gateways take as long as these need to notice.
	NameTime = 90 * time.Second
	// CureTime is how long check may take to find no problem after the cure.
	CureTime = 2 * time.Minute
)

// Subject is a part of an installation in which faults are injected. An empty name is the name of its own Cluster.
type Subject interface {
	// Check returns the answer of check about a Cluster.
	Check(ctx context.Context, cluster string) (Answer, error)
	// Healthy returns a condition that is nil once check finds no problem of a Cluster.
	Healthy(cluster string) func(context.Context) error
	// Show logs what an operator would see.
	Show(t *testing.T, cluster string)
}

// Fault is a fault that is injected into a subject, and the expected answer of check. docs/troubleshooting.md has
// tables of all faults.
type Fault[S Subject] struct {
	ID     string // never changes; may be empty
	Title  string // what is broken, for people
	Hop    check.ID
	Status check.Status  // default: Broken
	Cause  string        // a text in the cause
	Cure   string        // a text in the cure
	Do     string        // the cure in short, for the table; the test does the same
	Short  bool          // runs with -short too
	Within time.Duration // the time until check names it; default: NameTime
	Of     string        // the Cluster that is checked; default: the subject's own
	// Healed is a text in the cause of a warning after the fault has been cured without help; empty: there is no such
	// warning.
	Healed string
	// Only means that the fault has ended when its own hop is ok, whatever the others are: what the test has added to
	// inject it is removed afterwards.
	Only bool
	// Healthy returns a condition that is nil once the cure has worked; nil: see Only.
	Healthy func(s S) func(context.Context) error
	// Inject injects the fault, and returns a function that follows the cure.
	Inject func(t *testing.T, s S) (cure func(t *testing.T))
	// After reverts what the cure does not; nil: nothing is left.
	After func(t *testing.T, s S)
}

// expected reports whether an answer is the expected one.
func (f Fault[S]) expected(a Answer) bool {
	v := a.Deciding()
	if v == nil || v.ID != f.Hop {
		return false
	}
	healed := f.Healed != "" && a.Status == check.Warning && strings.Contains(v.Cause, f.Healed)
	return healed || a.Status == cmp.Or(f.Status, check.Broken) && strings.Contains(v.Cause, f.Cause) &&
		strings.Contains(v.Cure, f.Cure)
}

// cured returns the condition that is nil once the cure has worked.
func (f Fault[S]) cured(s S) func(context.Context) error {
	switch {
	case f.Healthy != nil:
		return f.Healthy(s)
	case f.Only:
		return HopIs(s, f.Of, f.Hop)
	}
	return s.Healthy(f.Of)
}

// HopIs returns a condition that is nil once a hop of a Cluster is ok, whatever the others are.
func HopIs(s Subject, cluster string, id check.ID) func(context.Context) error {
	return func(ctx context.Context) error {
		answer, err := s.Check(ctx, cluster)
		if hop := answer.Hop(id); err == nil && hop.Status != check.OK {
			err = fmt.Errorf("the hop %s is %+v; check says %s", id, hop, answer)
		}
		return err
	}
}

// Prove injects a fault, waits until check names it, follows the cure, and waits until check finds no problem.
func Prove[S Subject](t *testing.T, s S, f Fault[S]) {
	t.Helper()
	if testing.Short() && !f.Short {
		return
	}
	promise.That(t, cmp.Or(f.ID, "check names the fault")+": "+f.Title, func(t *testing.T) {
		cure := f.Inject(t, s)
		began := time.Now()
		var last Answer
		err := proc.Wait(t.Context(), cmp.Or(f.Within, NameTime), func(ctx context.Context) (err error) {
			last, err = s.Check(ctx, f.Of)
			if err == nil && !f.expected(last) {
				err = fmt.Errorf("check says %s", last)
			}
			return err
		})
		named := time.Since(began)
		if err != nil {
			s.Show(t, f.Of)
			t.Errorf("want %s %s, %q, %q: %v", f.Status, f.Hop, f.Cause, f.Cure, err)
		} else {
			promise.Measured("named_s", named.Seconds())
			note(f.ID, f.Title, last, named)
		}
		began = time.Now()
		cure(t)
		if err := proc.Wait(t.Context(), CureTime, f.cured(s)); err != nil {
			s.Show(t, f.Of)
			t.Fatalf("after the cure: %v", err)
		}
		if f.After != nil {
			f.After(t, s)
		}
		promise.Measured("cured_s", time.Since(began).Seconds())
		t.Logf("named after %.1f s, well %.1f s after the cure: %s", named.Seconds(), time.Since(began).Seconds(), last)
	})
}

// notes holds the output of check for each fault.
var notes struct {
	sync.Mutex
	text string
}

// note stores the output of check in the file that SIGHT_NOTES names.
func note(id, title string, a Answer, after time.Duration) {
	notes.Lock()
	defer notes.Unlock()
	v := a.Deciding()
	notes.text += fmt.Sprintf(
		"%s\t%s\t%s\t%s\t%.1f\t%s\t%s\t%s\n", id, title, v.ID, v.Status, after.Seconds(), v.Detail, v.Cause, v.Cure,
	)
	if file := os.Getenv("SIGHT_NOTES"); file != "" {
		_ = os.WriteFile(file, []byte(notes.text), 0o600)
	}
}
