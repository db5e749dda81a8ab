package e2e

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/fairlead/fairlead/test/lab"
	"github.com/fairlead/fairlead/test/lab/proc"
	"github.com/fairlead/fairlead/test/promise"
)

// maxOutage is how long a kubeconfig may fail after any one process was killed.
const maxOutage = 5 * time.Second

// failure proves that the system recovers when any process is killed.
func (w *world) failure(t *testing.T) {
	defer w.brokenNow()
	for _, victim := range []struct {
		name string
		kill func() error
		// without means that requests continue without an error or a delay.
		without bool
		// back returns nil once the process works again.
		back func(context.Context) error
		long bool // left out with -short: the short form of verify-fleet kills them too
	}{
		{"edge_envoy", w.berlin.edge.KillEnvoy, false, w.berlin.edge.Ready, false},
		{"edge_agent", killed(w.berlin.edge.Service), true, w.berlin.edge.Ready, false},
		{"gateway_envoy", w.Gateways[0].KillEnvoy, false, w.Gateways[0].Ready, false},
		{"gateway_agent", killed(w.Gateways[0].Service), true, w.Gateways[0].Ready, false},
		{"xds_server", killed(w.XDSServers[0]), true, w.XDSServerReady, true},
		{"controller", killed(w.Controller), true, w.ControllerReady, true},
	} {
		if victim.long && testing.Short() {
			continue
		}
		promise.That(
			t,
			"kubeconfigs work again within 5 s after kill -9 of the "+victim.name,
			func(t *testing.T) {
				outage := w.outage(t, victim.kill)
				promise.Measured("recovery_"+victim.name+"_s", outage.length.Seconds())
				if outage.length > maxOutage {
					t.Errorf("it took %s", outage.length)
				}
				if victim.without && outage.failed > 0 {
					t.Errorf("%d requests failed, though no Envoy died", outage.failed)
				}
				eventually(t, victim.back)
			},
		)
	}
	promise.That(t, "watches stay open when agents, xds-server and controller are killed", w.watchesSurvive)
	promise.That(t, "a restarted agent takes over the running Envoy", w.envoyTakenOver)
	promise.That(t, "reverse tunnels and requests continue while the xds-server is down", w.xdsServerDown)
	promise.That(t, "reverse tunnels and requests continue while the controller is down", w.controllerDown)
}

// killed returns a function that kills a service with SIGKILL.
func killed(s *proc.Service) func() error {
	return func() error {
		s.Kill()
		return nil
	}
}

// outage is the effect of a failure on clients.
type outage struct {
	// the longer of: the time from the kill until all requests succeed at once, and the longest request
	length time.Duration
	failed int
}

// atOnce bounds a request on a busy machine while nothing is wrong.
const atOnce = time.Second / 2

// outage calls kill and sends requests to every workload apiserver over new connections, until 20 rounds in a row have
// succeeded at once.
func (w *world) outage(t *testing.T, kill func() error) outage {
	t.Helper()
	must(t, w.allWork(t.Context()))
	var o outage
	start := time.Now()
	must(t, kill())
	w.brokenNow()
	for worked := 0; worked < 20; worked++ {
		asked := time.Now()
		err := w.allWork(t.Context())
		took := time.Since(asked)
		o.length = max(o.length, took)
		if err == nil && took < atOnce {
			continue
		}
		if err != nil {
			o.failed++
		}
		worked = 0
		if o.length = time.Since(start); o.length > patience {
			t.Fatalf("requests still fail or wait after %s: %v", o.length, err)
		}
	}
	return o
}

// watchesSurvive kills everything except the Envoys at the same time while watches are open.
func (w *world) watchesSurvive(t *testing.T) {
	watches := map[*member]func(context.Context) (time.Duration, error){}
	for _, m := range w.members() {
		next, err := watchFor(t.Context(), m)
		must(t, err)
		watches[m] = next
	}
	for _, service := range []*proc.Service{
		w.paris.edge.Service, w.tokyo.edge.Service, w.Gateways[0].Service,
		w.XDSServers[0], w.Controller,
	} {
		service.Kill()
	}
	for m, next := range watches {
		if _, err := next(t.Context()); err != nil {
			t.Errorf("%s: %v", m, err)
		}
	}
	for _, back := range []func(context.Context) error{
		w.paris.edge.Ready, w.tokyo.edge.Ready, w.Gateways[0].Ready,
		w.XDSServerReady, w.ControllerReady,
	} {
		eventually(t, back)
	}
	for m, next := range watches {
		if _, err := next(t.Context()); err != nil {
			t.Errorf("%s, after all are back: %v", m, err)
		}
	}
}

func (w *world) envoyTakenOver(t *testing.T) {
	for name, agent := range map[string]*lab.Agent{"edge": w.berlin.edge, "gateway": w.Gateways[0]} {
		before, err := agent.EnvoyPID()
		must(t, err)
		agent.Kill()
		eventually(t, agent.Ready)
		after, err := agent.EnvoyPID()
		must(t, err)
		if before != after {
			t.Errorf("%s: Envoy was %d, is %d", name, before, after)
		}
	}
}

func (w *world) xdsServerDown(t *testing.T) {
	next, err := watchFor(t.Context(), w.tokyo)
	must(t, err)
	w.XDSServers[0].Hold()
	defer w.XDSServers[0].Resume()
	must(t, w.worksFor(t.Context(), calm()))
	_, err = next(t.Context())
	must(t, err)
	w.XDSServers[0].Resume()
	eventually(t, w.XDSServerReady)
	must(t, w.worksFor(t.Context(), calm()))
}

func (w *world) controllerDown(t *testing.T) {
	w.Controller.Hold()
	defer w.Controller.Resume()
	must(t, w.worksFor(t.Context(), calm()))
	w.Controller.Resume()
	eventually(t, w.ControllerReady)
}

// worksFor returns nil if every request succeeds for a while.
func (w *world) worksFor(ctx context.Context, duration time.Duration) error {
	requests := 0
	for start := time.Now(); time.Since(start) < duration; requests++ {
		if err := w.allWork(ctx); err != nil {
			return fmt.Errorf("request %d: %w", requests, err)
		}
	}
	if requests < 3 {
		return errors.New("too slow to prove anything")
	}
	return nil
}
