package security

import (
	"context"
	"crypto/tls"
	"fmt"
	"net"
	"net/netip"
	"os"
	"syscall"
	"testing"
	"time"

	"github.com/fairlead/fairlead/pkg/model"
	"github.com/fairlead/fairlead/test/lab"
	"github.com/fairlead/fairlead/test/lab/netns"
	"github.com/fairlead/fairlead/test/lab/proc"
	"github.com/fairlead/fairlead/test/outsider"
	"github.com/fairlead/fairlead/test/promise"
	"github.com/fairlead/fairlead/test/world"
)

const (
	// floodRate is a hundred times the quota of an unknown source. bucketRate is the rate of one bucket for all
	// clients, which is less than what the flood sends on a busy machine.
	floodRate, bucketRate = 1000, 50
	// sourceBurst is how many connections an unknown source may open at once.
	sourceBurst = 200
	// dialCount is how many tunnels a real edge requests during a flood, and dialPause the pause after each. An edge
	// that keeps two tunnels may open eight within 1.5 s.
	dialCount, dialPause = 25, 250 * time.Millisecond
	// leafTries is how many tunnels one leaf tries to open.
	leafTries = 3000
	// silentCount is how many silent connections one source opens.
	silentCount = 1500
	// logLimit bounds the log of a gateway's agent and Envoy during a flood, at the agent's level debug.
	logLimit = 256 << 10
)

// mostTunnels is how many tunnels one leaf may have: four times the number that it keeps to a gateway with one worker,
// with its lanes.
var mostTunnels = 4 * (model.TunnelsPerWorker + model.TunnelsInLanes(model.DefaultLanes))

// handshakeAttacks try to exhaust a gateway's connections and tunnels.
func handshakeAttacks(t *testing.T, in *installation) {
	flooded, fresh, hostile := newSite(t, in, "torrent"), newSite(t, in, "fresh"), newSite(t, in, "leaf")
	leaf := in.extraLeaf(t, hostile)
	bare := newBareGateway(t, bucketRate)
	gateway := in.gatewayAt(t)

	attack(
		t,
		"a source without a certificate sends a hundred times its quota while edges dial",
		"a quota for each source; half of the capacity for known sources",
		func(t *testing.T) {
			logged := in.gatewayLog(t)
			stop := flood(t, gateway.from(flooded.Namespace), gateway.tunnels)
			if n := gateway.from(in.Network.Workload).dials(t, leaf); n < dialCount {
				t.Errorf("of %d tunnels of an edge at a known source %d were opened", dialCount, n)
			}
			sent, admitted := stop(t)
			bounded(t, sent, admitted)
			if grown := in.gatewayLog(t) - logged; grown > logLimit {
				t.Errorf("the gateway wrote %d bytes of log", grown)
			}
			stop = flood(t, gateway.from(hostile.Namespace), gateway.tunnels) // from the site of a tenant's edge
			if n := gateway.from(fresh.Namespace).dials(t, leaf); n < dialCount {
				t.Errorf("of %d tunnels of an edge at a source that was never seen %d were opened", dialCount, n)
			}
			sent, admitted = stop(t)
			bounded(t, sent, admitted)
		},
		func(t *testing.T) {
			stop := flood(t, bare.target, bare.tunnels)
			if n := bare.dials(t, bare.leaf(t, model.NewID())); n > dialCount/2 {
				t.Errorf("of %d tunnels of an edge %d were opened", dialCount, n)
			}
			stop(t)
		},
	)
	attack(
		t,
		"a source without a certificate floods the control channel",
		"a quota for each source, before a connection is passed on",
		func(t *testing.T) {
			stop := flood(t, gateway.from(newSite(t, in, "knock").Namespace), gateway.control)
			time.Sleep(3 * time.Second)
			must(t, in.victim.Works(t.Context()))
			if sent, passed := stop(t); passed > sourceBurst+sent/4 {
				t.Errorf("%d of %d connections were passed on to an xds-server", passed, sent)
			}
		},
		func(t *testing.T) {
			stop := flood(t, bare.target, bare.control)
			time.Sleep(3 * time.Second)
			if sent, passed := stop(t); passed <= sourceBurst+sent/4 {
				t.Errorf("%d of %d connections were passed on", passed, sent)
			}
		},
	)
	in.leafAttacks(t, gateway.from(hostile.Namespace), leaf)
	attack(
		t,
		"one source opens silent connections",
		"the agent closes silent connections of a source beyond its quota",
		func(t *testing.T) {
			if n := gateway.from(newSite(t, in, "silent").Namespace).silence(t); n > silentCount/2 {
				t.Errorf("%d of %d silent connections are open", n, silentCount)
			}
		},
		func(t *testing.T) {
			if n := bare.silence(t); n < silentCount*9/10 {
				t.Errorf("%d of %d silent connections are open", n, silentCount)
			}
		},
	)
}

