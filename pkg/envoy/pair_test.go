package envoy_test

import (
	"bytes"
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"slices"
	"syscall"
	"testing"
	"time"

	"github.com/fairlead/fairlead/internal/envoytest"
	"github.com/fairlead/fairlead/pkg/model"
)

// TestPair has two gateways and an edge that knows only the first one's address.
func TestPair(t *testing.T) {
	const extra = "api.c1.example.org"
	workload := newAuthority(t)
	hostname := "c1.prod." + string(domain)
	api := newAPIServer(t, "api-1", workload, hostname, extra)
	// A name with two addresses; only one has a listener: localhost is 127.0.0.1 and ::1.
	c1 := cluster(t, "c1", model.Endpoint{Host: "localhost", Port: endpoint(t, api.Listener.Addr().String()).Port}, extra)
	down := cluster(t, "down", c1.APIServer)
	in := newInstallation(t, 2, c1, down)
	in.workload = workload
	edge := in.startEdge(t, c1)

	t.Run("each gateway reaches the apiserver by each route and name", func(t *testing.T) {
		for _, g := range in.gateways {
			for _, name := range c1.Names() {
				works(t, in.getBySNI, g, name, "api-1 "+name)
				works(t, in.getByConnect, g, name, "api-1 "+name)
			}
		}
		if in.peers["gateway-1"].count.Load() < 2 {
			t.Error("the first gateway passed fewer than two tunnels on to the second")
		}
	})
	t.Run(
		"what is on the way between edge and gateway can't be read", func(t *testing.T) { checkUnreadable(t, in, hostname) },
	)
	t.Run("idle tunnels are watched by the kernel", func(t *testing.T) { checkKeepalive(t, in) })
	t.Run(
		"a client of a tunnel that is down waits a little, then gets 503 or is closed",
		func(t *testing.T) { checkDown(t, in, down) },
	)
	t.Run("an unknown name gets 404 by CONNECT, and is closed at once by SNI", func(t *testing.T) { checkUnknown(t, in) })
	t.Run("no name of a client routes to an internal Envoy cluster", func(t *testing.T) { checkOddNames(t, in) })
	t.Run("the public port closes connections with an unknown SNI", func(t *testing.T) { checkPublic(t, in, c1) })
	t.Run("a connection waits for an edge that is restarting", func(t *testing.T) { checkRestart(t, in, c1, edge) })
}

func checkUnreadable(t *testing.T, in *installation, hostname string) {
	t.Helper()
	for name, r := range map[string]*relay{"public address": in.public, "peer address": in.peers["gateway-1"]} {
		seen := r.bytes()
		if !bytes.Contains(seen, []byte("gateway-1."+string(domain))) {
			t.Errorf("%s: the SNI of a gateway was not seen: was anything recorded?", name)
		}
		for _, secret := range []string{"PRI * HTTP/2.0", "CONNECT ", "reverse_connections", hostname, "api-1"} {
			if bytes.Contains(seen, []byte(secret)) {
				t.Errorf("%s: %q can be read", name, secret)
			}
		}
	}
}

func checkDown(t *testing.T, in *installation, down model.WorkloadCluster) {
	t.Helper()
	// The wait is the sum of 9 random waits, or of 13 by CONNECT, 1.35 s on average, with a standard deviation of 0.26 s.
	// A busy machine adds to it.
	const least, most = 300 * time.Millisecond, 5 * time.Second
	held := make(chan time.Duration)
	// More at once than Envoy's default limit of retries.
	const clients = 8
	for range clients {
		go func() { held <- heldFor(t, in.gateways[0].bind.APIServer, down.Hostname) }()
		go func() {
			begin := time.Now()
			if got := connectStatus(t, in.gateways[0], down.Hostname+":6443"); got != http.StatusServiceUnavailable {
				t.Errorf("CONNECT: got %d, want 503", got)
			}
			held <- time.Since(begin)
		}()
	}
	for range 2 * clients {
		if d := <-held; d < least || d > most {
			t.Errorf("held for %s, want about 1.4 s", d)
		}
	}
}

