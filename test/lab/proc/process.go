// Package proc runs the programs of a lab. Input: a Spec. Output: a Process, or a Service, which is restarted when it
// ends. It also reads the state of a process from the kernel and from its log. It does not know what the programs do.
package proc

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/fairlead/fairlead/internal/spawn"
	"github.com/fairlead/fairlead/test/lab/netns"
)

// stopGrace is how long a process may take to end after SIGTERM: an apiserver waits for its watches.
const stopGrace = 5 * time.Second

// StartTimeout is long, because a cold machine first reads 120 MB of programs while three apiservers share two cores.
const StartTimeout = 90 * time.Second

// Spec is a program to run.
type Spec struct {
	Name      string           // of the process and of its log
	Namespace *netns.Namespace // nil: that of the test
	Program   string
	Args      []string
	Env       []string // added to the lab's own
	Dir       string   // working directory; the lab's own if empty
	Log       string   // file to append its output to

	// Clone has additional flags of clone(2), for namespaces of the program's own.
	Clone uintptr
	// Enter, if not nil, calls its argument on a thread in the namespaces in which the program is to run. Namespace has
	// no effect then.
	Enter func(start func() error) error
}

// Process is a started program.
type Process struct {
	Spec
	cmd  *exec.Cmd
	done chan struct{}
	err  error // set before done is closed
}

// Start starts a program in its own process group, so that Ctrl-C reaches only the lab, which stops it in order. The
// program outlives the thread of any visit to a namespace: see package spawn.
func Start(spec Spec) (*Process, error) {
	log, err := os.OpenFile(spec.Log, os.O_APPEND|os.O_CREATE|os.O_WRONLY, 0o644)
	if err != nil {
		return nil, fmt.Errorf("starting %s: %w", spec.Name, err)
	}
	defer func() { _ = log.Close() }()
	cmd := exec.CommandContext(context.Background(), spec.Program, spec.Args...)
	if spec.Namespace != nil && spec.Enter == nil {
		cmd = spec.Namespace.Command(context.Background(), spec.Program, spec.Args...)
	}
	cmd.Dir, cmd.Env = spec.Dir, append(os.Environ(), spec.Env...)
	cmd.Stdout, cmd.Stderr = log, log
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true, Cloneflags: spec.Clone}
	start := func() error { return spawn.Start(cmd) }
	if spec.Enter != nil {
		start = func() error { return spec.Enter(cmd.Start) }
	}
	if err := start(); err != nil {
		return nil, fmt.Errorf("starting %s: %w", spec.Name, err)
	}
	p := &Process{Spec: spec, cmd: cmd, done: make(chan struct{})}
	go func() {
		p.err = cmd.Wait()
		close(p.done)
	}()
	return p, nil
}

// PID returns the process id.
func (p *Process) PID() int { return p.cmd.Process.Pid }

// Done returns a channel that is closed when the process has ended.
func (p *Process) Done() <-chan struct{} { return p.done }

// Kill ends the process with SIGKILL, and returns when it has ended. Its children continue.
func (p *Process) Kill() {
	_ = p.cmd.Process.Kill()
	<-p.done
}

// Stop asks the process to end, and kills it if it doesn't.
func (p *Process) Stop() {
	_ = p.cmd.Process.Signal(syscall.SIGTERM)
	select {
	case <-p.done:
	case <-time.After(stopGrace):
		p.Kill()
	}
}

// Freeze stops the process with SIGSTOP, like a machine that hangs. Thaw continues it.
func (p *Process) Freeze() error { return p.cmd.Process.Signal(syscall.SIGSTOP) }

// Thaw continues a process after Freeze.
func (p *Process) Thaw() error { return p.cmd.Process.Signal(syscall.SIGCONT) }

// WaitReady waits until a condition holds. It returns an error with the end of the log when the time is over or the
// process ends.
func (p *Process) WaitReady(ctx context.Context, timeout time.Duration, condition func(context.Context) error) error {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	go func() {
		select {
		case <-p.done:
			cancel(fmt.Errorf("process ended: %w", errors.Join(p.err, errors.New("before it was ready"))))
		case <-ctx.Done():
		}
	}()
	if err := Wait(ctx, timeout, condition); err != nil {
		return fmt.Errorf("waiting for %s: %w\n%s", p.Name, err, Tail(p.Log, 20))
	}
	return nil
}

