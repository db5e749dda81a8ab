package identity

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/fairlead/fairlead/test/lab"
	"github.com/fairlead/fairlead/test/lab/proc"
	"github.com/fairlead/fairlead/test/traffic"
	"github.com/fairlead/fairlead/test/world"
)

// marker is an address that crashes every Envoy that badConfiguration starts.
const marker = "192.0.2.66"

// fragile runs Envoy, and kills it as soon as its configuration contains the marker. It simulates a configuration that
// crashes Envoy.
const fragile = `#!/bin/sh
(
	while kill -0 $$ 2>/dev/null; do
		if curl --silent --max-time 2 --unix-socket admin.sock http://envoy/config_dump | grep --quiet '` + marker + `'; then kill -SEGV $$; fi
		sleep 0.2
	done
) >/dev/null 2>&1 &
exec "@ENVOY@" "$@"
`

// provenAfter is how long an Envoy must have run until its configuration counts as good.
const provenAfter = 12 * time.Second

// startFragile starts an edge with a fragile Envoy.
func (o *outage) startFragile(t *testing.T) {
	t.Helper()
	file := o.File("fragile-envoy")
	must(t, os.WriteFile(file, []byte(strings.ReplaceAll(fragile, "@ENVOY@", o.EnvoyPath())), 0o755))
	o.fragile = o.Member(t, "fragile", nil)
	o.fragileEdge = o.Edge(t, lab.EdgeSpec{Name: "edge-fragile", Envoy: file}, o.fragile)
	o.fragileSince = time.Now()
}

// badConfiguration proves that an edge whose Envoy keeps crashing after a new configuration returns to the previous
// configuration.
func (o *outage) badConfiguration(t *testing.T) {
	m, edge := o.fragile, o.fragileEdge
	node := world.Steal(t, edge).Subject.Node
	must(t, proc.Wait(t.Context(), patience, func(context.Context) error {
		if ran := time.Since(o.fragileSince); ran < provenAfter {
			return fmt.Errorf("its Envoy has run for %s", ran)
		}
		return nil
	}))
	that(t, "an edge returns to the last good configuration after a new one crashes its Envoy", func(t *testing.T) {
		before := m.StandIn.Endpoint
		must(t, m.PatchTunnel(t.Context(), map[string]any{"apiServer": map[string]any{
			"address": before.Addr().
				String(),
			"port": int64(before.Port()), "others": []any{map[string]any{"address": marker, "port": int64(6443)}},
		}}))
		eventually(t, o.LogContains("edge-fragile", "segmentation fault"))
		measured("rollback_s", recovered(t, m, 6*time.Second).Seconds())
		dump, err := adminGet(t.Context(), edge.StateDir, "/config_dump")
		if err != nil || strings.Contains(dump, marker) {
			t.Errorf("Envoy has what crashed it (%v)", err)
		}
	})
	that(t, "status shows the rejected configuration and the reason", func(t *testing.T) {
		eventually(t, m.HasError(node, "configuration"))
	})
	that(t, "an edge accepts the next valid configuration", func(t *testing.T) {
		must(t, m.PatchTunnel(t.Context(), apiServer(m.StandIn.Endpoint)))
		eventually(t, m.HasNoError(node, "configuration"))
		must(t, o.steadyFor(m, time.Second)(t.Context()))
	})
	world.StopEdge(t, edge)
}

// steadyFor returns a condition that is nil if a member works without interruption for a while.
func (o *outage) steadyFor(m *world.Member, duration time.Duration) func(context.Context) error {
	return func(ctx context.Context) error {
		ticker := time.NewTicker(poll)
		defer ticker.Stop()
		for start := time.Now(); time.Since(start) < duration; <-ticker.C {
			if err := m.Works(ctx); err != nil {
				return err
			}
		}
		return nil
	}
}

// startsAlone starts edges while only gateways and apiservers are running.
func (o *outage) startsAlone(t *testing.T, p *prepared) {
	that(
		t,
		"an edge that starts without the control channel opens its tunnels from its cache",
		func(t *testing.T) {
			world.StopEdge(t, p.cachedEdge)
			must(t, proc.Wait(t.Context(), patience, p.cached.Unreachable))
			p.cachedEdge.Resume()
			measured("start_without_control_plane_s", world.Took(t, patience, p.cached.Works).Seconds())
			eventually(t, p.cachedEdge.Ready)
		},
	)
	that(t, "an edge that starts from its cache logs it", func(t *testing.T) {
		eventually(t, o.LogContains("edge-cached", "served from the cache", "xds-server does not answer"))
	})
	that(t, "a gateway that starts without the control channel accepts reverse tunnels", func(t *testing.T) {
		gateway := o.Gateways[1]
		gateway.Hold()
		must(t, gateway.KillEnvoy())
		gateway.Resume()
		measured("gateway_start_without_control_plane_s", world.Took(t, patience, p.cached.Works).Seconds())
	})
	that(t, "an agent logs a damaged cache, renames it and continues", func(t *testing.T) {
		world.StopEdge(t, p.corruptEdge)
		damage(t, filepath.Join(p.corruptEdge.StateDir, "cache"))
		p.corruptEdge.Resume()
		eventually(t, o.LogContains("edge-corrupt", "cache of resources is not usable"))
		pid := p.corruptEdge.Process().PID()
		start := time.Now()
		must(t, proc.Wait(t.Context(), patience, func(context.Context) error {
			if time.Since(start) < 5*time.Second {
				return errors.New("too early to tell")
			}
			return nil
		}))
		if now := p.corruptEdge.Process().PID(); now != pid {
			t.Errorf("the agent was process %d, is %d", pid, now)
		}
		must(t, p.corruptEdge.Alive())
	})
}

