package agent

import (
	"fmt"
	"os"

	"golang.org/x/sys/unix"
)

// lock makes sure that a folder has one agent. It locks the folder itself, which a read-only disk allows. The kernel
// releases it when the agent ends, however it does: Go closes the file when it starts Envoy.
func lock(dir string) (unlock func(), err error) {
	file, err := os.Open(dir)
	if err != nil {
		return nil, fmt.Errorf("opening folder to lock it: %w", err)
	}
	if err := unix.Flock(int(file.Fd()), unix.LOCK_EX|unix.LOCK_NB); err != nil {
		_ = file.Close()
		return nil, fmt.Errorf("locking %s: does another agent run in it? %w", dir, err)
	}
	return func() { _ = file.Close() }, nil
}
