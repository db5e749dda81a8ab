package sockets

import (
	"errors"
	"net"
	"net/netip"
	"os"
	"testing"
	"time"

	"github.com/fairlead/fairlead/internal/conntest"
)

// TestOnlyQuietConnectionsAreClosed has an active and a quiet client at one listener, and a quiet one at another
// listener.
func TestOnlyQuietConnectionsAreClosed(t *testing.T) {
	needsRight(t)
	const quiet = 300 * time.Millisecond
	busy, idle, at := conntest.Two(t)
	other, _, _ := conntest.Two(t)
	again := time.NewTicker(quiet / 6)
	defer again.Stop()
	deadline := time.Now().Add(20 * quiet)
	for {
		if _, err := busy.Write([]byte("x")); err != nil {
			t.Fatal("the busy connection was closed:", err)
		}
		closed, err := CloseQuiet([]netip.AddrPort{netip.AddrPortFrom(netip.IPv4Unspecified(), at.Port())}, quiet)
		if err != nil {
			t.Fatal(err)
		}
		if closed > 1 {
			t.Fatalf("%d connections were closed", closed)
		}
		if closed == 1 {
			break
		}
		if time.Now().After(deadline) {
			t.Fatal("the quiet connection is open still")
		}
		<-again.C
	}
	for name, conn := range map[string]net.Conn{"quiet": idle, "other": other} {
		_ = conn.SetReadDeadline(time.Now().Add(quiet))
		_, err := conn.Read(make([]byte, 1))
		if open := errors.Is(err, os.ErrDeadlineExceeded); open == (name == "quiet") {
			t.Errorf("reading from the %s connection: %v", name, err)
		}
	}
}