func checkUnknown(t *testing.T, in *installation) {
	t.Helper()
	const unknown = "c1.stage." + string(domain)
	if got := connectStatus(t, in.gateways[0], unknown+":6443"); got != http.StatusNotFound {
		t.Errorf("CONNECT: got %d, want 404", got)
	}
	closesAtOnce(t, in.gateways[0].bind.APIServer, unknown)
}

func checkOddNames(t *testing.T, in *installation) {
	t.Helper()
	// The agent serves certificates all the time, so only additional connections count.
	g := in.gateways[0]
	agent, control, peer := g.agent.count.Load(), in.control.count.Load(), in.peers["gateway-1"].count.Load()
	for _, name := range []string{
		"agent", "control_channel", "no_such_tunnel", "peer_gateway-1", "gateway-0", "gateway-0_edge-a", "apiserver_edge-a",
		"apiserver", "localhost",
		"AGENT", ".agent", "agent.", "a..b", "-a.b", "a b.c", "a/b.c", "*.example.com", "a_b.c", "%REQUESTED_SERVER_NAME%",
		"agent\x00.example.com", "control_channel\n.example.com", "\xff.example.com",
	} {
		closesAtOnce(t, g.bind.APIServer, name)
	}
	for _, name := range []string{
		"agent", "control_channel", "no_such_tunnel", "peer_gateway-1", "gateway-0", "localhost", "AGENT", "agent.",
		"[::1]", "127.0.0.1", "a_b.c", "-a.b", "*.example.com", "agent@a.b",
	} {
		for _, port := range []string{"", ":0", ":443", ":6443"} {
			if got := connectStatus(t, g, name+port); got != http.StatusNotFound && got != http.StatusBadRequest {
				t.Errorf("CONNECT %q: got %d, want 404 or 400", name+port, got)
			}
		}
	}
	for what, dialled := range map[string]int64{
		"stray cluster": in.dotless.count.Load(), "agent": g.agent.count.Load() - agent,
		"control channel": in.control.count.Load() - control, "peer": in.peers["gateway-1"].count.Load() - peer,
	} {
		if dialled != 0 {
			t.Errorf("%s: dialled %d times, want never", what, dialled)
		}
	}
}

func checkPublic(t *testing.T, in *installation, c1 model.WorkloadCluster) {
	t.Helper()
	public := in.gateways[0].bind.Public
	for _, name := range []string{
		"", c1.Hostname, c1.ExtraNames[0], domain.Gateway(), domain.TunnelID(c1.ID),
		domain.GatewayReplica("gateway-9"), "x." + domain.Control(), "agent",
	} {
		closesAtOnce(t, public, name)
	}
	if got := answerTo(t, public, "GET / HTTP/1.1\r\nHost: "+c1.Hostname+"\r\n\r\n"); got != "" {
		t.Errorf("HTTP without TLS was answered %q, want nothing", got)
	}
	checkControl(t, in, public)
}

// checkControl dials the control channel. The xds-server receives the client's address before the client's data.
func checkControl(t *testing.T, in *installation, public model.Endpoint) {
	t.Helper()
	before := in.control.count.Load()
	conn, err := net.DialTimeout("tcp", public.String(), envoytest.Patience)
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	_ = conn.SetDeadline(time.Now().Add(envoytest.Patience))
	_ = tls.Client(conn, &tls.Config{ServerName: domain.Control(), InsecureSkipVerify: true}).HandshakeContext(t.Context())
	if got := in.control.count.Load() - before; got != 1 {
		t.Errorf("the control channel was dialled %d times, want once", got)
	}
	// PROXY protocol, version 2: signature, a connection (PROXY) of TCP over IPv4, 12 bytes, two addresses, two ports.
	from, to := conn.LocalAddr().(*net.TCPAddr).AddrPort(), conn.RemoteAddr().(*net.TCPAddr).AddrPort()
	want := slices.Concat([]byte("\r\n\r\n\x00\r\nQUIT\n\x21\x11\x00\x0c"), from.Addr().AsSlice(), to.Addr().AsSlice(),
		[]byte{byte(from.Port() >> 8), byte(from.Port()), byte(to.Port() >> 8), byte(to.Port())})
	if got := <-in.received; !bytes.HasPrefix(got, want) {
		t.Errorf("the xds-server was told %q, want %q", got, want)
	}
}

