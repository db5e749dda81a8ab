package envoyproc

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
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

// start starts a new Envoy, which keeps a lock until it ends.
func start(l launch) (*process, error) {
	lock, err := l.lock()
	if err != nil {
		return nil, fmt.Errorf("starting Envoy: %w", err)
	}
	defer lock.Close()
	cmd, output, err := l.command()
	if err != nil {
		return nil, err
	}
	if output != os.Stderr {
		defer output.Close()
	}
	cmd.ExtraFiles = []*os.File{lock}
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

const (
	// lockFile is locked by each Envoy from its start to its end, so that a folder has one Envoy. The lock belongs to
	// the open file, which Envoy inherits: flock(2).
	lockFile = "envoy.lock"
	// inherited is the number of that file in Envoy: the first one of exec.Cmd.ExtraFiles.
	inherited = "3"
	// startTime is how long an Envoy that an earlier agent has started may take until it listens.
	startTime = 15 * time.Second
)

// lock locks lockFile. It returns an error if an Envoy of the same folder runs.
func (l launch) lock() (*os.File, error) {
	file, err := os.OpenFile(filepath.Join(l.dir, lockFile), os.O_RDWR|os.O_CREATE, 0o600)
	if err != nil {
		return nil, err
	}
	if err := unix.Flock(int(file.Fd()), unix.LOCK_EX|unix.LOCK_NB); err != nil {
		_ = file.Close()
		return nil, fmt.Errorf("locking %s: does an Envoy run in this folder? %w", file.Name(), err)
	}
	return file, nil
}

// holder returns the process that has inherited lockFile, or 0. Only an Envoy of this folder has it.
func (l launch) holder() (pid int) {
	file, err := os.Stat(filepath.Join(l.dir, lockFile))
	if err != nil {
		return 0
	}
	files, err := filepath.Glob("/proc/[0-9]*/fd/" + inherited)
	if err != nil {
		return 0
	}
	for _, path := range files {
		// That of a process of another user cannot be read, and others may have ended.
		if of, err := os.Stat(path); err == nil && os.SameFile(file, of) {
			pid, _ = strconv.Atoi(filepath.Base(filepath.Dir(filepath.Dir(path))))
			return pid
		}
	}
	return 0
}

// begun waits for an Envoy that an earlier agent started and that does not listen on its admin socket yet. It returns
// the process if it does not listen in time, which must be stopped, and nil if there is none or if it listens now.
func (l launch) begun(ctx context.Context, admin envoyadmin.Client, log *slog.Logger) (*process, error) {
	pid := l.holder()
	if pid == 0 {
		return nil, nil
	}
	p, err := follow(pid)
	if err != nil {
		return nil, err
	}
	if l.holder() != pid { // as in adopt
		return nil, fmt.Errorf("adopting Envoy: process %d ended meanwhile", pid)
	}
	log.Info("waiting for an Envoy that starts", "pid", pid)
	ctx, cancel := context.WithTimeout(ctx, startTime)
	defer cancel()
	again := time.NewTicker(startTime / 100)
	defer again.Stop()
	for {
		if _, err := admin.PID(); err == nil {
			return nil, nil
		}
		select {
		case <-p.done:
			return nil, nil
		case <-ctx.Done():
			return p, nil
		case <-again.C:
		}
	}
}

// adopt looks for an Envoy that an earlier agent left in the same folder. It returns the process, or nil if there is
// none, and whether it is the one that l would start. It finds it by the admin socket, and one that does not listen yet
// by its lock, so it also finds an Envoy whose agent died before it could record a process id.
func adopt(
	ctx context.Context, admin envoyadmin.Client, l launch, log *slog.Logger,
) (p *process, same bool, err error) {
	pid, err := admin.PID()
	if envoyadmin.NotListening(err) {
		if p, err = l.begun(ctx, admin, log); p != nil || err != nil {
			return p, false, err
		}
		pid, err = admin.PID()
	}
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
