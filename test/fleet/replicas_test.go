package fleet

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/fairlead/fairlead/pkg/model"
	"github.com/fairlead/fairlead/test/lab"
	"github.com/fairlead/fairlead/test/lab/proc"
	"github.com/fairlead/fairlead/test/traffic"
	"github.com/fairlead/fairlead/test/world"
)

const (
	// replicasRate is how many requests per second each kind of client sends while gateways come and go.
	replicasRate = 40
	// pods is how long a gateway may take to stop: Kubernetes' grace period of a Pod.
	pods = 30 * time.Second
)

// replicas is an installation whose gateways are scaled under load.
type replicas struct {
	*world.World
	members []*world.Member
	edges   []*lab.Agent
	pids    []int             // of the edges' agents and Envoys
	held    *traffic.Load     // clients of the two gateways that stay: no request may fail, no stream may break
	free    *traffic.Retrying // clients of any gateway
}

// TestGatewaysScaleWithoutManualSteps proves that gateways can be scaled without manual steps.
func TestGatewaysScaleWithoutManualSteps(t *testing.T) {
	inTurn(t)
	r := newReplicas(t, lab.Options{Gateways: 2, Lean: true, WithoutWorkload: true, GatewayPod: true})
	that(t, "a new gateway replica receives its certificate and reverse tunnels of all edges within seconds", r.up)
	that(t, "the first requests of a new gateway replica succeed, and no other request or stream fails", r.unbroken)
	that(t, "scaling down a gateway fails no retryable request", r.down)
	that(t, "edges stop dialling a removed gateway, and streams of other gateways continue", func(t *testing.T) {
		eventually(t, r.known("gateway-2", false))
		r.unbroken(t)
	})
	that(t, "a gateway beyond the replica count is denied a certificate with the reason", r.uninvited)
	that(t, "a recreated gateway Pod with the same ordinal serves requests", r.up)
	that(t, "a rolling restart of the gateways fails no retryable request", r.rollout)
	that(t, "no edge agent and no Envoy of an edge restarts during these changes", r.sameProcesses)
	r.Logs(t)
}

func newReplicas(t *testing.T, options lab.Options) *replicas {
	t.Helper()
	r := &replicas{World: newWorld(t, options)}
	for i := range 2 {
		m := r.Member(t, fmt.Sprintf("shop-%d", i), nil)
		r.members = append(r.members, m)
		for j := range 2 {
			edge := r.Edge(t, lab.EdgeSpec{Name: fmt.Sprintf("edge-%d-%d", i, j)}, m)
			eventually(t, edge.Ready) // and not only the other edge of the member
			r.edges = append(r.edges, edge)
		}
	}
	r.pids = r.processes(t)
	var paths []traffic.Path
	for _, m := range r.members {
		paths = append(paths, m.Paths()...)
	}
	r.held = traffic.Start(t, replicasRate, 1, "/whoami", paths...)
	r.free = startRetrying(t, traffic.Retry{Attempts: 3}, r.members...)
	eventually(t, r.held.AtLeast(replicasRate))
	eventually(t, r.free.More(replicasRate))
	return r
}

// processes returns the pids of all processes of the edges.
func (r *replicas) processes(t *testing.T) (pids []int) {
	t.Helper()
	for _, edge := range r.edges {
		envoy, err := edge.EnvoyPID()
		must(t, err)
		pids = append(pids, edge.Process().PID(), envoy)
	}
	return pids
}

func (r *replicas) sameProcesses(t *testing.T) {
	if now := r.processes(t); fmt.Sprint(now) != fmt.Sprint(r.pids) {
		t.Errorf("the edges are the processes %v, and were %v", now, r.pids)
	}
}

// up scales up by one. As soon as the new gateway is ready it must serve every edge.
func (r *replicas) up(t *testing.T) {
	begin := time.Now()
	must(t, r.AddGateway(t.Context()))
	measured("replica_ready_s", time.Since(begin).Seconds())
	third := len(r.Gateways) - 1
	r.serves(t, third)
	must(t, r.known(fmt.Sprintf("gateway-%d", third), true)(t.Context()))
	eventually(t, func(ctx context.Context) error {
		for _, m := range r.members {
			if err := edgesHave(ctx, m, len(r.Gateways)); err != nil {
				return err
			}
		}
		return nil
	})
	measured("replica_in_status_s", time.Since(begin).Seconds())
}

