package spawn

import (
	"os/exec"
	"runtime"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"
)

// threads is more threads than the Go runtime keeps idle in a test.
const threads = 64

// endThreads locks many goroutines to threads at the same time, so that idle threads are among them, and ends all of
// these threads.
func endThreads() {
	var all sync.WaitGroup
	all.Add(threads)
	var ended sync.WaitGroup
	for range threads {
		ended.Go(func() {
			runtime.LockOSThread() // never unlocked: the thread ends with this goroutine
			all.Done()
			all.Wait()
			time.Sleep(20 * time.Millisecond)
		})
	}
	ended.Wait()
}

// survivors starts programs with a parent death signal, ends threads, and returns how many programs still run: after a
// time, or as soon as none does.
func survivors(t *testing.T, programs int, after time.Duration, start func(*exec.Cmd) error) int {
	t.Helper()
	var running sync.WaitGroup
	var alive atomic.Int64
	t.Cleanup(running.Wait) // after those below
	for range programs {
		cmd := exec.Command("sleep", "60")
		cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGTERM}
		if err := start(cmd); err != nil {
			t.Fatal(err)
		}
		alive.Add(1)
		running.Go(func() {
			_ = cmd.Wait()
			alive.Add(-1)
		})
		t.Cleanup(func() { _ = cmd.Process.Kill() })
	}
	endThreads()
	for deadline := time.Now().Add(after); alive.Load() > 0 && time.Now().Before(deadline); {
		time.Sleep(10 * time.Millisecond)
	}
	return int(alive.Load())
}

func TestProgramsSurviveThreads(t *testing.T) {
	const programs = 8
	if alive := survivors(t, programs, 300*time.Millisecond, Start); alive != programs {
		t.Errorf("%d of %d programs survived the end of other threads", alive, programs)
	}
}

// TestThreadsEndPrograms proves that the test above can fail: a program that is started from an arbitrary thread dies
// with it.
func TestThreadsEndPrograms(t *testing.T) {
	started := make(chan error)
	alive := survivors(t, 1, 30*time.Second, func(cmd *exec.Cmd) error {
		go func() {
			runtime.LockOSThread()
			started <- cmd.Start()
		}()
		return <-started
	})
	if alive != 0 {
		t.Error("a program survived the thread that started it: the parent death signal does not work here")
	}
}

func TestRun(t *testing.T) {
	if err := Run(exec.Command("true")); err != nil {
		t.Error(err)
	}
	if err := Run(exec.Command("false")); err == nil {
		t.Error("no error for a program that fails")
	}
	if err := Run(exec.Command("/nonexistent/program")); err == nil {
		t.Error("no error for a program that does not exist")
	}
}
