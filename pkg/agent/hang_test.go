package agent

import (
	"errors"
	"net/http"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/fairlead/fairlead/internal/envoytest"
	"github.com/fairlead/fairlead/pkg/model"
	"github.com/fairlead/fairlead/pkg/watchdog"
)

// replaced is how long the replacement of a frozen Envoy may take on a busy machine.
const replaced = 40 * time.Second

func freeze(t *testing.T, pid int) {
	t.Helper()
	if err := syscall.Kill(pid, syscall.SIGSTOP); err != nil {
		t.Fatal(err)
	}
}

// pass waits for real time: how long a process is frozen can't be faked.
func pass(t *testing.T, d time.Duration) {
	t.Helper()
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
	case <-t.Context().Done():
	}
}

func thaw(t *testing.T, pid int) {
	t.Helper()
	if err := syscall.Kill(pid, syscall.SIGCONT); err != nil {
		t.Fatal(err)
	}
}

// hangs waits until the agent reports that its Envoy hangs.
func (p *place) hangs() {
	p.t.Helper()
	envoytest.Eventually(p.t, "the agent is unready", func() error {
		if code, body := p.get("/readyz"); code != http.StatusServiceUnavailable || !strings.Contains(body, "Envoy hangs") {
			return errors.New(body)
		}
		return nil
	})
}

// renewed waits until there is another Envoy, and returns its process id.
func (p *place) renewed(old int) (pid int) {
	p.t.Helper()
	for end := time.Now().Add(replaced); time.Now().Before(end); pass(p.t, 100*time.Millisecond) {
		if code, _ := p.get("/readyz"); code == http.StatusOK {
			if pid, err := p.admin().PID(); err == nil && pid != old {
				return pid
			}
		}
	}
	p.t.Fatalf("Envoy %d was not replaced within %s", old, replaced)
	return 0
}

func TestAFrozenEnvoyIsReplacedOnce(t *testing.T) {
	gateway, edge, a := newPair(t)
	gateway.child.Concurrency = 2
	gateway.serve()
	gateway.agent()
	first := edge.agent()
	edge.works(a)
	pids := map[*place]int{edge: edge.ready(), gateway: gateway.ready()}
	for p, pid := range pids {
		freeze(p.t, pid)
	}
	began := time.Now()
	for p := range pids {
		p.hangs()
	}
	if took := time.Since(began); took < watchdog.UnreadyAfter-watchdog.Interval {
		t.Errorf("unready after %s", took)
	}
	for p, pid := range pids {
		pids[p] = p.renewed(pid)
		p.logged("killed hanging Envoy", 1)
		p.state("the reason outlives the Envoy that hung", func(s state) error {
			if trouble := s.Memberships[0].LastError; !strings.HasPrefix(
				trouble, string(model.TroubleReplaced)+": there was no answer from",
			) {
				return errors.New(trouble)
			}
			return nil
		})
	}
	if took := time.Since(began); took < watchdog.ReplaceAfter-watchdog.Interval {
		t.Errorf("replaced after %s", took)
	}
	edge.works(a)

	// A persistent cause does not end tunnels repeatedly, also under the next agent.
	first.end(t, syscall.SIGHUP)
	edge.agent()
	edge.ready()
	freeze(t, pids[edge])
	edge.hangs()
	pass(t, watchdog.ReplaceAfter+3*time.Second)
	thaw(t, pids[edge])
	if now := edge.ready(); now != pids[edge] {
		t.Errorf("Envoy %d was replaced again by %d", pids[edge], now)
	}
	edge.logged("killed hanging Envoy", 1)
}

func TestAnEnvoyThatMakesProgressIsNotReplaced(t *testing.T) {
	gateway, edge, a := newPair(t)
	gateway.serve()
	gateway.agent()
	first := edge.agent()
	edge.works(a)
	pid := edge.ready()
	for range 5 { // in total longer than the time before a replacement
		freeze(t, pid)
		pass(t, 3500*time.Millisecond)
		thaw(t, pid)
		pass(t, 1500*time.Millisecond)
	}
	if code, body := edge.get("/readyz"); code != http.StatusOK {
		t.Errorf("unready: %s", body)
	}
	// Time during which the agent was frozen too does not count: the machine was suspended.
	freeze(t, first.cmd.Process.Pid)
	freeze(t, pid)
	pass(t, watchdog.ReplaceAfter+3*time.Second)
	thaw(t, first.cmd.Process.Pid)
	thaw(t, pid)
	if now := edge.ready(); now != pid {
		t.Errorf("Envoy %d was replaced by %d", pid, now)
	}
	edge.logged("killed hanging Envoy", 0)
	edge.works(a)
}

func TestAFrozenEnvoyOfAnotherUnitIsKilled(t *testing.T) {
	edge, a, first, pid := newExternal(t)
	freeze(t, pid)
	edge.hangs()
	first.end(t, syscall.SIGKILL) // the next agent finds it frozen
	edge.agent()
	edge.renewed(pid)
	edge.logged("killed hanging Envoy", 1)
	edge.works(a)
}
