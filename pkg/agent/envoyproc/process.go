package envoyproc

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/fairlead/fairlead/pkg/agent/envoyadmin"
)

// stopTimeout is how long Envoy may take to end. It normally takes a few milliseconds.
const stopTimeout = 5 * time.Second

// cutTimeout is the same for an Envoy whose connections must be closed at once.
const cutTimeout = 500 * time.Millisecond

// process is an Envoy process. done is closed when it has ended.
type process struct {
	pid    int
	done   chan struct{}
	reason string // how it ended; valid after done
	// stop asks Envoy to end, kills it if it does not within the given time, and returns when it has ended.
	stop func(within time.Duration)
}

func ownSession() *syscall.SysProcAttr { return &syscall.SysProcAttr{Setsid: true} }

// start starts a new Envoy.
func start(l launch) (*process, error) {
	cmd, output, err := l.command()
	if err != nil {
		return nil, err
	}
	if output != os.Stderr {
		defer output.Close()
	}
	if err := cmd.Start(); err != nil {
		return nil, fmt.Errorf("starting Envoy: %w", err)
	}
	p := newProcess(cmd.Process)
	go func() {
		defer close(p.done)
		p.reason = reason(cmd.Wait())
	}()
	return p, nil
}

func newProcess(handle *os.Process) *process {
	p := &process{pid: handle.Pid, done: make(chan struct{})}
	p.stop = func(within time.Duration) {
		_ = handle.Signal(syscall.SIGTERM) // an error means that it has ended
		timer := time.NewTimer(within)
		defer timer.Stop()
		select {
		case <-p.done:
		case <-timer.C:
			_ = handle.Kill()
			<-p.done
		}
	}
	return p
}

// reason describes how a child ended.
func reason(err error) string {
	var exit *exec.ExitError
	if !errors.As(err, &exit) {
		return "ended by itself"
	}
	if status, ok := exit.Sys().(syscall.WaitStatus); ok && status.Signaled() {
		return "ended by signal " + status.Signal().String()
	}
	return fmt.Sprintf("ended with exit code %d", exit.ExitCode())
}

// adopt looks for an Envoy that an earlier agent left in the same folder. It returns the process, or nil if there is
// none, and whether it is the one that l would start. It finds it by the admin socket only, so it also finds an Envoy
// whose agent died before it could record a process id.
func adopt(ctx context.Context, admin envoyadmin.Client, l launch) (p *process, same bool, err error) {
	pid, err := admin.PID()
	if envoyadmin.NotListening(err) {
		return nil, false, nil
	}
	if err != nil {
		return nil, false, err
	}
	if p, err = follow(pid); err != nil {
		return nil, false, err
	}
	// The process may have ended before follow opened it, and its id may belong to another one.
	if again, err := admin.PID(); err != nil || again != pid {
		return nil, false, fmt.Errorf("adopting Envoy: process %d ended meanwhile", pid)
	}
	running, err := admin.WaitInfo(ctx, p.done)
	return p, err == nil && running.ConfigPath == l.config, nil // an Envoy that does not answer is replaced
}

// follow observes a process that is not a child.
func follow(pid int) (*process, error) {
	handle, err := os.FindProcess(pid)
	if err != nil {
		return nil, fmt.Errorf("adopting Envoy: %w", err)
	}
	fd, err := unix.PidfdOpen(pid, 0)
	if err != nil {
		return nil, fmt.Errorf("adopting Envoy: %w", err)
	}
	p := newProcess(handle)
	p.reason = "ended: the exit status is unknown because an earlier agent started it" // its parent was an earlier agent
	go func() {
		defer close(p.done)
		defer unix.Close(fd)
		// The descriptor is readable when the process has ended: pidfd_open(2). Signals to the agent interrupt the call.
		for err := error(unix.EINTR); errors.Is(err, unix.EINTR); {
			_, err = unix.Poll([]unix.PollFd{{Fd: int32(fd), Events: unix.POLLIN}}, -1)
		}
	}()
	return p, nil
}
