package agent

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"syscall"
	"time"

	"github.com/fairlead/fairlead/internal/retry"
)

// fullDiskBackoff is the wait between attempts while a disk has no space for the agent's start.
var fullDiskBackoff = retry.Backoff{Min: time.Second, Max: 10 * time.Second}

// retryWhileFull calls do, and repeats it while the disk has no space, because an agent that exits may not be
// restarted.
func (a *Agent) retryWhileFull(ctx context.Context, do func() error) error {
	var reasons retry.Reasons
	for attempt := 0; ; attempt++ {
		err := do()
		if !errors.Is(err, syscall.ENOSPC) && !errors.Is(err, syscall.EDQUOT) {
			return err
		}
		if reasons.New(err) {
			a.log.Error("cannot start: the disk is full, retrying", "error", err)
		}
		if err := retry.Sleep(ctx, fullDiskBackoff.Wait(attempt)); err != nil {
			return err
		}
	}
}

// makeSubfolders makes the folders in the state folder early, so that opening files in them does not fail for lack of
// space.
func (a *Agent) makeSubfolders() error {
	all := []string{filepath.Join(a.config.StateDir, cacheFolder)}
	if a.config.Joined != nil {
		all = append(all, a.joinedRoot())
	}
	for _, e := range a.config.Edges {
		all = append(all, a.folderOf(e))
	}
	for _, dir := range all {
		if err := os.MkdirAll(dir, 0o700); err != nil {
			return fmt.Errorf("creating folder: %w", err)
		}
	}
	return nil
}

// unlessEnded returns err, or nil if ctx has ended and the error only reflects that.
func unlessEnded(ctx context.Context, err error) error {
	if ctx.Err() != nil {
		return nil
	}
	return err
}
