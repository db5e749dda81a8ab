package assignment_test

import (
	"fmt"
	"math"
	"slices"
	"strings"
	"testing"

	"github.com/fairlead/fairlead/pkg/assignment"
	"github.com/fairlead/fairlead/pkg/model"
)

// ids is how many tunnel ids the properties are checked with.
const ids = 4_000

// fleet returns gateway-0 to gateway-<n-1>.
func fleet(n int) []model.Gateway {
	var all []model.Gateway
	for i := range n {
		all = append(all, model.Gateway{Name: fmt.Sprintf("gateway-%d", i)})
	}
	return all
}

func id(i int) string { return fmt.Sprintf("id%08d", i) }

// of returns the numbers of the gateways of an id.
func of(id string, count int, gateways []model.Gateway) string {
	var names []string
	for _, g := range assignment.Of(id, count, gateways) {
		names = append(names, strings.TrimPrefix(g.Name, "gateway-"))
	}
	return strings.Join(names, " ")
}

// TestKnownAssignments has results that must never change: see the comment of the package.
func TestKnownAssignments(t *testing.T) {
	joining, leaving := fleet(4), fleet(4)
	joining[3].Joining = true
	leaving[3].Leaving = true
	for _, c := range []struct {
		id       string
		count    int
		gateways []model.Gateway
		want     string
	}{
		{"a", 0, fleet(3), "0 1 2"},
		{"a", 3, fleet(3), "0 1 2"},
		{"a", 4, fleet(3), "0 1 2"},
		{"a", 2, nil, ""},
		{"a", 1, fleet(40), "11"},
		{"a", 2, fleet(40), "1 11"},
		{"a", 3, fleet(40), "1 11 14"},
		{"a", 2, fleet(4), "0 1"},
		{"b", 2, fleet(4), "0 2"},
		{"c", 2, fleet(4), "0 2"},
		{"d", 2, fleet(4), "0 3"},
		{"a", 2, joining, "0 1"},
		{"d", 2, joining, "0 2 3"},
		{"a", 2, leaving, "0 1"},
		{"d", 2, leaving, "0 2 3"},
	} {
		if got := of(c.id, c.count, c.gateways); got != c.want {
			t.Errorf("%q, %d of %d gateways: got %q, want %q", c.id, c.count, len(c.gateways), got, c.want)
		}
	}
}

// TestBalance requires that each gateway has its share of the ids: within 5 standard deviations of a random choice.
func TestBalance(t *testing.T) {
	for _, n := range []int{3, 6, 40, 100} {
		for _, count := range []int{1, 2, 3} {
			if count >= n {
				continue
			}
			has := map[string]int{}
			for i := range ids {
				for _, g := range assignment.Of(id(i), count, fleet(n)) {
					has[g.Name]++
				}
			}
			p := float64(count) / float64(n)
			mean, deviation := ids*p, math.Sqrt(ids*p*(1-p))
			for _, g := range fleet(n) {
				if off := math.Abs(float64(has[g.Name])-mean) / deviation; off > 5 {
					t.Errorf("%d of %d: %s has %d ids, %.1f deviations from %.0f", count, n, g.Name, has[g.Name], off, mean)
				}
			}
		}
	}
}

// TestMinimalMovement requires that another gateway changes only the ids that then have it, each in one place.
func TestMinimalMovement(t *testing.T) {
	for _, n := range []int{3, 6, 39} {
		for _, count := range []int{1, 2, 3} {
			moved := 0
			for i := range ids {
				was, is := assignment.Of(id(i), count, fleet(n)), assignment.Of(id(i), count, fleet(n+1))
				gone := 0
				for _, g := range was {
					if !slices.Contains(is, g) {
						gone++
					}
				}
				gained := slices.Contains(is, fleet(n + 1)[n])
				if want := len(is) - len(was) + gone; gained != (want == 1) || gone > 1 {
					t.Fatalf("%s, %d of %d: from %v to %v", id(i), count, n, was, is)
				}
				if gained {
					moved++
				}
			}
			// count of n + 1 gateways
			share := float64(moved) * float64(n+1) / float64(ids) / float64(count)
			if share < 0.8 || share > 1.2 {
				t.Errorf("%d of %d: %d of %d ids have the new gateway, %.2f times its share", count, n, moved, ids, share)
			}
		}
	}
}

// TestChangesKeepBothGenerations requires that an id has all of its gateways of before and after a change, and that
// each end of the change is the same as without a mark.
func TestChangesKeepBothGenerations(t *testing.T) {
	const n, count = 6, 2
	for i := range ids {
		before, after := assignment.Of(id(i), count, fleet(n)), assignment.Of(id(i), count, fleet(n + 1)[1:])
		during := fleet(n + 1)
		during[0].Leaving, during[n].Joining = true, true
		var want []string
		for _, g := range during {
			same := func(other model.Gateway) bool { return other.Name == g.Name }
			if slices.ContainsFunc(before, same) || slices.ContainsFunc(after, same) {
				want = append(want, strings.TrimPrefix(g.Name, "gateway-"))
			}
		}
		if got := of(id(i), count, during); got != strings.Join(want, " ") {
			t.Fatalf("%s: during the change %q, before %v, after %v", id(i), got, before, after)
		}
	}
}

// TestOrderDoesNotMatter requires the same gateways for any order of the input.
func TestOrderDoesNotMatter(t *testing.T) {
	reversed := fleet(9)
	slices.Reverse(reversed)
	for i := range ids {
		got := assignment.Of(id(i), 3, reversed)
		slices.Reverse(got)
		if want := assignment.Of(id(i), 3, fleet(9)); !slices.Equal(got, want) {
			t.Fatalf("%s: got %v, want %v", id(i), got, want)
		}
	}
}