// leafAttacks use one valid leaf of a hostile tenant.
func (in *installation) leafAttacks(t *testing.T, from target, leaf outsider.Stolen) {
	bare := newBareGateway(t, model.MaxHandshakes) // one bucket for all would reject most of these tunnels
	attack(t, "one leaf opens 3,000 tunnels", "a limit of tunnels for each edge, checked after TLS",
		func(t *testing.T) {
			held := from.hold(t, leaf, leafTries)
			defer held.close()
			if n := held.open(); n > mostTunnels || n == 0 {
				t.Errorf("it has %d tunnels", n)
			}
			must(t, in.victim.Works(t.Context()))
			envoy, err := proc.FindProcess(in.EnvoyPath(), in.File("edge-tenant", "state"))
			must(t, err)
			// the other edge of the same tunnel id opens all of its tunnels again
			must(t, syscall.Kill(envoy, syscall.SIGKILL))
			eventually(t, in.tenant.Works)
			if n := held.open(); n > mostTunnels {
				t.Errorf("it has %d tunnels", n)
			}
		}, func(t *testing.T) {
			held := bare.hold(t, bare.leaf(t, model.NewID()), 100)
			defer held.close()
			if n := held.open(); n < 50 {
				t.Errorf("it has %d tunnels", n)
			}
		})
	attack(
		t,
		"one leaf opens tunnels while the gateway-agent is frozen",
		"the agent closes tunnels beyond the limit, the newest first",
		func(t *testing.T) {
			agent := in.Gateways[0].Process()
			must(t, agent.Freeze())
			held := from.hold(t, leaf, 2*mostTunnels)
			defer held.close()
			n, err := held.open(), in.victim.Works(t.Context())
			must(t, agent.Thaw())
			must(t, err)
			if n <= mostTunnels {
				t.Errorf("while the agent was frozen %d tunnels were opened: Envoy must not depend on it", n)
			}
			eventually(t, func(context.Context) error {
				if n := held.open(); n > mostTunnels {
					return fmt.Errorf("it has %d tunnels", n)
				}
				return nil
			})
			must(t, in.victim.Works(t.Context()))
		},
		func(t *testing.T) {
			held := bare.hold(t, bare.leaf(t, model.NewID()), 2*mostTunnels)
			defer held.close()
			time.Sleep(3 * time.Second)
			if n := held.open(); n <= mostTunnels {
				t.Errorf("it has %d tunnels", n)
			}
		},
	)
}

// bounded fails the test if more of a flood was admitted than its source's quota. Without a free core, half of the rest
// may be rejected late.
func bounded(t *testing.T, sent, admitted int) {
	t.Helper()
	if admitted > sourceBurst+sent/2 {
		t.Errorf("%d of %d connections of the flood were admitted", admitted, sent)
	}
}

// gatewayLog returns how many bytes the first gateway's agent and Envoy have logged.
func (in *installation) gatewayLog(t *testing.T) int64 {
	t.Helper()
	info, err := os.Stat(in.LogFile("gateway-0"))
	must(t, err)
	return info.Size()
}

// newSite returns a site with its own address.
func newSite(t *testing.T, in *installation, name string) *netns.Site {
	t.Helper()
	site, err := in.AddSite(t.Context(), name)
	must(t, err)
	return site
}

// extraLeaf returns the identity of an additional edge of the tenant, which does not run.
func (in *installation) extraLeaf(t *testing.T, at *netns.Site) outsider.Stolen {
	t.Helper()
	edge := in.StartEdge(t, lab.EdgeSpec{Name: "edge-leaf", Site: at.Namespace}, in.tenant)
	leaf := world.Steal(t, edge)
	must(t, edge.Terminate(promise.Patience))
	return leaf
}

// target is a gateway's public port, dialled from a namespace.
type target struct {
	dial             func(ctx context.Context) (net.Conn, error)
	tunnels, control string // names
	address          string
}

// gatewayAt returns the first gateway.
func (in *installation) gatewayAt(t *testing.T) target {
	t.Helper()
	address := netip.AddrPortFrom(netns.PublicAddress(0), netns.PublicPort)
	return target{
		tunnels: world.Domain.GatewayReplica("gateway-0"),
		control: world.Domain.Control(),
		address: address.String(),
	}
}

// from returns the same target, dialled from another namespace.
func (g target) from(namespace *netns.Namespace) target {
	g.dial = func(ctx context.Context) (net.Conn, error) { return namespace.DialContext(ctx, "tcp", g.address) }
	return g
}

// ask requests a tunnel. If the gateway answers 200, the connection is the tunnel.
func (g target) ask(ctx context.Context, leaf outsider.Stolen) (net.Conn, error) {
	ctx, cancel := context.WithTimeout(ctx, 5*time.Second)
	defer cancel()
	raw, err := g.dial(ctx)
	if err != nil {
		return nil, err
	}
	deadline, _ := ctx.Deadline()
	_ = raw.SetDeadline(deadline)
	conn := tls.Client(
		raw,
		&tls.Config{
			RootCAs:      leaf.Roots,
			ServerName:   g.tunnels,
			MinVersion:   tls.VersionTLS13,
			Certificates: []tls.Certificate{leaf.Certificate},
		},
	)
	if err = claim(conn, leaf.Subject); err != nil {
		_ = raw.Close()
		return nil, err
	}
	return raw, raw.SetDeadline(time.Time{})
}

// dials requests tunnels one after the other, and returns how many were opened.
func (g target) dials(t *testing.T, leaf outsider.Stolen) (opened int) {
	t.Helper()
	for range dialCount {
		if conn, err := g.ask(t.Context(), leaf); err == nil {
			opened++
			_ = conn.Close()
		} else {
			t.Logf("a dial: %v", err)
		}
		time.Sleep(dialPause)
	}
	return opened
}
