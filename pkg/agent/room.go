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

// Between looks at a disk that has no room for what an agent needs to start.
var room = retry.Backoff{Min: time.Second, Max: 10 * time.Second}

// whenRoom does what takes room on a disk, again and again while there is none: nobody may be there to start the agent again.
func (a *Agent) whenRoom(ctx context.Context, do func() error) error {
	var reasons retry.Reasons
	for attempt := 0; ; attempt++ {
		err := do()
		if !errors.Is(err, syscall.ENOSPC) && !errors.Is(err, syscall.EDQUOT) {
			return err
		}
		if reasons.New(err) {
			a.log.Error("cannot start: the disk is full, retrying", "error", err)
		}
		if err := retry.Sleep(ctx, room.Wait(attempt)); err != nil {
			return err
		}
	}
}

// makeSubfolders makes the folders in the state folder, so that nothing that is opened in them later wants for room.
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

// unlessEnded is an error that says more than that the agent was told to stop.
func unlessEnded(ctx context.Context, err error) error {
	if ctx.Err() != nil {
		return nil
	}
	return err
}
