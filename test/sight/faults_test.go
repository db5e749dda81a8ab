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

// fault is one thing that breaks, and what has to be said of it. The table in docs/troubleshooting.md is of these.
type fault struct {
	ID     string // stays the same
	Title  string // what is broken, for people
	Hop    check.ID
	Status check.Status  // Broken where it is empty
	Cause  string        // that has to be in the cause
	Cure   string        // that has to be in the cure
	Do     string        // the cure in short, for the table, and what the test then does
	Short  bool          // a part of the short form
	Within time.Duration // until check names it; nameTime where it is 0
	Healed string        // that is in the cause of a warning once the fault has been cured without help; empty: it never is
	// of is the Cluster that is checked; nil: the room's own.
	of func(r *room) *lab.Cluster
	// well is the condition that the cure has worked; nil: check finds nothing at the room's own Cluster.
	well func(r *room) func(context.Context) error
	// inject breaks it, and returns what the cure says.
	inject func(t *testing.T, r *room) (cure func(t *testing.T))
}

// expected says whether an answer is what it has to be.
func (f fault) expected(a said) bool {
	status, code := check.Broken, 1
	if f.Status != "" {
		status, code = f.Status, 0
	}
	v := a.Verdict()
	if v != nil && f.Healed != "" && a.Status == check.Warning && a.code == 0 && v.ID == f.Hop && strings.Contains(v.Cause, f.Healed) {
		return true
	}
	return v != nil && a.Status == status && a.code == code && v.ID == f.Hop && strings.Contains(v.Cause, f.Cause) && strings.Contains(v.Cure, f.Cure)
}

// prove injects a fault, waits until check names it, follows the cure, and waits until all is well.
func (r *room) prove(t *testing.T, f fault) {
	if testing.Short() && !f.Short {
		return
	}
	that(t, f.ID+": "+f.Title, func(t *testing.T) {
		of, well := r.Cluster, r.green
		if f.of != nil {
			of = f.of(r)
		}
		if f.well != nil {
			well = f.well(r)
		}
		cure := f.inject(t, r)
		began := time.Now()
		var last said
		err := proc.Wait(t.Context(), cmp.Or(f.Within, nameTime), func(ctx context.Context) (err error) {
			last, err = r.world.check(ctx, of.Namespace, of.Name, r.flags...)
			if err == nil && !f.expected(last) {
				err = fmt.Errorf("check says %s", last)
			}
			return err
		})
		named := time.Since(began)
		if err != nil {
			r.tell(t, of)
			t.Errorf("want %s, %q, %q: %v", f.Hop, f.Cause, f.Cure, err)
		} else {
			measured("named_s", named.Seconds())
			r.world.note(f, last, named)
		}
		began = time.Now()
		cure(t)
		if err := proc.Wait(t.Context(), cureTime, well); err != nil {
			r.tell(t, of)
			t.Fatalf("after the cure: %v", err)
		}
		measured("cured_s", time.Since(began).Seconds())
		t.Logf("named after %.1f s, well %.1f s after the cure: %s", named.Seconds(), time.Since(began).Seconds(), last)
	})
}

// tell prints what people would see.
func (r *room) tell(t *testing.T, of *lab.Cluster) {
	t.Helper()
	cmd, err := r.world.command(t.Context(), "check", "-n", of.Namespace, of.Name, r.world.inspection())
	if err == nil {
		out, _ := cmd.CombinedOutput()
		t.Logf("fairlead check says:\n%s", out)
	}
}
