package sight

import (
	"cmp"
	"context"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/fairlead/fairlead/pkg/diagnose/check"
	"github.com/fairlead/fairlead/test/lab"
	"github.com/fairlead/fairlead/test/lab/proc"
)

// fault is a fault that is injected, and the expected answer of check. docs/troubleshooting.md has a table of all
// faults.
type fault struct {
	ID     string // never changes
	Title  string // what is broken, for people
	Hop    check.ID
	Status check.Status  // default: Broken
	Cause  string        // a text in the cause
	Cure   string        // a text in the cure
	Do     string        // the cure in short, for the table; the test does the same
	Short  bool          // runs with -short too
	Within time.Duration // the time until check names it; default: nameTime
	// a text in the cause of a warning after the fault has been cured without help; empty: there is no such warning
	Healed string
	// of returns the Cluster that is checked; nil: the room's own.
	of func(r *room) *lab.Cluster
	// healthy returns a condition that is nil once the cure has worked; nil: check finds no problem of the room's own
	// Cluster.
	healthy func(r *room) func(context.Context) error
	// inject injects the fault, and returns a function that follows the cure.
	inject func(t *testing.T, r *room) (cure func(t *testing.T))
}

// expected reports whether an answer is the expected one.
func (f fault) expected(a checkAnswer) bool {
	status, code := check.Broken, 1
	if f.Status != "" {
		status, code = f.Status, 0
	}
	v := a.Deciding()
	if v != nil && f.Healed != "" && a.Status == check.Warning && a.code == 0 && v.ID == f.Hop &&
		strings.Contains(v.Cause, f.Healed) {
		return true
	}
	return v != nil && a.Status == status && a.code == code && v.ID == f.Hop && strings.Contains(v.Cause, f.Cause) &&
		strings.Contains(v.Cure, f.Cure)
}

// prove injects a fault, waits until check names it, follows the cure, and waits until check finds no problem.
func (r *room) prove(t *testing.T, f fault) {
	if testing.Short() && !f.Short {
		return
	}
	that(t, f.ID+": "+f.Title, func(t *testing.T) {
		of, healthy := r.Cluster, r.green
		if f.of != nil {
			of = f.of(r)
		}
		if f.healthy != nil {
			healthy = f.healthy(r)
		}
		cure := f.inject(t, r)
		began := time.Now()
		var last checkAnswer
		err := proc.Wait(t.Context(), cmp.Or(f.Within, nameTime), func(ctx context.Context) (err error) {
			last, err = r.world.check(ctx, of.Namespace, of.Name, r.flags...)
			if err == nil && !f.expected(last) {
				err = fmt.Errorf("check says %s", last)
			}
			return err
		})
		named := time.Since(began)
		if err != nil {
			r.printAnswer(t, of)
			t.Errorf("want %s, %q, %q: %v", f.Hop, f.Cause, f.Cure, err)
		} else {
			measured("named_s", named.Seconds())
			r.world.note(f, last, named)
		}
		began = time.Now()
		cure(t)
		if err := proc.Wait(t.Context(), cureTime, healthy); err != nil {
			r.printAnswer(t, of)
			t.Fatalf("after the cure: %v", err)
		}
		measured("cured_s", time.Since(began).Seconds())
		t.Logf("named after %.1f s, well %.1f s after the cure: %s", named.Seconds(), time.Since(began).Seconds(), last)
	})
}

// printAnswer prints what an operator would see.
func (r *room) printAnswer(t *testing.T, of *lab.Cluster) {
	t.Helper()
	cmd, err := r.world.command(t.Context(), "check", "-n", of.Namespace, of.Name, r.world.inspection())
	if err == nil {
		out, _ := cmd.CombinedOutput()
		t.Logf("fairlead check says:\n%s", out)
	}
}
