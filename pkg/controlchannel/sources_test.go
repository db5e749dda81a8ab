package controlchannel

import (
	"fmt"
	"net"
	"testing"
	"time"
)

func TestEdgesOfAnAddress(t *testing.T) {
	now := time.Date(2030, 1, 1, 0, 0, 0, 0, time.UTC)
	nat := &net.TCPAddr{IP: net.IPv4(203, 0, 113, 1), Port: 1}
	for _, n := range []int{0, 1, 2, 10, 100, 500} {
		s := newSources(1000, time.Hour)
		for range 5 { // each connects repeatedly
			for i := range n {
				s.record(nat, fmt.Sprint("edge-", i), now)
			}
		}
		if got := s.edges(nat, now); got != n {
			t.Errorf("%d edges count as %d", n, got)
		}
	}
}

func TestAddressesAreEvicted(t *testing.T) {
	now := time.Date(2030, 1, 1, 0, 0, 0, 0, time.UTC)
	address := func(i int) net.Addr { return &net.TCPAddr{IP: net.IPv4(203, 0, byte(i>>8), byte(i)), Port: 1} }
	s := newSources(16, time.Hour)
	s.record(address(0), "edge", now)
	if s.edges(address(0), now.Add(59*time.Minute)) == 0 || s.edges(address(0), now.Add(time.Hour)) != 0 {
		t.Error("an address is not remembered for an hour")
	}
	for i := range 100 {
		s.record(address(i), fmt.Sprint("edge-", i), now)
		s.record(address(0), "edge", now)
	}
	if len(s.pairs) > 16 || s.latest.Len() > 16 || len(s.counts) > 16 || len(s.of) > 16 {
		t.Errorf("%d addresses are remembered, want 16", len(s.pairs))
	}
	if s.edges(address(0), now) == 0 || s.edges(address(1), now) != 0 {
		t.Error("another address than the one that was used least recently is forgotten")
	}
	for i := range 12 { // edges that have left
		s.record(address(0), fmt.Sprint(i), now)
	}
	for _, after := range []time.Duration{40 * time.Minute, 75 * time.Minute, 110 * time.Minute} {
		s.record(address(0), "edge", now.Add(after))
	}
	if n := s.edges(address(0), now.Add(110*time.Minute)); n != 1 {
		t.Errorf("edges that have left still count: %d", n)
	}
}

func TestAnEdgeWithManyAddressesEvictsOnlyItsOwn(t *testing.T) {
	now := time.Date(2030, 1, 1, 0, 0, 0, 0, time.UTC)
	address := func(i int) net.Addr {
		return &net.TCPAddr{IP: net.ParseIP(fmt.Sprintf("2001:db8:0:%x::1", i)), Port: 1}
	}
	s := newSources(16, time.Hour)
	s.record(address(0), "victim", now)
	for i := range 100 {
		s.record(address(i), "attacker", now)
	}
	if s.edges(address(0), now) != 1 {
		t.Error("the address of another edge is forgotten")
	}
	if s.edges(address(91), now) != 0 || s.edges(address(92), now) != 1 {
		t.Error("other addresses than its latest eight are remembered")
	}
}
