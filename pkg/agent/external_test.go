package agent

import (
	"errors"
	"os"
	"os/exec"
	"strings"
	"syscall"
	"testing"

	"github.com/fairlead/fairlead/internal/envoytest"
	"github.com/fairlead/fairlead/internal/spawn"
	"github.com/fairlead/fairlead/pkg/agent/envoyproc"
)

// container simulates the container of an external Envoy: it restarts Envoy whenever that ends.
func (p *place) container() {
	p.t.Helper()
	stop, done := make(chan struct{}), make(chan struct{})
	log, err := os.OpenFile(p.child.EnvoyLog, os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
	if err != nil {
		p.t.Fatal(err)
	}
	go func() {
		defer close(done)
		defer log.Close()
		for {
			cmd := exec.Command(p.child.Envoy, envoyproc.ExternalArguments()...)
			cmd.Dir, cmd.Stdout, cmd.Stderr = p.child.StateDir, log, log
			cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
			if err := spawn.Start(cmd); err != nil {
				p.t.Error(err)
				return
			}
			ended := make(chan struct{})
			go func() { _ = cmd.Wait(); close(ended) }()
			select {
			case <-ended:
			case <-stop:
				_ = cmd.Process.Kill()
				<-ended
				return
			}
		}
	}()
	p.t.Cleanup(func() { close(stop); <-done })
}

// newExternal starts an edge whose Envoy runs in a container of its own, and waits until it works. It returns the
// edge, its apiserver, its agent and the process id of its Envoy.
func newExternal(t *testing.T) (edge *place, a *apiserver, first *agentProcess, pid int) {
	t.Helper()
	gateway, edge, a := newPair(t)
	edge.child.External = true
	if err := WriteBootstrap(Config{StateDir: edge.child.StateDir}); err != nil {
		t.Fatal(err)
	}
	gateway.serve()
	gateway.agent()
	edge.container()
	first = edge.agent()
	edge.works(a)
	return edge, a, first, edge.ready()
}

func TestAnEnvoyInItsOwnContainer(t *testing.T) {
	edge, a, first, pid := newExternal(t)

	// Envoy continues while its agent is away.
	first.end(t, syscall.SIGKILL)
	edge.works(a)
	second := edge.agent()
	if now := edge.ready(); now != pid {
		t.Errorf("Envoy is %d, not %d", now, pid)
	}
	edge.logged("following the running Envoy", 2)

	// A crash is detected and reported.
	if err := syscall.Kill(pid, syscall.SIGKILL); err != nil {
		t.Fatal(err)
	}
	now := edge.ready(pid)
	edge.works(a)
	edge.state("the status has the crash", func(s state) error {
		if !strings.Contains(s.Memberships[0].LastError, "its container has the exit status") {
			return errors.New("it has not")
		}
		return nil
	})

	// With another bootstrap it is restarted.
	second.end(t, syscall.SIGHUP)
	edge.child.Memory = 300 << 20
	third := edge.agent()
	edge.logged("its bootstrap changed", 1)
	edge.ready(pid, now)
	edge.logged("following the running Envoy", 4)
	edge.works(a)

	// The agent stops Envoy when it ends; it does not manage the container's end.
	third.end(t, syscall.SIGTERM)
	edge.logged("stopping Envoy", 1)

	// The next agent follows the new Envoy, although the previous one was drained.
	edge.agent()
	edge.logged("following the running Envoy", 5)
	edge.works(a)
	edge.logged("restarting Envoy", 1)
}

func TestACurrentBootstrapIsNotRewritten(t *testing.T) {
	c := Config{StateDir: envoytest.Dir(t)}
	if err := WriteBootstrap(c); err != nil {
		t.Fatal(err)
	}
	before, err := os.Stat(c.StateDir + "/" + envoyproc.BootstrapFileName)
	if err != nil {
		t.Fatal(err)
	}
	for range 2 {
		if err := WriteBootstrap(c); err != nil {
			t.Fatal(err)
		}
		after, err := os.Stat(c.StateDir + "/" + envoyproc.BootstrapFileName)
		if err != nil || !os.SameFile(before, after) {
			t.Errorf("it was written again: %v", err)
		}
	}
}
