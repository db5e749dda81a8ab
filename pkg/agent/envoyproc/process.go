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

// stopTimeout is how long Envoy may take to end. It needs a few milliseconds.
const stopTimeout = 5 * time.Second

// process is an Envoy that runs, or has: done is closed when it has ended.
type process struct {
	pid    int
	done   chan struct{}
	reason string // how it ended, after done
	stop   func() // asks Envoy to end, makes it end if it does not, and returns when it has
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
	p.stop = func() {
		_ = handle.Signal(syscall.SIGTERM) // an error says that it has ended
		timer := time.NewTimer(stopTimeout)
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

// reason says how a child ended.
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

// adopt looks for an Envoy that an earlier agent left in the same folder. It returns it, and whether it is the one that l
// would start, or nil if there is none. The admin socket leads to it, and nothing else does: an Envoy whose agent died
// before it could write down a process id would be found too.
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
	// The process id could have become somebody else's before follow held on to it.
	if again, err := admin.PID(); err != nil || again != pid {
		return nil, false, fmt.Errorf("adopting Envoy: process %d ended meanwhile", pid)
	}
	running, err := admin.WaitInfo(ctx, p.done)
	return p, err == nil && running.ConfigPath == l.config, nil // one that gives no answer is replaced
}

// follow holds on to a process that is not our child.
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
	p.reason = "ended: the exit status is unknown because an earlier agent started it" // an earlier agent
	go func() {
		defer close(p.done)
		defer unix.Close(fd)
		// Readable when the process has ended: pidfd_open(2). Signals to the agent interrupt the call.
		for err := error(unix.EINTR); errors.Is(err, unix.EINTR); {
			_, err = unix.Poll([]unix.PollFd{{Fd: int32(fd), Events: unix.POLLIN}}, -1)
		}
	}()
	return p, nil
}
