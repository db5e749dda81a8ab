package identity

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/fairlead/fairlead/test/lab"
	"github.com/fairlead/fairlead/test/outsider"
)

// forms proves that an edge runs as two containers that share a volume as it does as one process: point 8. The manifests and
// the unit are checked where they are, in deploy/edge.
func (d *doors) forms(t *testing.T) {
	m := d.member(t, "lodz", nil)
	edge := d.edge(t, lab.EdgeSpec{Name: "edge-lodz", Container: true}, m)
	node := steal(t, edge).Subject.Node
	that(t, "agent and Envoy as two containers that share a volume carry traffic", func(t *testing.T) { must(t, m.works(t.Context())) })
	that(t, "status says that this edge runs in containers", func(t *testing.T) {
		eventually(t, func(ctx context.Context) error {
			status, err := m.status(ctx, node)
			if err == nil && status.Form != "Container" {
				err = fmt.Errorf("its form is %q", status.Form)
			}
			return err
		})
	})
	that(t, "the agent's container may be started anew under open streams", func(t *testing.T) {
		stream, err := m.path(0, false).follow(t.Context())
		must(t, err)
		defer stream.close()
		edge.Kill()
		eventually(t, edge.Ready)
		must(t, errors.Join(stream.alive(), m.works(t.Context())))
	})
	that(t, "an apiserver beside the edge comes before those that the Tunnel names, which take over when it is gone", d.localFirst)
	that(t, "Envoy's container may be started anew, and gets all from the agent that runs", func(t *testing.T) {
		edge.Envoy.Kill()
		measured("container_recovery_s", took(t, patience, m.works).Seconds())
	})
}

// localFirst proves that an edge takes an apiserver of its own before those that the Tunnel names: point 10.
func (d *doors) localFirst(t *testing.T) {
	m := d.member(t, "ghent", nil)
	local := d.standIn(t, "ghent", d.Network.Workload, d.SNI.Endpoint.Addr())
	d.edge(t, lab.EdgeSpec{Name: "edge-ghent", Flags: []string{"--local-apiserver=" + local.Endpoint.String()}}, m)
	eventually(t, m.answeredBy(local))
	local.stop()
	measured("local_apiserver_left_s", took(t, patience, m.answeredBy(m.standIn)).Seconds())
	local.start()
	measured("local_apiserver_back_s", took(t, patience, m.answeredBy(local)).Seconds())
}

// memberships proves that edges and workload clusters need not come in pairs: point 11.
func (d *doors) memberships(t *testing.T) {
	madrid, porto := d.member(t, "madrid", nil), d.member(t, "porto", nil)
	both := d.edge(t, lab.EdgeSpec{Name: "edge-both"}, madrid, porto)
	that(t, "one edge serves two clusters, with an identity for each and one Envoy", func(t *testing.T) {
		all, err := outsider.StealAll(domain, both.StateDir)
		must(t, err)
		if len(all) != 2 || all[0].Subject.ID == all[1].Subject.ID || all[0].Subject.Node == all[1].Subject.Node {
			t.Errorf("it has the identities %+v", all)
		}
		must(t, errors.Join(madrid.works(t.Context()), porto.works(t.Context())))
	})
	that(t, "when one of its clusters is gone the other goes on, streams and all", func(t *testing.T) {
		stream, err := madrid.path(0, false).follow(t.Context())
		must(t, err)
		defer stream.close()
		must(t, porto.Delete(t.Context()))
		eventually(t, porto.deaf)
		eventually(t, d.says("edge-both", "ended"))
		must(t, errors.Join(stream.alive(), madrid.works(t.Context())))
	})
	stopEdge(t, both)
	that(t, "an edge with an allow-list dials nothing else, whatever the management cluster says", d.allowList)
	that(t, "a cluster has edges in two networks, and one that dies takes no new request with it", d.twoNetworks)
}

// allowList lets the management cluster try to lead an edge to another address in its network.
func (d *doors) allowList(t *testing.T) {
	m := d.member(t, "turin", nil)
	secret := d.standIn(t, "turin", d.Network.Workload, d.SNI.Endpoint.Addr()) // what nobody is to reach
	edge := d.edge(t, lab.EdgeSpec{Name: "edge-turin", Flags: []string{"--allow-target=" + m.standIn.Endpoint.String()}}, m)
	must(t, m.PatchTunnel(t.Context(), apiServer(secret.Endpoint)))
	eventually(t, d.says("edge-turin", "does not allow", secret.Endpoint.String()))
	node := steal(t, edge).Subject.Node
	eventually(t, func(ctx context.Context) error {
		status, err := m.status(ctx, node)
		if err == nil && !strings.Contains(status.LastError, "does not allow") {
			err = fmt.Errorf("its last error is %q", status.LastError)
		}
		return err
	})
	for range 5 {
		for _, p := range m.paths() {
			who, err := p.get(t.Context(), "/whoami")
			must(t, err)
			if name, _, _ := strings.Cut(who, " "); name != m.standIn.Name {
				t.Fatalf("%s: %s answers", p, name)
			}
		}
	}
	stopEdge(t, edge)
}

// apiServer is what a Tunnel says of an apiserver.
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

// twoNetworks kills one of two edges, as a machine dies, under load that opens a connection for each request.
func (d *doors) twoNetworks(t *testing.T) {
	p := d.pair(t, "vienna")
	eventually(t, func(ctx context.Context) error { return p.seenFrom(ctx, p.outSite) })
	eventually(t, func(ctx context.Context) error { return p.seenFrom(ctx, p.staySite) })
	l := startFreshLoad(t, 50, "/whoami", p.paths()...)
	must(t, lab.Wait(t.Context(), patience, l.atLeast(100)))
	stopEdge(t, p.out)
	died, after := time.Now(), l.mark()
	must(t, lab.Wait(t.Context(), patience, l.atLeast(after.requests+200)))
	l.stop()
	_, err := l.begunAfter(died, slowRequest)
	must(t, err)
	// Those that were under way in the edge that died are lost with it: usually one or two.
	measured("edge_death_lost", float64(l.mark().failed))
	that(t, "status counts both edges, and of the dead one no tunnels", func(t *testing.T) {
		dead, alive := steal(t, p.out).Subject.Node, steal(t, p.stay).Subject.Node
		measured("edge_death_in_status_s", took(t, patience, func(ctx context.Context) error {
			return errors.Join(p.tunnels(ctx, dead, 0), p.tunnels(ctx, alive, 2))
		}).Seconds())
	})
}

// tunnels is the condition that status counts tunnels of an edge to exactly some gateways.
func (m *member) tunnels(ctx context.Context, node string, gateways int) error {
	status, err := m.status(ctx, node)
	if err != nil {
		return err
	}
	connected := 0
	for _, g := range status.Gateways {
		if g.Tunnels > 0 {
			connected++
		}
	}
	if connected != gateways {
		return fmt.Errorf("%s has tunnels to %d gateways (%v), want %s", node, connected, status.Gateways, strconv.Itoa(gateways))
	}
	return nil
}

// condition is the condition that a condition of the Tunnel has a status.
func (m *member) condition(kind string, want string) func(context.Context) error {
	return func(ctx context.Context) error {
		tunnel, err := m.Tunnel(ctx)
		if err != nil {
			return err
		}
		for _, c := range tunnel.Status.Conditions {
			if c.Type == kind && string(c.Status) == want {
				return nil
			}
		}
		return fmt.Errorf("%s of %s is not %s: %+v", kind, m, want, tunnel.Status.Conditions)
	}
}
