package agent

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/fairlead/fairlead/pkg/envoy"
)

// stopTimeout is how long Envoy may take to end. It needs a few milliseconds.
const stopTimeout = 5 * time.Second

// process is an Envoy that runs, or has: done is closed when it has ended.
type process struct {
	handle *os.Process
	done   chan struct{}
	err    error // how it ended, after done; nil for one that is not our child
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
	p := &process{handle: cmd.Process, done: make(chan struct{})}
	go func() {
		defer close(p.done)
		p.err = cmd.Wait()
	}()
	return p, nil
}

// adopt looks for an Envoy that an earlier agent left in the same folder. It returns it, and whether it is the one that l
// would start, or nil if there is none. The admin socket leads to it, and nothing else does: an Envoy whose agent died
// before it could write down a process id would be found too.
func adopt(l launch) (p *process, same bool, err error) {
	admin := admin{socket: filepath.Join(l.dir, envoy.AdminSocket)}
	pid, err := admin.pid()
	if errors.Is(err, fs.ErrNotExist) || errors.Is(err, syscall.ECONNREFUSED) {
		return nil, false, nil
	}
	if err != nil {
		return nil, false, err
	}
	if p, err = follow(pid); err != nil {
		return nil, false, err
	}
	// The process id could have become somebody else's before follow held on to it.
	if again, err := admin.pid(); err != nil || again != pid {
		return nil, false, fmt.Errorf("adopting Envoy: process %d ended meanwhile", pid)
	}
	// Not the context of Run: an agent that is told to stop has to know what to stop. One that gives no answer is replaced.
	path, err := admin.configPath(context.Background())
	return p, err == nil && path == l.config, nil
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
	p := &process{handle: handle, done: make(chan struct{})}
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

// stop asks Envoy to end, makes it end if it does not, and returns when it has.
func (p *process) stop() {
	_ = p.handle.Signal(syscall.SIGTERM) // an error says that it has ended
	timer := time.NewTimer(stopTimeout)
	defer timer.Stop()
	select {
	case <-p.done:
	case <-timer.C:
		_ = p.handle.Kill()
		<-p.done
	}
}