// Wait waits until a condition holds, that is, returns no error. After the timeout it returns the last error.
func Wait(ctx context.Context, timeout time.Duration, condition func(context.Context) error) error {
	ctx, cancel := context.WithTimeout(ctx, timeout)
	defer cancel()
	tick := time.NewTicker(50 * time.Millisecond)
	defer tick.Stop()
	var last error
	for {
		err := condition(ctx)
		if err == nil {
			return nil
		}
		if ctx.Err() == nil || last == nil { // the error of an interrupted attempt is not useful
			last = err
		}
		select {
		case <-ctx.Done():
			return fmt.Errorf("after %s: %w: %w", timeout, context.Cause(ctx), last)
		case <-tick.C:
		}
	}
}

// Tail returns the last lines of a file, for error messages.
func Tail(file string, lines int) string {
	data, err := os.ReadFile(file)
	if err != nil {
		return err.Error()
	}
	all := strings.Split(strings.TrimRight(string(data), "\n"), "\n")
	return strings.Join(all[max(0, len(all)-lines):], "\n")
}

// RSS returns the resident memory of a process in bytes.
func RSS(pid int) (uint64, error) { return memory(pid, "VmRSS:") }

// Data returns the writable private memory of a process in bytes, as RLIMIT_DATA counts it. Address space that is only
// reserved does not count.
func Data(pid int) (uint64, error) { return memory(pid, "VmData:") }

// memory returns a line of the status of a process, in bytes: proc_pid_status(5).
func memory(pid int, name string) (uint64, error) {
	data, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", pid))
	if err != nil {
		return 0, fmt.Errorf("reading the memory of process %d: %w", pid, err)
	}
	for line := range strings.Lines(string(data)) {
		if value, ok := strings.CutPrefix(line, name); ok {
			kib, err := strconv.ParseUint(strings.Fields(value)[0], 10, 64)
			return kib * 1024, err
		}
	}
	return 0, fmt.Errorf("reading the memory of process %d: it has none", pid)
}

// FindProcess returns the one process that runs a program in a working directory. It finds a grandchild whose parent
// has ended.
func FindProcess(program, dir string) (int, error) {
	links, err := filepath.Glob("/proc/[0-9]*/cwd")
	if err != nil {
		return 0, err
	}
	want, err := filepath.EvalSymlinks(program)
	if err != nil {
		return 0, fmt.Errorf("finding process: %w", err)
	}
	for _, link := range links {
		if cwd, err := os.Readlink(link); err != nil || cwd != dir {
			continue
		}
		proc := filepath.Dir(link)
		if exe, err := os.Readlink(filepath.Join(proc, "exe")); err == nil && exe == want {
			return strconv.Atoi(filepath.Base(proc))
		}
	}
	return 0, fmt.Errorf("finding process: no %s runs in %s", filepath.Base(program), dir)
}

// HasText returns nil if a file, such as a log, contains a text.
func HasText(file, text string) error {
	data, err := os.ReadFile(file)
	if err != nil {
		return fmt.Errorf("looking for %q: %w", text, err)
	}
	if !strings.Contains(string(data), text) {
		return fmt.Errorf("%s doesn't say %q yet", filepath.Base(file), text)
	}
	return nil
}

// HasLine returns nil if a line of a file contains all texts.
func HasLine(file string, texts ...string) error {
	lines, err := Lines(file, texts...)
	if err == nil && len(lines) == 0 {
		err = fmt.Errorf("%s has no line with %q yet", filepath.Base(file), texts)
	}
	return err
}

// Lines returns the lines of a file that contain all texts.
func Lines(file string, texts ...string) ([]string, error) {
	data, err := os.ReadFile(file)
	if err != nil {
		return nil, fmt.Errorf("looking for %q: %w", texts, err)
	}
	var found []string
	for line := range strings.Lines(string(data)) {
		if !slices.ContainsFunc(texts, func(text string) bool { return !strings.Contains(line, text) }) {
			found = append(found, strings.TrimSuffix(line, "\n"))
		}
	}
	return found, nil
}