// checkRestart starts the new edge's reverse tunnels once clients wait for them: the start time of a process is not
// part of the promise.
func checkRestart(t *testing.T, in *installation, c1 model.WorkloadCluster, edge *envoytest.Envoy) {
	t.Helper()
	g := in.gateways[0]
	edge.Kill()
	in.public.stop()
	dialled := in.public.count.Load()
	in.startEdge(t, c1)
	envoytest.Eventually(t, "the new edge dials", func() error {
		if in.public.count.Load() == dialled {
			return errors.New("it has not")
		}
		return nil
	})
	before := clientsOf(t, g)
	routes := []func(context.Context, *gateway, string) (string, error){in.getBySNI, in.getByConnect}
	errs := make(chan error, len(routes))
	for _, get := range routes {
		go func() {
			_, err := get(t.Context(), g, c1.Hostname)
			errs <- err
		}()
	}
	envoytest.Eventually(t, "clients wait", func() error {
		if n := clientsOf(t, g) - before; n < len(routes) {
			return fmt.Errorf("%d of %d are there", n, len(routes))
		}
		return nil
	})
	select {
	case err := <-errs:
		t.Fatalf("a connection was answered before the edge was back: %v", err)
	default:
	}
	in.public.resume()
	for range routes {
		if err := <-errs; err != nil {
			t.Errorf("a connection was not held until the edge was back: %v", err)
		}
	}
}

// clientsOf returns how many clients a gateway has had.
func clientsOf(t *testing.T, g *gateway) int {
	t.Helper()
	return g.Sum(t, "^listener[.](apiserver|connect)[.]downstream_cx_total$")
}

// closesAtOnce fails the test if a listener holds connections of that name, as it does while it waits for a reverse
// tunnel.
func closesAtOnce(t *testing.T, at model.Endpoint, serverName string) {
	t.Helper()
	const soon = 300 * time.Millisecond
	if held := fastest(soon, func() time.Duration { return heldFor(t, at, serverName) }); held > soon {
		t.Errorf("SNI %q was held for %s, want closed at once", serverName, held)
	}
}

// heldFor dials a listener, sends a ClientHello and returns how long the connection stays open. It fails the test if
// anything is answered.
func heldFor(t *testing.T, at model.Endpoint, serverName string) time.Duration {
	t.Helper()
	conn, err := net.DialTimeout("tcp", at.String(), envoytest.Patience)
	if err != nil {
		t.Error(err)
		return 0
	}
	defer conn.Close()
	_ = conn.SetDeadline(time.Now().Add(envoytest.Patience))
	begin := time.Now()
	err = tls.Client(conn, &tls.Config{ServerName: serverName, InsecureSkipVerify: true}).HandshakeContext(t.Context())
	if !errors.Is(err, io.EOF) && !errors.Is(err, syscall.ECONNRESET) {
		t.Errorf("SNI %q: the handshake ended with %v, want a closed connection", serverName, err)
	}
	return time.Since(begin)
}

// answerTo returns everything that a listener sends on a connection that begins with the given bytes, until it is
// closed.
func answerTo(t *testing.T, at model.Endpoint, greeting string) string {
	t.Helper()
	conn, err := net.DialTimeout("tcp", at.String(), envoytest.Patience)
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	_ = conn.SetDeadline(time.Now().Add(envoytest.Patience))
	if _, err := io.WriteString(conn, greeting); err != nil {
		t.Fatal(err)
	}
	answer, err := io.ReadAll(conn)
	if err != nil && !errors.Is(err, syscall.ECONNRESET) {
		t.Errorf("got %v, want a closed connection", err)
	}
	return string(answer)
}
