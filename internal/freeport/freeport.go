// Package freeport chooses ports for programs that a test starts and that cannot choose their own ports, because other
// programs must know the port before the start or after a restart.
package freeport

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"net"
	"sync"
	"testing"
)

// The range is below the one from which Linux takes the ports of outgoing connections (32768 to 60999,
// ip_local_port_range in ip(7)). A port of that range could be in use by the time the program listens.
const first, last = 10_000, 32_767

var (
	mu    sync.Mutex
	given = map[int]bool{}
)

// TCP returns a port that has no listener on any address, and that this process has not returned before. It fails the
// test if there is none.
func TCP(t testing.TB) int {
	t.Helper()
	port, err := Choose()
	if err != nil {
		t.Fatal(err)
	}
	return port
}

// Choose is TCP for programs that are not tests.
func Choose() (int, error) {
	mu.Lock()
	defer mu.Unlock()
	failed := errors.New("those that were tried have been given before")
	for range 200 {
		port := first + rand.IntN(last-first+1)
		if given[port] {
			continue
		}
		listener, err := net.Listen("tcp", fmt.Sprintf(":%d", port))
		if err != nil {
			failed = err
			continue
		}
		given[port] = true
		return port, listener.Close()
	}
	return 0, fmt.Errorf("no free port from %d to %d: %w", first, last, failed)
}
