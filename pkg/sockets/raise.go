package sockets

import (
	"fmt"
	"runtime"

	"golang.org/x/sys/unix"
)

// raised calls do on a thread on which CAP_NET_ADMIN is effective, if the thread is permitted to have it, and then
// makes the capability ineffective again.
//
// The file of the gateway's agent grants the capability as permitted, and not as effective. The kernel refuses to start
// a program whose file has an effective capability that its container may not have, so such an agent could not report
// what is missing.
func raised(do func() error) error {
	runtime.LockOSThread() // capabilities belong to threads
	defer runtime.UnlockOSThread()
	header := unix.CapUserHeader{Version: unix.LINUX_CAPABILITY_VERSION_3}
	var had [2]unix.CapUserData
	if err := unix.Capget(&header, &had[0]); err != nil {
		return fmt.Errorf("reading capabilities: %w", err)
	}
	const netAdmin = 1 << unix.CAP_NET_ADMIN
	if had[0].Effective&netAdmin != 0 || had[0].Permitted&netAdmin == 0 {
		return do()
	}
	has := had
	has[0].Effective |= netAdmin
	if err := unix.Capset(&header, &has[0]); err != nil {
		return fmt.Errorf("raising CAP_NET_ADMIN: %w", err)
	}
	defer func() { _ = unix.Capset(&header, &had[0]) }() // giving up a capability is always permitted
	return do()
}
