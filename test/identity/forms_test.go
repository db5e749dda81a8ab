package identity

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"strings"
	"testing"
	"time"

	"github.com/fairlead/fairlead/test/lab"
	"github.com/fairlead/fairlead/test/lab/proc"
	"github.com/fairlead/fairlead/test/outsider"
	"github.com/fairlead/fairlead/test/traffic"
	"github.com/fairlead/fairlead/test/world"
)

// forms proves that an edge works the same as two containers that share a volume and as one process. The manifests and
// the unit are checked in deploy/edge.
func (d *doors) forms(t *testing.T) {
	m := d.Member(t, "lodz", nil)
	edge := d.Edge(t, lab.EdgeSpec{Name: "edge-lodz", Container: true}, m)
	node := world.Steal(t, edge).Subject.Node
	that(
		t, "agent and Envoy carry traffic as two containers that share a volume",
		func(t *testing.T) { must(t, m.Works(t.Context())) },
	)
	that(t, "status shows that the edge runs in containers", func(t *testing.T) {
		eventually(t, func(ctx context.Context) error {
			status, err := m.EdgeStatus(ctx, node)
			if err == nil && status.Form != "Container" {
				err = fmt.Errorf("its form is %q", status.Form)
			}
			return err
		})
	})
	that(t, "open streams continue when the agent's container restarts", func(t *testing.T) {
		stream, err := m.Path(0, false).Follow(t.Context())
		must(t, err)
		defer stream.Close()
		edge.Kill()
		eventually(t, edge.Ready)
		must(t, errors.Join(stream.Alive(), m.Works(t.Context())))
	})
	that(
		t, "a local apiserver is preferred to the Tunnel's, which take over when it fails",
		d.localFirst,
	)
	that(t, "a restarted Envoy container gets its configuration from the running agent", func(t *testing.T) {
		edge.Envoy.Kill()
		measured("container_recovery_s", world.Took(t, patience, m.Works).Seconds())
	})
}

// localFirst proves that an edge prefers its own apiserver to the ones in the Tunnel.
func (d *doors) localFirst(t *testing.T) {
	m := d.Member(t, "ghent", nil)
	local := d.StandIn(t, "ghent", d.Network.Workload, d.Network.WorkloadAddress())
	d.Edge(t, lab.EdgeSpec{Name: "edge-ghent", Flags: []string{"--local-apiserver=" + local.Endpoint.String()}}, m)
	eventually(t, m.AnsweredBy(local))
	local.Stop()
	measured("local_apiserver_left_s", world.Took(t, patience, m.AnsweredBy(m.StandIn)).Seconds())
	local.Start()
	measured("local_apiserver_back_s", world.Took(t, patience, m.AnsweredBy(local)).Seconds())
}

// memberships proves that edges and workload clusters may be combined freely.
func (d *doors) memberships(t *testing.T) {
	madrid, porto := d.Member(t, "madrid", nil), d.Member(t, "porto", nil)
	both := d.Edge(t, lab.EdgeSpec{Name: "edge-both"}, madrid, porto)
	that(t, "one edge serves two workload clusters with one Envoy and an identity for each", func(t *testing.T) {
		all, err := outsider.StealAll(domain, both.StateDir)
		must(t, err)
		if len(all) != 2 || all[0].Subject.ID == all[1].Subject.ID || all[0].Subject.Node == all[1].Subject.Node {
			t.Errorf("it has the identities %+v", all)
		}
		must(t, errors.Join(madrid.Works(t.Context()), porto.Works(t.Context())))
	})
	that(t, "streams of one workload cluster continue when its edge's other Cluster is removed", func(t *testing.T) {
		stream, err := madrid.Path(0, false).Follow(t.Context())
		must(t, err)
		defer stream.Close()
		must(t, porto.Delete(t.Context()))
		eventually(t, porto.Unreachable)
		eventually(t, d.LogContains("edge-both", "the tunnel", "has ended: its Cluster is gone"))
		must(t, errors.Join(stream.Alive(), madrid.Works(t.Context())))
	})
	world.StopEdge(t, both)
	that(t, "an edge with an allow-list dials only allowed addresses, whatever the Tunnel specifies", d.allowList)
	that(t, "no new request fails when one of two edges in different networks stops", d.twoNetworks)
}

// allowList makes the management cluster try to lead an edge to another address in the edge's network.
func (d *doors) allowList(t *testing.T) {
	m := d.Member(t, "turin", nil)
	secret := d.StandIn(t, "turin", d.Network.Workload, d.Network.WorkloadAddress()) // an address that must not be reached
	edge := d.Edge(
		t, lab.EdgeSpec{Name: "edge-turin", Flags: []string{"--allow-target=" + m.StandIn.Endpoint.String()}}, m,
	)
	must(t, m.PatchTunnel(t.Context(), apiServer(secret.Endpoint)))
	eventually(t, d.LogContains("edge-turin", "does not allow", secret.Endpoint.String()))
	node := world.Steal(t, edge).Subject.Node
	eventually(t, func(ctx context.Context) error {
		status, err := m.EdgeStatus(ctx, node)
		if err == nil && !strings.Contains(status.LastError, "does not allow") {
			err = fmt.Errorf("its last error is %q", status.LastError)
		}
		return err
	})
	for range 5 {
		for _, p := range m.Paths() {
			answer, err := p.Get(t.Context(), "/whoami")
			must(t, err)
			if name, _, _ := strings.Cut(answer, " "); name != m.StandIn.Name {
				t.Fatalf("%s: %s answers", p, name)
			}
		}
	}
	world.StopEdge(t, edge)
}

// apiServer returns the fields of a Tunnel that name apiservers.
func apiServer(address netip.AddrPort, others ...netip.AddrPort) map[string]any {
	server := map[string]any{"address": address.Addr().String(), "port": int64(address.Port())}
	var list []any
	for _, other := range others {
		list = append(list, map[string]any{"address": other.Addr().String(), "port": int64(other.Port())})
	}
	if len(list) > 0 {
		server["others"] = list
	}
	return map[string]any{"apiServer": server}
}

// twoNetworks kills one of two edges, as if its machine failed, under load that opens a connection for each request.
func (d *doors) twoNetworks(t *testing.T) {
	p := d.pair(t, "vienna")
	eventually(t, func(ctx context.Context) error { return p.SeenFrom(ctx, p.outSite) })
	eventually(t, func(ctx context.Context) error { return p.SeenFrom(ctx, p.staySite) })
	l := traffic.StartFresh(t, 50, "/whoami", p.Paths()...)
	must(t, proc.Wait(t.Context(), patience, l.AtLeast(100)))
	world.StopEdge(t, p.out)
	died, after := time.Now(), l.Count()
	must(t, proc.Wait(t.Context(), patience, l.AtLeast(after.Requests+200)))
	l.Stop()
	_, err := l.BegunAfter(died, traffic.SlowRequest)
	must(t, err)
	// Requests in flight through the killed edge are lost: usually one or two.
	measured("edge_death_lost", float64(l.Count().Failed))
	that(t, "status lists both edges, and no reverse tunnels of the stopped edge", func(t *testing.T) {
		dead, alive := world.Steal(t, p.out).Subject.Node, world.Steal(t, p.stay).Subject.Node
		measured("edge_death_in_status_s", world.Took(t, patience, func(ctx context.Context) error {
			return errors.Join(p.TunnelsOf(ctx, dead, 0), p.TunnelsOf(ctx, alive, 2))
		}).Seconds())
	})
}
