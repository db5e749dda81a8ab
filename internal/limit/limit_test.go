package limit_test

import (
	"fmt"
	"net"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/fairlead/fairlead/internal/limit"
)

var perSecond = limit.Rate{Every: time.Second, Burst: 3}

func TestABurstAndThenARate(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := limit.NewRates(8)
		for i := range 3 {
			if wait := r.Take("a", perSecond); wait != 0 {
				t.Fatalf("number %d has to wait for %s", i, wait)
			}
		}
		wait := r.Take("a", perSecond)
		if wait <= 0 || wait > perSecond.Every+time.Second/100 {
			t.Errorf("the fourth has to wait for %s", wait)
		}
		if r.Take("b", perSecond) != 0 {
			t.Error("another has to wait as well")
		}
		time.Sleep(wait)
		for range 3 {
			if r.Peek("a", perSecond) != 0 {
				t.Error("a look counts")
			}
		}
		if r.Take("a", perSecond) != 0 {
			t.Error("who has waited has to wait again")
		}
		if r.Peek("a", perSecond) == 0 || r.Take("a", perSecond) == 0 {
			t.Error("two were let in for one")
		}
	})
}

func TestARateThatChanges(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := limit.NewRates(8)
		slow := limit.Rate{Every: time.Hour, Burst: 1}
		r.Take("a", slow)
		if wait := r.Take("a", slow); wait < time.Hour {
			t.Errorf("has to wait for %s", wait)
		}
		if wait := r.Take("a", limit.Rate{Every: time.Second, Burst: 1}); wait > 2*time.Second {
			t.Errorf("with a higher rate it still has to wait for %s", wait)
		}
	})
}

func TestTheNumberOfKeysIsBounded(t *testing.T) {
	r := limit.NewRates(100)
	once := limit.Rate{Every: time.Hour, Burst: 1}
	for i := range 10_000 {
		r.Take("busy", once)
		if wait := r.Take(fmt.Sprint(i), once); wait != 0 {
			t.Fatalf("key %d has to wait", i)
		}
	}
	if r.Len() > 100 {
		t.Errorf("%d keys are remembered", r.Len())
	}
	if r.Take("busy", once) == 0 {
		t.Error("who goes on and on was forgotten among those that come once")
	}
}

func TestSlots(t *testing.T) {
	s := limit.NewSlots(3, 2)
	first := s.Take("a")
	if first == nil || s.Take("a") == nil {
		t.Fatal("there are not two for one key")
	}
	if s.Take("a") != nil {
		t.Error("there are three for one key")
	}
	if s.Take("b") == nil || s.Take("b") != nil {
		t.Error("there are not exactly three in total")
	}
	first()
	first()
	if s.Take("a") == nil || s.Take("a") != nil || s.Used() != 3 {
		t.Error("one that was given back twice counts twice")
	}
}

func TestSlotsOfManyAtOnce(t *testing.T) {
	s := limit.NewSlots(8, 8)
	var all sync.WaitGroup
	for i := range 64 {
		all.Go(func() {
			for range 100 {
				if release := s.Take(fmt.Sprint(i % 4)); release != nil {
					release()
				}
			}
		})
	}
	all.Wait()
	if s.Used() != 0 {
		t.Errorf("%d are still used", s.Used())
	}
}

func TestAddress(t *testing.T) {
	tests := map[string]struct {
		in   net.Addr
		want string
	}{
		"IPv4":                      {in: addr("192.0.2.7:1234"), want: "192.0.2.7"},
		"IPv4 in IPv6":              {in: addr("[::ffff:192.0.2.7]:1234"), want: "192.0.2.7"},
		"IPv6":                      {in: addr("[2001:db8:1:2:3:4:5:6]:1234"), want: "2001:db8:1:2::/64"},
		"another of the same /64":   {in: addr("[2001:db8:1:2::1]:9"), want: "2001:db8:1:2::/64"},
		"an address with a zone":    {in: addr("[fe80::1%eth0]:9"), want: "fe80::/64"},
		"one that is no IP address": {in: &net.UnixAddr{Name: "/x"}, want: "/x"},
		"none":                      {},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			if got := limit.Address(tc.in); got != tc.want {
				t.Errorf("got %q, want %q", got, tc.want)
			}
		})
	}
}

// addr is an address as package net prints it.
type addr string

func (addr) Network() string  { return "tcp" }
func (a addr) String() string { return string(a) }
