package limit_test

import (
	"fmt"
	"testing"
	"testing/synctest"
	"time"

	"github.com/fairlead/fairlead/internal/limit"
)

func TestHalfOfAPoolIsReserved(t *testing.T) {
	gone := map[string]int{}
	join := func(p *limit.Pool, from string, allowance int) func() {
		return p.Join(addr(from+":1"), allowance, func() { gone[from]++ })
	}
	p := limit.NewPool(8, limit.NewCrowd(8, 64, time.Hour))
	for i := range 16 { // each of another address, and all of them could stay for an hour
		join(p, fmt.Sprintf("203.0.113.%d", i), 0)
	}
	if p.Used() != 8 {
		t.Fatalf("without anybody who has an allowance, %d of 8 places are used", p.Used())
	}
	for i := range 4 {
		if join(p, fmt.Sprintf("198.51.100.%d", i), 1) == nil {
			t.Errorf("number %d with an allowance has no place", i)
		}
	}
	if p.Used() != 8 || len(gone) != 4 {
		t.Errorf("%d places are used, and %v gave way", p.Used(), gone)
	}
	for i := range 64 {
		join(p, fmt.Sprintf("192.0.2.%d", i), 0)
	}
	for from := range gone {
		if from[0] == '1' && from[2] == '8' {
			t.Errorf("%s, which has an allowance, had to give way", from)
		}
	}
	if p.Used() > 8 {
		t.Errorf("%d of 8 places are used", p.Used())
	}
}

func TestAnAddressHasOnlyItsAllowance(t *testing.T) {
	p := limit.NewPool(100, limit.NewCrowd(100, 10, time.Hour))
	n := 0
	var leaves []func()
	for range 50 {
		if leave := p.Join(addr("203.0.113.1:1"), 4, func() {}); leave != nil {
			n++
			leaves = append(leaves, leave)
		}
	}
	if n != 10+4 {
		t.Errorf("an address with an allowance of 4 has %d places, want 14", n)
	}
	for _, leave := range leaves {
		leave()
		leave()
	}
	if p.Used() != 0 {
		t.Errorf("%d places are still used", p.Used())
	}
}

// newShares returns Shares of 12 places, a function that reports whether a caller of a group gets one, and how many of
// each group have given way.
func newShares() (s *limit.Shares, join func(group string, caller int) bool, gone map[string]int) {
	s, gone = limit.NewShares(12, 4, 10), map[string]int{}
	return s, func(group string, caller int) bool {
		return s.Join(fmt.Sprint(group, caller), group, func() { gone[group]++ }) != nil
	}, gone
}

func TestTheLargestGroupIsDisplaced(t *testing.T) {
	s, join, gone := newShares()
	for i := range 20 {
		join("greedy", i)
	}
	if s.Used() != 10 {
		t.Errorf("one group has %d places, want 10", s.Used())
	}
	for i := range 6 {
		if !join("victim", i) {
			t.Errorf("number %d of the victim has no place", i)
		}
	}
	if join("victim", 6) || join("greedy", 50) {
		t.Error("a group that has its equal share takes more")
	}
	if gone["victim"] > 0 || gone["greedy"] != 4 {
		t.Errorf("these gave way: %v", gone)
	}
}

func TestSharesAreResized(t *testing.T) {
	s, join, gone := newShares()
	for i := range 8 {
		join("greedy", i)
	}
	join("victim", 0)
	join("victim", 1)
	s.Resize(6)
	if s.Used() != 6 || gone["greedy"] != 4 || gone["victim"] != 0 {
		t.Errorf("%d of 6 places are used, and these gave way: %v", s.Used(), gone)
	}
	if join("greedy", 8) {
		t.Error("there is a place beyond the new total")
	}
	s.Resize(7)
	if !join("greedy", 8) || join("greedy", 9) {
		t.Error("a larger total does not count")
	}
}

// TestACallerWithAPlaceGetsASecondOne: otherwise no edge could renew its certificate while all places are taken.
func TestACallerWithAPlaceGetsASecondOne(t *testing.T) {
	const total, spare = 64, 2
	s := limit.NewShares(total, 8, 8)
	join := func(caller int) func() {
		name := fmt.Sprint(caller)
		return s.Join(name, name, func() { t.Errorf("%s gave way", name) })
	}
	for caller := range total {
		if join(caller) == nil {
			t.Fatalf("%d have a place", caller)
		}
	}
	if join(total) != nil {
		t.Error("one without a place has one beyond the total")
	}
	for caller := range spare {
		leave := join(caller)
		if leave == nil {
			t.Fatalf("%d have a second place", caller)
		}
		defer leave()
	}
	if join(spare) != nil || s.Used() != total+spare {
		t.Errorf("%d places are used", s.Used())
	}
	if join(total) != nil {
		t.Error("one without a place has that of a caller with two")
	}
	s.Resize(total)
	s.Resize(total + 1)
	if join(total) == nil || join(total+1) != nil {
		t.Error("a larger total does not count")
	}
}

// TestASpareTimeIsShort: a caller that keeps its spare place does not keep others from renewing.
func TestASpareTimeIsShort(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		gone := map[int]int{}
		s := limit.NewShares(32, 8, 8)
		join := func(caller int) bool {
			name := fmt.Sprint(caller)
			return s.Join(name, name, func() { gone[caller]++ }) != nil
		}
		for caller := range 32 {
			join(caller)
		}
		if !join(0) || join(0) || join(1) {
			t.Error("there is more or less than one spare place")
		}
		time.Sleep(time.Minute)
		if !join(1) || gone[0] != 1 || len(gone) != 1 {
			t.Errorf("after a minute these gave way: %v", gone)
		}
	})
}

func TestOneCallerHasAShareOfItsGroup(t *testing.T) {
	s := limit.NewShares(12, 4, 10)
	for i := range 6 {
		if leave := s.Join("edge-a", "c1", func() {}); (leave != nil) != (i < 4) {
			t.Errorf("number %d of one caller", i)
		}
	}
	if s.Join("edge-b", "c1", func() {}) == nil {
		t.Error("another of its group has no place")
	}
}
