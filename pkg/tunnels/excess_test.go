package tunnels

import (
	"net"
	"net/netip"
	"testing"
	"time"

	"github.com/fairlead/fairlead/internal/conntest"
	"github.com/fairlead/fairlead/pkg/tunnels/ledger"
)

func TestCloseEndsTheTunnelsWithAKey(t *testing.T) {
	needsRight(t)
	first, second, at := conntest.Two(t)
	b := newBed(t, t.TempDir())
	b.run(t)
	for _, conn := range []net.Conn{first, second} {
		b.write(t, line(eventSetup, conn.LocalAddr().String(), at.String(), "edge-1", idA, noon))
	}
	deadline := time.Now().Add(10 * time.Second)
	for len(b.Places()) < 2 {
		if time.Now().After(deadline) {
			t.Fatalf("the table has %v", b.Places())
		}
		time.Sleep(10 * time.Millisecond)
	}
	remote := netip.MustParseAddrPort(first.LocalAddr().String())
	if !b.Has(remote, at) || b.Has(netip.AddrPortFrom(remote.Addr(), 1), at) {
		t.Error("it does not know which tunnels there are")
	}
	for _, p := range b.Places() {
		if p.From != remote.Addr() || p.Node != "edge-1" {
			t.Errorf("a tunnel is at %v", p)
		}
	}
	if n, err := b.Close([]string{ledger.Key(remote, at), "no such key"}); n != 1 || err != nil {
		t.Fatalf("%d were closed, %v", n, err)
	}
	_ = first.SetReadDeadline(time.Now().Add(5 * time.Second))
	if _, err := first.Read(make([]byte, 1)); err == nil {
		t.Error("the tunnel is open")
	} else if timeout, ok := err.(net.Error); ok && timeout.Timeout() { //nolint:errorlint // bare
		t.Error("the tunnel is open")
	}
	if _, err := second.Write([]byte("x")); err != nil {
		t.Errorf("the other tunnel: %v", err)
	}
}
