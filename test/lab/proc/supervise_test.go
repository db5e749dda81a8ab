package proc

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/fairlead/fairlead/test/lab/netns"
)

// testNamespace creates the workload network of a lab. Without root it skips the test, or fails it if all tests must
// run.
func testNamespace(t *testing.T) *netns.Namespace {
	t.Helper()
	switch {
	case os.Geteuid() == 0:
	case os.Getenv("E2E_REQUIRED") != "":
		t.Fatal("this test must run as root")
	default:
		t.Skip("making network namespaces needs root")
	}
	name, err := netns.NewLabName()
	if err != nil {
		t.Fatal(err)
	}
	network, err := netns.NewNetwork(t.Context(), name, netns.IPv4, 0)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { network.Close(context.Background()) })
	return network.Workload
}

func TestASupervisedProgramIsStartedAgain(t *testing.T) {
	workload := testNamespace(t)
	service, err := Supervise(Spec{
		Name: "sleeper", Namespace: workload, Program: "sleep", Args: []string{"300"},
		Log: filepath.Join(t.TempDir(), "log"),
	})
	if err != nil {
		t.Fatal(err)
	}
	defer service.Stop()
	another := func(than int) func(context.Context) error {
		return func(context.Context) error {
			if service.Process().PID() == than {
				return errors.New("not started again")
			}
			return nil
		}
	}
	first := service.Process()
	service.Kill()
	if err := Wait(t.Context(), 5*time.Second, another(first.PID())); err != nil {
		t.Fatal(err)
	}
	second := service.Process()
	service.Hold()
	if err := Wait(t.Context(), 5*restartDelay, another(second.PID())); err == nil {
		t.Error("a held program was started")
	}
	service.Resume()
	if err := Wait(t.Context(), 5*time.Second, another(second.PID())); err != nil {
		t.Error(err)
	}
	third := service.Process()
	service.Stop()
	select {
	case <-third.Done():
	default:
		t.Error("Stop returned while the program ran")
	}
}

func TestAFailedStartShowsTheLog(t *testing.T) {
	workload := testNamespace(t)
	process, err := Start(Spec{
		Name: "loser", Namespace: workload, Program: "sh", Args: []string{"-c", "echo the reason >&2; exit 3"},
		Log: filepath.Join(t.TempDir(), "log"),
	})
	if err != nil {
		t.Fatal(err)
	}
	start := time.Now()
	err = process.WaitReady(t.Context(), time.Minute, func(context.Context) error { return errors.New("not ready") })
	if err == nil || !strings.Contains(err.Error(), "the reason") || !strings.Contains(err.Error(), "exit status 3") {
		t.Errorf("got %v, want the exit status and the log", err)
	}
	if time.Since(start) > 30*time.Second {
		t.Error("waited for a process that had ended")
	}
}

// TestProgramsSurviveThreadsThatEnterNamespaces starts a program that requests SIGTERM from the kernel when the thread
// that started it ends, as an Envoy with hot restart does. Each visit to a namespace ends a thread, which may have
// started programs.
func TestProgramsSurviveThreadsThatEnterNamespaces(t *testing.T) {
	workload := testNamespace(t)
	var p *Process
	err := workload.Do(func() (err error) {
		if p, err = Start(Spec{
			Name: "sleeper", Namespace: workload, Log: filepath.Join(t.TempDir(), "log"),
			Program: "setpriv", Args: []string{"--pdeathsig", "TERM", "sh", "-c", "echo asked; exec sleep 300"},
		}); err != nil {
			return err
		}
		return p.WaitReady(t.Context(), time.Minute, func(context.Context) error { return HasText(p.Log, "asked") })
	})
	if p != nil {
		defer p.Kill()
	}
	if err != nil {
		t.Fatal(err)
	}
	select {
	case <-p.Done():
		t.Errorf("it ended with the thread of a visit: %v", p.err)
	case <-time.After(time.Second):
	}
}