// serves sends the first requests through a gateway that reports ready. No request may fail.
func (r *replicas) serves(t *testing.T, gateway int) {
	t.Helper()
	for _, m := range r.members {
		for _, connect := range []bool{false, true} {
			if _, err := m.Path(gateway, connect).Get(t.Context(), "/whoami"); err != nil {
				t.Errorf("the first request through a gateway that is ready: %v", err)
			}
		}
	}
	if err := r.LogContains(fmt.Sprintf("gateway-%d", gateway), "gateway accepts clients "+
		"without")(t.Context()); err == nil {
		t.Error("the gateway has waited until the time for that was over")
	}
}

// edgesHave returns nil if status shows tunnels of every edge of a member to the given number of gateways.
func edgesHave(ctx context.Context, m *world.Member, gateways int) error {
	tunnel, err := m.Tunnel(ctx)
	if err != nil {
		return err
	}
	if len(tunnel.Status.Edges) != 2 {
		return fmt.Errorf("%s has %d edges in its status", m, len(tunnel.Status.Edges))
	}
	for _, e := range tunnel.Status.Edges {
		node, _ := model.ParseNodeID(e.NodeID)
		if err := m.TunnelsOf(ctx, node, gateways); err != nil {
			return err
		}
	}
	return nil
}

func (r *replicas) unbroken(t *testing.T) {
	if err := r.held.Unbroken(traffic.Mark{}); err != nil {
		t.Error(err)
	}
	if err := r.free.Err(); err != nil {
		t.Error(err)
	}
}

// down scales down by one while all gateways have requests.
func (r *replicas) down(t *testing.T) {
	eventually(t, r.free.More(2*replicasRate))
	begin := time.Now()
	must(t, r.RemoveGateway(t.Context(), pods))
	measured("replica_ends_s", time.Since(begin).Seconds())
	eventually(t, r.free.More(2*replicasRate))
	if err := r.free.Err(); err != nil {
		t.Error(err)
	}
	measured("replica_down_retries", float64(r.free.Again()))
}

// rollout replaces all gateways, like a change of the StatefulSet: each waits until the previous one is ready.
func (r *replicas) rollout(t *testing.T) {
	r.held.Stop() // its clients use only one gateway and would fail
	asked, again := r.free.Requests(), r.free.Again()
	var longest time.Duration
	begin := time.Now()
	for i := range r.Gateways {
		one := time.Now()
		must(t, r.ReplaceGateway(t.Context(), i, pods))
		longest = max(longest, time.Since(one))
		r.serves(t, i)
	}
	measured("rollout_of_each_s", longest.Seconds())
	eventually(t, r.free.More(2*replicasRate))
	if err := r.free.Err(); err != nil {
		t.Error(err)
	}
	t.Logf("%d requests in %s", r.free.Requests()-asked, time.Since(begin))
	measured("rollout_retries", float64(r.free.Again()-again))
}

// known returns nil once every edge's Envoy has, or no longer has, a listener for a gateway.
func (r *replicas) known(gateway string, want bool) func(context.Context) error {
	return func(context.Context) error {
		for _, edge := range r.edges {
			found, err := holds(edge.StateDir, "_"+gateway)
			if err != nil {
				return err
			}
			if found != want {
				return fmt.Errorf("%s knows %s: %t, want %t", edge.StateDir, gateway, found, want)
			}
		}
		return nil
	}
}

// holds reports whether a file in a folder contains a text. Agents store there what their Envoy has accepted.
func holds(dir, text string) (found bool, err error) {
	err = filepath.WalkDir(dir, func(path string, entry os.DirEntry, err error) error {
		if err != nil || !entry.Type().IsRegular() {
			return err
		}
		data, err := os.ReadFile(path)
		if errors.Is(err, os.ErrNotExist) { // the file was replaced
			return nil
		}
		found = found || strings.Contains(string(data), text)
		return err
	})
	return found, err
}

// uninvited starts a gateway with a valid credential and a number beyond the replicas.
func (r *replicas) uninvited(t *testing.T) {
	must(t, r.StartUninvitedGateway(t.Context()))
	eventually(t, func(context.Context) error {
		for _, name := range []string{"xds-server", "gateway-2"} {
			log, err := os.ReadFile(r.LogFile(name))
			if err == nil && !strings.Contains(string(log), "gateway-2 is not a gateway of the installation") {
				err = fmt.Errorf("the log of %s does not say why:\n%s", name, proc.Tail(r.LogFile(name), 5))
			}
			if err != nil {
				return err
			}
		}
		return nil
	})
	must(t, r.RemoveGateway(t.Context(), pods))
}
