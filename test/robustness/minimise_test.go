package robustness

import (
	"slices"
	"testing"
	"time"
)

func TestMinimiseKeepsWhatFails(t *testing.T) {
	steps := Schedule(3, 5*time.Minute)
	if len(steps) < 20 {
		t.Fatalf("the schedule has only %d steps", len(steps))
	}
	first, second := steps[4], steps[17]
	same := func(a, b Step) bool { return a.Action == b.Action && a.Target == b.Target && a.For == b.For }
	tried := 0
	fails := func(some []Step) bool {
		tried++
		return slices.ContainsFunc(some, func(s Step) bool { return same(s, first) }) &&
			slices.ContainsFunc(some, func(s Step) bool { return same(s, second) })
	}
	got := Minimise(steps, 1000, fails)
	if len(got) != 2 || !same(got[0], first) || !same(got[1], second) {
		t.Errorf("it leaves\n%swant\n%s", Format(got), Format([]Step{first, second}))
	}
	if got[0].At != 0 || got[1].At != second.At-first.At {
		t.Errorf("the steps are at %s and %s, want 0 and %s", got[0].At, got[1].At, second.At-first.At)
	}
	tried = 0
	if got := Minimise(steps, 7, fails); !fails(got) || tried > 8 {
		t.Errorf("after 7 attempts it has made %d and left %d steps", tried-1, len(got))
	}
	if got := Minimise(steps, 1000, func([]Step) bool { return false }); len(got) != len(steps) {
		t.Errorf("of a schedule that fails only once it leaves %d of %d steps", len(got), len(steps))
	}
}
