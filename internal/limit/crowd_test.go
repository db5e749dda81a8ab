package limit_test

import (
	"fmt"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/fairlead/fairlead/internal/limit"
)

// crowd joins a Crowd by address, and records the members that were displaced.
type crowd struct {
	*limit.Crowd
	gone []string
}

func (c *crowd) join(name, address string) (leave func()) {
	return c.Join(addr(address), func() { c.gone = append(c.gone, name) })
}

func TestTheLargestNetworkIsDisplaced(t *testing.T) {
	type arrival struct{ name, from string }
	many := []arrival{{"a1", "192.0.2.1:1"}, {"a2", "192.0.2.1:2"}, {"a3", "192.0.2.1:3"}, {"b1", "192.0.2.2:1"}}
	tests := map[string]struct {
		here  []arrival
		after time.Duration
		comes arrival
		in    bool
		gone  string // empty: none
	}{
		"none while there is capacity":           {here: many[:3], comes: many[3], in: true},
		"the first of the address that has most": {here: many, comes: arrival{"c1", "192.0.2.3:1"}, in: true, gone: "a1"},
		"also for a network that holds one":      {here: many, comes: arrival{"b2", "192.0.2.2:2"}, in: true, gone: "a1"},
		"not at first for the network with most": {here: many, comes: arrival{"a4", "192.0.2.1:4"}},
		"later for the network with most": {
			here:  many,
			after: time.Second,
			comes: arrival{"a4", "192.0.2.1:4"},
			in:    true,
			gone:  "a1",
		},
		"none at first when every network has one": {
			here:  []arrival{{"a", "192.0.2.1:1"}, {"b", "192.0.2.2:1"}, {"c", "192.0.2.3:1"}, {"d", "192.0.2.4:1"}},
			comes: arrival{"e", "192.0.2.5:1"},
		},
		"later the first where all have one": {
			here:  []arrival{{"a", "192.0.2.1:1"}, {"b", "192.0.2.2:1"}, {"c", "192.0.2.3:1"}, {"d", "192.0.2.4:1"}},
			after: time.Second, comes: arrival{"e", "192.0.2.5:1"}, in: true, gone: "a",
		},
		"the first of a /48, however many addresses of it come": {
			here: []arrival{
				{"b", "192.0.2.2:1"},
				{"a1", "[2001:db8:1:1::1]:1"},
				{"a2", "[2001:db8:1:2::1]:1"},
				{"a3", "[2001:db8:1:3::1]:1"},
			},
			comes: arrival{"c", "[2001:db8:2::1]:1"}, in: true, gone: "a1",
		},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				c := &crowd{Crowd: limit.NewCrowd(4, 4, time.Second)}
				for _, a := range tc.here {
					if c.join(a.name, a.from) == nil {
						t.Fatalf("no room for %s", a.name)
					}
				}
				time.Sleep(tc.after) // in the test's synctest bubble
				if in := c.join(tc.comes.name, tc.comes.from) != nil; in != tc.in {
					t.Errorf("in: %t", in)
				}
				if got := fmt.Sprint(c.gone); got != "["+tc.gone+"]" {
					t.Errorf("%s had to go, want %q", got, tc.gone)
				}
				if c.Used() > 4 {
					t.Errorf("%d are here", c.Used())
				}
			})
		})
	}
}

func TestOneAddressInACrowd(t *testing.T) {
	c := &crowd{Crowd: limit.NewCrowd(4, 2, 0)}
	first := c.join("1", "192.0.2.1:1")
	c.join("2", "192.0.2.1:2")
	if c.join("3", "192.0.2.1:3") != nil || len(c.gone) > 0 {
		t.Error("one address has more than it may have")
	}
	first()
	first()
	if c.Used() != 1 || c.join("3", "192.0.2.1:3") == nil {
		t.Errorf("after one has left %d are here", c.Used())
	}
}

func TestACrowdOfManyAtOnce(t *testing.T) {
	c := limit.NewCrowd(16, 8, 0)
	var all sync.WaitGroup
	for i := range 64 {
		all.Go(func() {
			for range 200 {
				if leave := c.Join(addr(fmt.Sprintf("192.0.2.%d:1", i%8)), func() {}); leave != nil && i%3 > 0 {
					leave()
				}
			}
		})
	}
	all.Wait()
	if c.Used() > 16 {
		t.Errorf("%d are here", c.Used())
	}
}
