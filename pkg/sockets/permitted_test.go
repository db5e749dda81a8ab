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

// TestThePermittedCapabilityIsEffectiveOnlyDuringACall runs on a thread like that of the gateway's agent in its image:
// with the capability as permitted, and not as effective.
func TestThePermittedCapabilityIsEffectiveOnlyDuringACall(t *testing.T) {
	needsRight(t)
	const netAdmin = 1 << unix.CAP_NET_ADMIN
	got := make(chan error)
	var after [2]unix.CapUserData
	go func() {
		got <- withCapabilities(unix.CapUserData{Permitted: netAdmin}, func() error {
			header := unix.CapUserHeader{Version: unix.LINUX_CAPABILITY_VERSION_3}
			return errors.Join(Permitted(), unix.Capget(&header, &after[0]))
		})
	}()
	if err := <-got; err != nil {
		t.Errorf("with CAP_NET_ADMIN permitted: %v", err)
	}
	if after[0].Effective != 0 || after[0].Permitted != netAdmin {
		t.Errorf("after the call the thread has %+v", after[0])
	}
}

// withoutCapabilities runs a function on a thread without capabilities, and ends the thread.
func withoutCapabilities(do func() error) error { return withCapabilities(unix.CapUserData{}, do) }

// withCapabilities runs a function on a thread with these capabilities only, and ends the thread.
func withCapabilities(has unix.CapUserData, do func() error) error {
	runtime.LockOSThread() // never unlocked, so the thread ends with the goroutine
	header := unix.CapUserHeader{Version: unix.LINUX_CAPABILITY_VERSION_3}
	all := [2]unix.CapUserData{has}
	if err := unix.Capset(&header, &all[0]); err != nil {
		return err
	}
	return do()
}
