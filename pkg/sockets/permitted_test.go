package sockets

import (
	"errors"
	"os"
	"runtime"
	"testing"

	"golang.org/x/sys/unix"
)

// needsRight skips a test that closes connections if the kernel does not permit it. If E2E_REQUIRED is set, the test
// fails instead.
func needsRight(t testing.TB) {
	t.Helper()
	switch err := Permitted(); {
	case err != nil && os.Getenv("E2E_REQUIRED") != "":
		t.Fatalf("closing connections: %v", err)
	case err != nil:
		t.Skipf("can't close connections here: %v", err)
	}
}

func TestPermittedNeedsTheCapability(t *testing.T) {
	needsRight(t)
	// The function runs on a thread of its own, which ends without the capabilities that it dropped.
	got := make(chan error)
	go func() { got <- withoutCapabilities(Permitted) }()
	if err := <-got; !errors.Is(err, unix.EPERM) {
		t.Errorf("got %v without CAP_NET_ADMIN, want EPERM", err)
	}
}

// withoutCapabilities runs a function on a thread without capabilities, and ends the thread.
func withoutCapabilities(do func() error) error {
	runtime.LockOSThread() // never unlocked, so the thread ends with the goroutine
	header := unix.CapUserHeader{Version: unix.LINUX_CAPABILITY_VERSION_3}
	var none [2]unix.CapUserData
	if err := unix.Capset(&header, &none[0]); err != nil {
		return err
	}
	return do()
}
