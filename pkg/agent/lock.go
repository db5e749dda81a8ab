package agent

import (
	"fmt"
	"os"

	"golang.org/x/sys/unix"
)

// lock ensures that at most one agent uses a folder. It locks the folder itself, which is possible on a read-only
// disk. The kernel releases the lock when the agent ends for any reason; Envoy does not inherit it, because Go closes
// the file on exec.
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
