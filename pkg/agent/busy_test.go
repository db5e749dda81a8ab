package agent

import (
	"errors"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/fairlead/fairlead/internal/envoytest"
	"github.com/fairlead/fairlead/pkg/agent/envoyadmin"
	"github.com/fairlead/fairlead/pkg/model"
)

func TestABusyEnvoyIsNotReplaced(t *testing.T) {
	gateway, edge, a := newPair(t)
	gateway.serve()
	gateway.agent()
	first := edge.agent()
	edge.works(a)
	pid := edge.ready()
	first.end(t, syscall.SIGKILL)
	if err := syscall.Kill(pid, syscall.SIGSTOP); err != nil { // like a main thread that processes a large configuration
		t.Fatal(err)
	}
	time.AfterFunc(2*envoyadmin.Timeout, func() { _ = syscall.Kill(pid, syscall.SIGCONT) })
	edge.agent()
	if now := edge.ready(); now != pid {
		t.Errorf("Envoy %d was replaced by %d", pid, now)
	}
	edge.logged("adopting the running Envoy", 1)
	edge.works(a)
}

// TestAnEdgeIsNotReadyBeforeItsEnvoyIsReplaced: an operator upgrading edges reloads the next edge when this one is
// ready.
func TestAnEdgeIsNotReadyBeforeItsEnvoyIsReplaced(t *testing.T) {
	gateway, edge, a := newPair(t)
	gateway.serve()
	gateway.agent()
	first := edge.agent()
	edge.works(a)
	pid := edge.ready()
	first.end(t, syscall.SIGHUP)
	edge.child.Memory = 300 << 20 // so Envoy needs another bootstrap
	edge.agent()
	replaced, early := 0, 0
	envoytest.Eventually(t, "Envoy is replaced", func() error {
		before, err := edge.admin().PID()
		if err != nil {
			return err
		}
		code, body := edge.get("/readyz")
		now, err := edge.admin().PID()
		if err == nil && before == pid && now == pid && code == http.StatusOK {
			early++
		}
		if code != http.StatusOK || now == pid {
			return errors.New(body)
		}
		replaced = now
		return nil
	})
	if early > 0 {
		t.Errorf("the edge was ready %d times before Envoy %d was replaced by %d", early, pid, replaced)
	}
	edge.works(a)
}

func TestAStoppingAgentStartsNoEnvoy(t *testing.T) {
	gateway, edge, a := newPair(t)
	const long = 25 * time.Second
	edge.child.Drain = long
	gateway.serve()
	gateway.agent()
	first := edge.agent()
	edge.works(a)
	edge.ready()
	_ = edge.stream(a, long)
	first.end(t, syscall.SIGHUP)
	edge.child.Memory = 300 << 20
	second := edge.agent()
	edge.logged("it has another configuration", 1)
	began := time.Now()
	second.end(t, syscall.SIGTERM)
	if took := time.Since(began); took > long/2 {
		t.Errorf("it took %v", took)
	}
	edge.logged("Envoy started", 1)
	if pid, err := edge.admin().PID(); err == nil {
		t.Errorf("Envoy %d was left", pid)
	}
}

func TestAnEnvoyThatCannotBeStartedIsReported(t *testing.T) {
	gateway, edge, a := newPair(t)
	program := edge.child.Envoy
	edge.child.Envoy = filepath.Join(filepath.Dir(edge.child.StateDir), "envoy")
	link := func() {
		t.Helper()
		if err := os.Symlink(program, edge.child.Envoy); err != nil {
			t.Fatal(err)
		}
	}
	link()
	gateway.serve()
	gateway.agent()
	edge.agent()
	pid := edge.ready()
	if err := errors.Join(os.Remove(edge.child.Envoy), syscall.Kill(pid, syscall.SIGKILL)); err != nil {
		t.Fatal(err)
	}
	edge.state("it says so", func(s state) error {
		if !strings.Contains(s.Memberships[0].LastError, string(model.TroubleStart)) {
			return errors.New("it does not")
		}
		return nil
	})
	link()
	edge.works(a)
	edge.state("it is over", func(s state) error {
		if strings.Contains(s.Memberships[0].LastError, string(model.TroubleStart)) {
			return errors.New("it is not over")
		}
		return nil
	})
}
