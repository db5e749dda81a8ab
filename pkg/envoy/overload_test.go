package envoy_test

import (
	"errors"
	"fmt"
	"net"
	"net/http"
	"os"
	"strings"
	"testing"
	"time"

	overloadv3 "github.com/envoyproxy/go-control-plane/envoy/config/overload/v3"

	"github.com/fairlead/fairlead/internal/envoytest"
	"github.com/fairlead/fairlead/internal/freeport"
	"github.com/fairlead/fairlead/pkg/envoy"
	"github.com/fairlead/fairlead/pkg/model"
)

func TestLimitsMatchTheConfiguration(t *testing.T) {
	b := envoy.EdgeBootstrap(envoy.BootstrapConfig{MaxHeap: 123, MaxConnections: 45})
	text := string(marshal(t, b))
	for _, want := range []string{`max_heap_size_bytes: "123"`, `max_active_downstream_connections: "45"`} {
		if !strings.Contains(text, want) {
			t.Errorf("%q is not in\n%s", want, text)
		}
	}
}

// TestAnEdgeWithoutMemory has an edge that is above its limit from the beginning. It keeps its reverse tunnels, and
// answers requests in them at once, so that a gateway can try another edge.
func TestAnEdgeWithoutMemory(t *testing.T) {
	workload := newAuthority(t)
	hostname := "c1.prod." + string(domain)
	api := newAPIServer(t, "api", workload, hostname)
	c1 := cluster(t, "c1", endpoint(t, api.Listener.Addr().String()))
	in := newInstallation(t, 1, c1)
	in.workload = workload
	s := model.Subject{Role: model.RoleEdge, Node: model.NewNodeName(), ID: c1.ID}
	dir := envoytest.Dir(t)
	in.serveAgent(t, dir, nil, s)
	poor := envoytest.Start(t, dir, marshal(t, envoy.Static(
		envoy.EdgeBootstrap(envoy.BootstrapConfig{MaxHeap: 1 << 20}),
		envoy.EdgeListeners(in.Installation, c1, s.Node, envoy.EdgeDial{}),
		envoy.EdgeClusters(in.Installation, c1, s.Node, envoy.EdgeDial{}),
	)))
	envoytest.Eventually(t, "it rejects a request", func() error {
		if got := connectStatus(t, in.gateways[0], hostname+":6443"); got != http.StatusServiceUnavailable {
			return fmt.Errorf("got %d", got)
		}
		stats, err := poor.Admin(t.Context(), http.MethodGet, "/stats?filter=overload_close&usedonly")
		if err == nil && !strings.Contains(stats, "downstream_rq_overload_close") {
			err = errors.New("not the edge")
		}
		return err
	})
	if got := in.public.count.Load(); got != 2 {
		t.Errorf("it dialled %d tunnels, want 2 that stay", got)
	}
	in.startEdge(t, c1)
	works(t, in.getBySNI, in.gateways[0], hostname, "api "+hostname)
}

// TestAGatewayWithoutMemory has a gateway that is above its limit from the beginning. New connections end at once, so
// that clients and edges can use another gateway, instead of waiting in the queue of the kernel.
func TestAGatewayWithoutMemory(t *testing.T) {
	in := newInstallation(t, 1, cluster(t, "c1", freeport.Endpoint(t)))
	in.startGateway(t, "gateway-0", envoy.BootstrapConfig{MaxHeap: 1 << 20})
	g := in.gateways[1]
	for _, address := range []string{g.bind.Public.String(), g.bind.APIServer.String(), g.bind.Connect.String()} {
		envoytest.Eventually(t, address+" rejects a connection", func() error {
			conn, err := net.DialTimeout("tcp", address, envoytest.Patience)
			if err != nil {
				return err
			}
			defer conn.Close()
			_ = conn.SetDeadline(time.Now().Add(time.Second)) // half of what a worker waits for TLS
			if _, err := conn.Read(make([]byte, 1)); err == nil || errors.Is(err, os.ErrDeadlineExceeded) {
				return fmt.Errorf("the connection stays: %w", err)
			}
			return nil
		})
	}
	stats, err := g.Admin(t.Context(), http.MethodGet, "/stats?filter=^listener[.]public[.]downstream_cx_overload_reject$")
	if err != nil || strings.Contains(stats, ": 0") || !strings.Contains(stats, "overload_reject") {
		t.Errorf("%q, %v", stats, err)
	}
}

// TestAFloodOfThePublicPortLeavesRoomForClients opens more silent connections than a gateway may have.
func TestAFloodOfThePublicPortLeavesRoomForClients(t *testing.T) {
	const most, came = 16, 40
	in := newInstallation(t, 1, cluster(t, "c1", freeport.Endpoint(t)))
	in.startGateway(t, "gateway-0", envoy.BootstrapConfig{MaxConnections: most})
	g := in.gateways[1]
	var flood []net.Conn
	began := time.Now()
	for range came {
		conn, err := net.DialTimeout("tcp", g.bind.Public.String(), envoytest.Patience)
		if err != nil {
			t.Fatal(err)
		}
		defer conn.Close()
		_ = conn.SetDeadline(began.Add(envoytest.Patience))
		flood = append(flood, conn)
	}
	envoytest.Eventually(t, "connections are rejected", func() error {
		stats, err := g.Admin(t.Context(), http.MethodGet, "/stats?filter=^listener[.]public[.]downstream_cx_overflow$")
		if want := fmt.Sprintf("downstream_cx_overflow: %d", came-most/2); err == nil && !strings.Contains(stats, want) {
			err = fmt.Errorf("got %q, want %q", stats, want)
		}
		return err
	})
	for range most / 2 {
		if got := connectStatus(t, g, "nobody."+string(domain)+":6443"); got != http.StatusNotFound {
			t.Fatalf("a client got %d, want 404", got)
		}
	}
	for _, conn := range flood {
		if _, err := conn.Read(make([]byte, 1)); errors.Is(err, os.ErrDeadlineExceeded) {
			t.Fatal("a silent connection stays")
		}
	}
	if took := time.Since(began); took > 9*time.Second { // Envoy checks at intervals
		t.Errorf("silent connections stayed for %s", took)
	}
}

func TestNoLimitIsMissing(t *testing.T) {
	wc := cluster(t, "c1", freeport.Endpoint(t))
	in := newInstallation(t, 1, wc)
	edge := in.startEdge(t, wc)
	for name, e := range map[string]*envoytest.Envoy{"gateway": in.gateways[0].Envoy, "edge": edge} {
		if log := e.Log(t); strings.Contains(log, "configured limit") {
			t.Errorf("%s: Envoy misses a limit:\n%s", name, log)
		}
	}
}

func TestEveryActionHasItsMonitor(t *testing.T) {
	for name, m := range map[string]*overloadv3.OverloadManager{
		"gateway": envoy.GatewayBootstrap(envoy.BootstrapConfig{}).GetOverloadManager(),
		"edge":    envoy.EdgeBootstrap(envoy.BootstrapConfig{}).GetOverloadManager(),
	} {
		monitors := map[string]bool{}
		for _, r := range m.GetResourceMonitors() {
			monitors[r.GetName()] = true
		}
		for _, a := range m.GetActions() {
			for _, trigger := range a.GetTriggers() {
				if !monitors[trigger.GetName()] {
					t.Errorf("%s: %s hangs on %s, which is not watched", name, a.GetName(), trigger.GetName())
				}
			}
		}
	}
}
