package envoyproc

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"os/exec"
	"slices"
	"syscall"
	"testing"
	"testing/synctest"
	"time"
)

// envoys are simulated Envoys that a test ends.
type envoys struct {
	supervisor
	running *process
	began   []time.Duration // start of each, relative to the first
	events  []string
	fail    error
	fails   int // number of events
}

func newEnvoys() *envoys {
	e := &envoys{}
	begin := time.Now()
	e.supervisor = supervisor{
		log: slog.New(slog.DiscardHandler),
		obtain: func(context.Context) (*process, error) {
			e.began = append(e.began, time.Since(begin))
			if e.fail != nil {
				return nil, e.fail
			}
			p := &process{pid: len(e.began), done: make(chan struct{}), reason: "ended by signal killed"}
			p.stop = func(time.Duration) { e.events = append(e.events, "stopped") }
			e.running = p
			return p, nil
		},
		drain: func(*process) { e.events = append(e.events, "drained") },
		began: func(err error) {
			if err != nil {
				e.fails++
			}
		},
		ended:   func(reason string, times int) { e.events = append(e.events, fmt.Sprintf("%s, %d", reason, times)) },
		stopped: func() { e.events = append(e.events, "ended in peace") },
		ran:     func() { e.events = append(e.events, "ran") },
		stable:  func() { e.events = append(e.events, "calm") },
	}
	return e
}

func TestEnvoyIsStartedAgain(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		e := newEnvoys()
		ctx, cancel := context.WithCancel(t.Context())
		done := make(chan struct{})
		go func() { e.run(ctx, t.Context()); close(done) }()
		for range 4 { // it crashes as soon as it runs
			synctest.Wait()
			close(e.running.done)
			time.Sleep(9 * time.Second)
		}
		time.Sleep(2 * time.Minute)
		synctest.Wait()
		close(e.running.done)
		synctest.Wait()
		cancel()
		<-done
		const killed = "ended by signal killed"
		want := []string{
			killed + ", 1",
			killed + ", 2",
			killed + ", 3",
			killed + ", 4",
			"ran",
			"calm",
			killed + ", 1",
			"drained",
			"stopped",
			"ended in peace",
		}
		if !slices.Equal(e.events, want) {
			t.Errorf("got %q, want %q", e.events, want)
		}
	})
}

func TestAReplacedEnvoyIsNeitherDrainedNorTakenAsACrash(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		e := newEnvoys()
		replace := make(chan struct{})
		e.replace = replace
		ctx, cancel := context.WithCancel(t.Context())
		done := make(chan struct{})
		go func() { e.run(ctx, t.Context()); close(done) }()
		for range 3 {
			replace <- struct{}{}
			synctest.Wait()
		}
		if want := []time.Duration{0, 0, 0, 0}; !slices.Equal(e.began, want) {
			t.Errorf("they started at %v, want %v", e.began, want)
		}
		want := []string{"stopped", "ended in peace", "stopped", "ended in peace", "stopped", "ended in peace"}
		if !slices.Equal(e.events, want) {
			t.Errorf("got %q, want %q", e.events, want)
		}
		cancel()
		<-done
	})
}

func TestTheWaitsBetweenStartsGrow(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		e := newEnvoys()
		e.fail = errors.New("no such program")
		ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
		defer cancel()
		e.run(ctx, t.Context())
		if n := len(e.began); n < 12 || n > 40 || e.began[1] != 0 {
			t.Errorf("%d starts in a minute, at %v", n, e.began)
		}
		if e.fails != len(e.began) {
			t.Errorf("%d of %d starts are said to have failed", e.fails, len(e.began))
		}
		if len(e.events) != 0 {
			t.Errorf("a start that fails is no crash, but there was %q", e.events)
		}
	})
}

func TestEnvoyContinuesWithoutItsAgent(t *testing.T) {
	tests := map[string]func(leave chan<- os.Signal, stopWork func()){
		"that is to leave it to the next": func(leave chan<- os.Signal, _ func()) { leave <- syscall.SIGHUP },
		"with a part that failed":         func(_ chan<- os.Signal, stopWork func()) { stopWork() },
	}
	for name, end := range tests {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				e := newEnvoys()
				leave := make(chan os.Signal, 1)
				e.leave = leave
				work, stop := context.WithCancel(t.Context())
				defer stop()
				done := make(chan struct{})
				go func() { e.run(t.Context(), work); close(done) }()
				synctest.Wait()
				end(leave, stop)
				<-done
				if len(e.events) != 0 {
					t.Errorf("got %q, want nothing", e.events)
				}
			})
		})
	}
}

// TestAnAgentWithoutEnvoyCanBeLeft: it waits for the next attempt to start one.
func TestAnAgentWithoutEnvoyCanBeLeft(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		e := newEnvoys()
		e.fail = errors.New("no such program")
		leave := make(chan os.Signal, 1)
		e.leave = leave
		ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
		defer cancel()
		done := make(chan struct{})
		go func() { e.run(ctx, t.Context()); close(done) }()
		synctest.Wait()
		leave <- syscall.SIGHUP
		<-done
		if ctx.Err() != nil || len(e.events) != 0 {
			t.Errorf("it goes on, with %q", e.events)
		}
	})
}

func TestReasonOfAnEnd(t *testing.T) {
	tests := map[string]struct{ script, want string }{
		"a signal":  {script: "kill -SEGV $$", want: "ended by signal segmentation fault"},
		"an error":  {script: "exit 3", want: "ended with exit code 3"},
		"no reason": {script: "true", want: "ended by itself"},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			if got := reason(exec.CommandContext(t.Context(), "/bin/sh", "-c", tc.script).Run()); got != tc.want {
				t.Errorf("got %q, want %q", got, tc.want)
			}
		})
	}
}
