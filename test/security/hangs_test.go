package security

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/fairlead/fairlead/test/lab"
	"github.com/fairlead/fairlead/test/lab/proc"
	"github.com/fairlead/fairlead/test/world"
)

const (
	// retryTime is how long a client retries a request until it has failed.
	retryTime = 10 * time.Second
	// attemptTime bounds one attempt of such a client.
	attemptTime = 2 * time.Second
	// unreadyTime bounds the time until an agent reports unready: 5 s, and extra time for a busy machine.
	unreadyTime = 9 * time.Second
	// replaceTime bounds the time until a new Envoy serves: 15 s, its start, and extra time for a busy machine.
	replaceTime = 40 * time.Second
)

// hangAttacks freeze processes, as on a machine that hangs, and thaw them afterwards.
func hangAttacks(t *testing.T, in *installation) {
	spare := in.Edge(t, lab.EdgeSpec{Name: "edge-spare"}, in.victim)
	t.Cleanup(func() { world.StopEdge(t, spare) })
	edge := in.Edge(t, lab.EdgeSpec{Name: "edge-hangs"}, in.victim)
	t.Cleanup(func() { world.StopEdge(t, edge) })
	for _, a := range []*lab.Agent{spare, edge} { // the victim answers through any edge
		eventually(t, a.Ready)
	}
	eventually(t, in.bothServe)

	attack(
		t, "an attacker freezes the Envoy of one of two gateways so that requests fail",
		"the agent's watchdog, and the other gateway's agent; pkg/tunnels: TestWaitingTunnelsOfAStalledPathAreClosed",
		func(t *testing.T) { freezeEnvoys(t, in, in.Gateways[1]) }, nil,
	)
	attack(
		t, "an attacker freezes the Envoy of one of several edges so that requests fail",
		"the gateways' HTTP/2 pings, and the agent's watchdog", func(t *testing.T) { freezeEnvoys(t, in, edge) }, nil,
	)
	attack(
		t, "an attacker freezes a gateway-agent, an edge-agent and an xds-server so that requests fail",
		"Envoy needs none of them; each has a second one, or a liveness probe",
		func(t *testing.T) { freezeAgents(t, in, edge) }, nil,
	)
	attack(
		t, "an attacker freezes an Envoy repeatedly for 3 s so that its agent replaces it",
		"the watchdog's time starts anew with each answer; pkg/watchdog: TestDecisions",
		func(t *testing.T) { freezeBriefly(t, in, spare) }, nil,
	)
	eventually(t, in.bothServe)
}

// bothServe returns nil if the victim answers through each gateway.
func (in *installation) bothServe(ctx context.Context) error {
	for i := range in.Gateways {
		if _, err := in.victim.Path(i, false).Get(ctx, "/whoami"); err != nil {
			return fmt.Errorf("through gateway %d: %w", i, err)
		}
	}
	return nil
}

// retried sends one request like a client that tries the gateways in turn, and returns how long it took.
func (in *installation) retried(ctx context.Context, first int) (time.Duration, error) {
	began := time.Now()
	var errs []error
	for attempt := first; time.Since(began) < retryTime; attempt++ {
		one, cancel := context.WithTimeout(ctx, attemptTime)
		_, err := in.victim.Path(attempt%len(in.Gateways), attempt/2%2 == 1).Get(one, "/whoami")
		cancel()
		if err == nil {
			return time.Since(began), nil
		}
		errs = append(errs, err)
	}
	return time.Since(began), fmt.Errorf("no answer within %s: %w", retryTime, errors.Join(errs...))
}

// keepAsking sends requests for some time, and returns the longest. Each has to succeed within its retries.
func keepAsking(t *testing.T, in *installation, long time.Duration) time.Duration {
	t.Helper()
	var longest time.Duration
	for i, end := 0, time.Now().Add(long); time.Now().Before(end); i++ {
		took, err := in.retried(t.Context(), i)
		if err != nil {
			t.Fatalf("request %d: %v", i, err)
		}
		longest = max(longest, took)
	}
	return longest
}

// unready returns a condition that is nil once an agent reports unready.
func unready(a *lab.Agent) func(context.Context) error {
	return func(ctx context.Context) error {
		if a.Ready(ctx) == nil {
			return errors.New("the agent is ready still")
		}
		return nil
	}
}

// freezeEnvoys freezes Envoys at the same time. Requests continue through other Envoys, and the agents replace the
// frozen ones.
func freezeEnvoys(t *testing.T, in *installation, agents ...*lab.Agent) {
	t.Helper()
	pids := map[*lab.Agent]int{}
	for _, a := range agents {
		pid, thaw, err := a.FreezeEnvoy()
		must(t, err)
		t.Cleanup(thaw)
		pids[a] = pid
	}
	began := time.Now()
	var waits errgroup.Group
	for a, pid := range pids {
		waits.Go(func() error {
			if err := proc.Wait(t.Context(), unreadyTime, unready(a)); err != nil {
				return fmt.Errorf("%s is not unready: %w", a.Process().Name, err)
			}
			t.Logf("%s is unready after %.1f s", a.Process().Name, time.Since(began).Seconds())
			err := proc.Wait(t.Context(), replaceTime, func(ctx context.Context) error {
				if now, err := a.EnvoyPID(); err != nil || now == pid {
					return fmt.Errorf("Envoy %d is there still: %w", pid, err)
				}
				return a.Ready(ctx)
			})
			t.Logf("%s has a new Envoy after %.1f s", a.Process().Name, time.Since(began).Seconds())
			return err
		})
	}
	measured("longest_request_s", keepAsking(t, in, retryTime).Seconds())
	must(t, waits.Wait())
	measured("replaced_s", time.Since(began).Seconds())
	eventually(t, in.bothServe)
}

// freezeAgents freezes the agents of a gateway and of an edge, and an xds-server. Traffic needs none of them.
func freezeAgents(t *testing.T, in *installation, edge *lab.Agent) {
	t.Helper()
	frozen := []*proc.Process{in.Gateways[0].Process(), edge.Process(), in.XDSServers[1].Process()}
	for _, p := range frozen {
		must(t, p.Freeze())
		t.Cleanup(func() { _ = p.Thaw() })
	}
	measured("longest_request_s", keepAsking(t, in, retryTime).Seconds())
	// The agents that reported to the frozen xds-server have connected to the other one.
	must(t, proc.Wait(t.Context(), replaceTime, in.Gateways[1].Ready))
	for _, p := range frozen {
		must(t, p.Thaw())
	}
	eventually(t, in.Gateways[0].Ready)
	eventually(t, edge.Ready)
	eventually(t, in.XDSServerReady)
}

// freezeBriefly freezes an Envoy repeatedly: for longer in total than its agent waits, but each time for less.
func freezeBriefly(t *testing.T, in *installation, a *lab.Agent) {
	t.Helper()
	before, err := a.EnvoyPID()
	must(t, err)
	for range 6 {
		_, thaw, err := a.FreezeEnvoy()
		must(t, err)
		t.Cleanup(thaw)
		keepAsking(t, in, 3*time.Second)
		thaw()
		must(t, proc.Wait(t.Context(), retryTime, a.Ready))
		keepAsking(t, in, time.Second)
	}
	now, err := a.EnvoyPID()
	must(t, err)
	if now != before {
		t.Errorf("Envoy %d was replaced by %d", before, now)
	}
}