// damage changes a byte in the middle of each file of a folder.
func damage(t *testing.T, dir string) {
	t.Helper()
	damaged := 0
	must(t, filepath.WalkDir(dir, func(path string, entry fs.DirEntry, err error) error {
		if err != nil || !entry.Type().IsRegular() {
			return err
		}
		data, err := os.ReadFile(path)
		if err != nil || len(data) == 0 {
			return err
		}
		data[len(data)/2] ^= 0x55
		damaged++
		return os.WriteFile(path, data, 0o600)
	}))
	if damaged == 0 {
		t.Fatalf("there is nothing in %s", dir)
	}
}

// supervision proves how an agent supervises its Envoy.
func (o *outage) supervision(t *testing.T, p *prepared) {
	that(t, "a crashed Envoy restarts at once", func(t *testing.T) {
		pid, err := p.crashEdge.EnvoyPID()
		must(t, err)
		must(t, syscall.Kill(pid, syscall.SIGSEGV))
		measured("crash_recovery_s", world.Took(t, patience, func(ctx context.Context) error {
			if now, err := p.crashEdge.EnvoyPID(); err != nil || now == pid {
				return fmt.Errorf("Envoy is %d, was %d: %w", now, pid, err)
			}
			return p.crash.Works(ctx)
		}).Seconds())
	})
	that(t, "a restarted agent takes over the running Envoy with its open streams", func(t *testing.T) {
		stream, err := p.crash.Path(0, false).Follow(t.Context())
		must(t, err)
		defer stream.Close()
		before, err := p.crashEdge.EnvoyPID()
		must(t, err)
		p.crashEdge.Kill()
		eventually(t, p.crashEdge.Ready)
		after, err := p.crashEdge.EnvoyPID()
		must(t, err)
		if before != after {
			t.Errorf("Envoy was %d, is %d", before, after)
		}
		must(t, stream.Alive())
	})
	that(t, "Envoy has a memory limit, an overload manager and a connection limit", func(t *testing.T) {
		dump, err := adminGet(t.Context(), p.cachedEdge.StateDir, "/config_dump")
		must(t, err)
		for _, want := range []string{
			"overload_manager", fmt.Sprint(192 << 20), "shrink_heap", "stop_accepting_requests",
			"global_downstream_max_connections",
		} {
			if !strings.Contains(dump, want) {
				t.Errorf("its configuration has no %s", want)
			}
		}
	})
	that(
		t, "a stopping edge completes running requests and accepts no new ones",
		func(t *testing.T) { o.drains(t, p) },
	)
}

// drains stops one of two edges while it carries a request.
func (o *outage) drains(t *testing.T, p *prepared) {
	var running *traffic.Follower
	eventually(t, func(ctx context.Context) error {
		f, err := p.drain.Path(0, false).Follow(ctx)
		if err != nil {
			return err
		}
		if f.Edge != p.drainSites[0].Address.String() {
			f.Close()
			return fmt.Errorf("it goes through %s", f.Edge)
		}
		running = f
		return nil
	})
	l := traffic.StartFresh(t, 30, "/whoami", p.drain.Paths()...)
	must(t, proc.Wait(t.Context(), patience, l.AtLeast(30)))
	ended := make(chan error, 1)
	go func() { ended <- p.drainEdges[0].Terminate(patience) }()
	eventually(t, p.drain.CarriedBy(p.drainSites[1].Address))
	asked := l.Count()
	must(t, proc.Wait(t.Context(), patience, l.AtLeast(asked.Requests+90)))
	must(t, running.Alive())
	select {
	case err := <-ended:
		t.Errorf("it ended (%v) before the request did", err)
	default:
	}
	running.Close()
	start := time.Now()
	must(t, <-ended)
	measured("drained_s", time.Since(start).Seconds())
	// A gateway's Envoy 1.40 may lose a connection that it accepts at the moment when a used tunnel closes: see
	// docs/decisions/0023-client-first-message.md.
	failed := l.Count().Failed
	measured("drain_failed", float64(failed))
	if failed > 1 {
		t.Error(l.Unbroken(traffic.Mark{}))
	}
	l.Stop()
	p.drainEdges[0].Resume()
	must(
		t,
		proc.Wait(t.Context(), patience, func(ctx context.Context) error { return p.drain.SeenFrom(ctx, p.drainSites[0]) }),
	)
}
