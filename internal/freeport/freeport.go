// Package freeport chooses ports for programs that a test starts and that cannot choose their own ports, because other
// programs must know the port before the start or after a restart.
package freeport

import (
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"os"
	"path/filepath"
	"sync"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/fairlead/fairlead/pkg/model"
)

// The range is below the one from which Linux takes the ports of outgoing connections (32768 to 60999,
// ip_local_port_range in ip(7)). A port of that range could be in use by the time the program listens.
const first, last = 10_000, 32_767

// leases is the file in which this process has a lock for each port that it has returned: the byte at the port's
// number. The kernel removes the locks when the process ends, because no child inherits the file.
var leases = sync.OnceValues(func() (*os.File, error) {
	name := fmt.Sprintf("fairlead-ports-%d", os.Getuid())
	return os.OpenFile(filepath.Join(os.TempDir(), name), os.O_RDWR|os.O_CREATE, 0o600)
})

var (
	mu    sync.Mutex
	given = map[int]bool{}
)

// TCP returns a port that has no listener on any address, and that neither this process nor another one that runs has
// returned before: several minutes may pass before a program listens. It fails the test if there is none.
func TCP(t testing.TB) int {
	t.Helper()
	port, err := Choose()
	if err != nil {
		t.Fatal(err)
	}
	return port
}

// Address returns a loopback address with a port of TCP, as host:port.
func Address(t testing.TB) string {
	t.Helper()
	return Endpoint(t).String()
}

// Endpoint returns a loopback address with a port of TCP.
func Endpoint(t testing.TB) model.Endpoint {
	t.Helper()
	return loopback(TCP(t))
}

// ChooseAddress is Address for programs that are not tests.
func ChooseAddress() (string, error) {
	port, err := Choose()
	return loopback(port).String(), err
}

func loopback(port int) model.Endpoint { return model.Endpoint{Host: "127.0.0.1", Port: uint16(port)} }

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
		if err := take(port); err != nil {
			failed = err
			continue
		}
		given[port] = true
		return port, nil
	}
	return 0, fmt.Errorf("no free port from %d to %d: %w", first, last, failed)
}

// take returns an error if another process has taken the port or listens there.
func take(port int) error {
	file, err := leases()
	if err != nil {
		return err
	}
	// Of the open file, not of the process: fcntl(2), "Open file description locks".
	lock := unix.Flock_t{Type: unix.F_WRLCK, Whence: io.SeekStart, Start: int64(port), Len: 1}
	if err := unix.FcntlFlock(file.Fd(), unix.F_OFD_SETLK, &lock); err != nil {
		return fmt.Errorf("port %d is taken by another process: %w", port, err)
	}
	listener, err := net.Listen("tcp", fmt.Sprintf(":%d", port))
	if err != nil {
		return err
	}
	return listener.Close()
}
