package command

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os/exec"
	"syscall"
	"time"
)

// killTime is how long a child may take to end after SIGTERM.
const killTime = 10 * time.Second

// Streams are the streams of a child.
type Streams struct {
	In       io.Reader
	Out, Err io.Writer
}

// Child runs a program with an environment, and returns its exit code, which is 1 if a signal ended it. The error means
// that it could not run. When ctx ends, the program receives SIGTERM, and SIGKILL 10 s later.
func Child(ctx context.Context, argv, environment []string, s Streams) (code int, err error) {
	child := exec.CommandContext(ctx, argv[0], argv[1:]...)
	child.Env = environment
	child.Stdin, child.Stdout, child.Stderr = s.In, s.Out, s.Err
	child.Cancel = func() error { return child.Process.Signal(syscall.SIGTERM) }
	child.WaitDelay = killTime
	err = child.Run()
	if exited := (*exec.ExitError)(nil); errors.As(err, &exited) {
		if code := exited.ExitCode(); code > 0 {
			return code, nil
		}
		return 1, nil // a signal ended it
	}
	if err != nil {
		return 0, fmt.Errorf("running %s: %w", argv[0], err)
	}
	return 0, nil
}
