package xdsproxy_test

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	clusterv3 "github.com/envoyproxy/go-control-plane/envoy/config/cluster/v3"
	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	endpointv3 "github.com/envoyproxy/go-control-plane/envoy/config/endpoint/v3"
	listenerv3 "github.com/envoyproxy/go-control-plane/envoy/config/listener/v3"
	tcpproxyv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/network/tcp_proxy/v3"
	"google.golang.org/protobuf/types/known/anypb"

	"github.com/fairlead/fairlead/internal/envoytest"
	"github.com/fairlead/fairlead/internal/spawn"
	"github.com/fairlead/fairlead/pkg/xdsproxy"
)

// bootstrap is the bootstrap of an Envoy that gets everything from its agent, with an edge's extensions for reverse
// tunnels.
const bootstrap = `
node: {id: envoy, cluster: test}
admin: {address: {pipe: {path: admin.sock}}}
bootstrap_extensions:
- name: envoy.bootstrap.reverse_tunnel.downstream_socket_interface
  typed_config:
    "@type": type.googleapis.com/envoy.extensions.bootstrap.reverse_tunnel.downstream_socket_interface.v3.DownstreamReverseConnectionSocketInterface
    stat_prefix: reverse_tunnel
dynamic_resources:
  cds_config: &ads {resource_api_version: V3, initial_fetch_timeout: 0s, ads: {}}
  lds_config: *ads
  ads_config:
    api_type: DELTA_GRPC
    transport_api_version: V3
    set_node_on_first_message_only: true
    grpc_services: [{envoy_grpc: {cluster_name: agent, retry_policy: {retry_back_off: {base_interval: 0.1s, max_interval: 0.5s}}}}]
static_resources:
  clusters:
  - name: agent
    load_assignment:
      cluster_name: agent
      endpoints: [{lb_endpoints: [{endpoint: {address: {pipe: {path: agent.sock}}}}]}]
    typed_extension_protocol_options:
      envoy.extensions.upstreams.http.v3.HttpProtocolOptions:
        "@type": type.googleapis.com/envoy.extensions.upstreams.http.v3.HttpProtocolOptions
        explicit_http_config: {http2_protocol_options: {}}
`

func pipe(path string) *corev3.Address {
	return &corev3.Address{Address: &corev3.Address_Pipe{Pipe: &corev3.Pipe{Path: path}}}
}

func socket(host string, port uint32) *corev3.Address {
	return &corev3.Address{Address: &corev3.Address_SocketAddress{SocketAddress: &corev3.SocketAddress{
		Address: host, PortSpecifier: &corev3.SocketAddress_PortValue{PortValue: port},
	}}}
}

// to returns an Envoy cluster with one endpoint.
func to(name string, address *corev3.Address) *clusterv3.Cluster {
	return &clusterv3.Cluster{Name: name, LoadAssignment: &endpointv3.ClusterLoadAssignment{
		ClusterName: name,
		Endpoints: []*endpointv3.LocalityLbEndpoints{{LbEndpoints: []*endpointv3.LbEndpoint{{
			HostIdentifier: &endpointv3.LbEndpoint_Endpoint{Endpoint: &endpointv3.Endpoint{Address: address}},
		}}}},
	}}
}

// from returns a listener that forwards to an Envoy cluster.
func from(t testing.TB, name string, address *corev3.Address, cluster string) *listenerv3.Listener {
	t.Helper()
	proxy, err := anypb.New(
		&tcpproxyv3.TcpProxy{StatPrefix: name, ClusterSpecifier: &tcpproxyv3.TcpProxy_Cluster{Cluster: cluster}},
	)
	if err != nil {
		t.Fatal(err)
	}
	return &listenerv3.Listener{
		Name:    name,
		Address: address,
		FilterChains: []*listenerv3.FilterChain{{Filters: []*listenerv3.Filter{{
			Name: "tcp_proxy", ConfigType: &listenerv3.Filter_TypedConfig{TypedConfig: proxy},
		}}}},
	}
}

// greeter sends hello on every connection.
func greeter(t testing.TB) *corev3.Address {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = l.Close() })
	go func() {
		for {
			conn, err := l.Accept()
			if err != nil {
				return
			}
			_, _ = conn.Write([]byte("hello"))
			_ = conn.Close()
		}
	}()
	return socket("127.0.0.1", uint32(l.Addr().(*net.TCPAddr).Port))
}

// greets waits until Envoy forwards connections.
func (b *bed) greets(t testing.TB) {
	t.Helper()
	envoytest.Eventually(t, "Envoy passes connections on", func() error {
		conn, err := net.Dial("unix", filepath.Join(filepath.Dir(b.socket), "in.sock"))
		if err != nil {
			return err
		}
		defer conn.Close()
		got := make([]byte, 5)
		if _, err := conn.Read(got); err != nil || string(got) != "hello" {
			return fmt.Errorf("got %q: %w", got, err)
		}
		return nil
	})
}

// startEnvoy starts a real Envoy that gets everything from the agent.
func (b *bed) startEnvoy(t testing.TB, args ...string) *envoytest.Envoy {
	t.Helper()
	return envoytest.Start(t, filepath.Dir(b.socket), []byte(bootstrap), args...)
}

// restartFromDisk ends Envoy, the agent and the xds-server. It returns the next agent, which has only the disk, and its
// Envoy.
func (b *bed) restartFromDisk(t testing.TB, s *server, real *envoytest.Envoy) (*bed, *envoytest.Envoy) {
	t.Helper()
	real.Kill()
	b.stop()
	s.grpc.Stop()
	next := newBed(t, b.dir)
	next.follow(t, "a", s, nil)
	return next, next.startEnvoy(t)
}

// restartAgent replaces the agent while Envoy continues, and connects the new one to the xds-server, which starts
// again.
func (b *bed) restartAgent(t testing.TB, s *server) {
	t.Helper()
	b.stop()
	b.serve(t)
	s.start(t)
	b.follow(t, "a", s, nil)
	b.is(t, "a", "is connected", connected)
}

// restartDamaged ends Envoy and the agent, damages files of its cache, and returns the next agent.
func (b *bed) restartDamaged(t testing.TB, real *envoytest.Envoy, files ...string) *bed {
	t.Helper()
	real.Kill()
	b.stop()
	for _, name := range files {
		if err := os.Truncate(filepath.Join(b.dir, name), 77); err != nil {
			t.Fatal(err)
		}
	}
	return newBed(t, b.dir)
}

func TestARealEnvoyBehindTheProxy(t *testing.T) {
	s := newServer(t, named(to("out", greeter(t))), named(from(t, "in", pipe("in.sock"), "out")))
	bed := newBed(t, t.TempDir())
	bed.follow(t, "a", s, nil)
	real := bed.startEnvoy(t)
	bed.greets(t)
	for range 2 {
		s.next(t, cds)
	}
	bed.file(t, "a.clusters.cache", "out")
	bed.file(t, "a.listeners.cache", "in.sock")

	// The xds-server gets Envoy's reason for a rejection; the other resources of the response are applied.
	if err := s.caches[cds].UpdateResources(named(to("malformed", socket("no address", 1)), to("further", pipe("x"))),
		nil); err != nil {
		t.Fatal(err)
	}
	nack := s.next(t, cds)
	if got := nack.GetErrorDetail().GetMessage(); !strings.Contains(got, "malformed IP address: no address") ||
		!strings.Contains(got, "cluster(s) malformed") {
		t.Errorf("the server is told %q", got)
	}
	expect(t, "state", bed.State("a").Refused, nack.GetErrorDetail().GetMessage())
	bed.file(t, "a.clusters.cache", "out", "further")

	bed, real = bed.restartFromDisk(t, s, real)
	bed.greets(t)
	bed.is(t, "a", "is cached", func(s xdsproxy.State) bool { return s.Cached && !s.Connected })

	// Envoy gets nothing, and its listener keeps working.
	bed.restartAgent(t, s)
	bed.greets(t)
	stats, err := real.Admin(t.Context(), "GET", "/stats?filter=listener_manager.listener_(modified|create_success|added)")
	if err != nil || !strings.Contains(stats, "listener_manager.listener_modified: 0") ||
		!strings.Contains(stats, "listener_manager.listener_added: 1") {
		t.Errorf("the listener was touched: %s: %v", stats, err)
	}

	// A damaged cache only delays the resources until the server answers.
	bed = bed.restartDamaged(t, real, "a.listeners.cache")
	expect(t, "log lines", bed.log.Count("renamed it", "a.listeners.cache.corrupt"), 1)
	bed.follow(t, "a", s, nil)
	bed.startEnvoy(t)
	bed.greets(t)
}

// endOf starts Envoy and waits for its end.
func (b *bed) endOf(t testing.TB) error {
	t.Helper()
	dir := filepath.Dir(b.socket)
	config := filepath.Join(dir, "envoy.yaml")
	if err := os.WriteFile(config, []byte(bootstrap), 0o600); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), envoytest.Patience)
	defer cancel()
	cmd := exec.CommandContext(
		ctx, envoytest.Path(t), "-c", config, "--disable-hot-restart", "--concurrency", "1", "-l", "critical",
	)
	cmd.Dir = dir
	cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	return errors.Join(spawn.Run(cmd), ctx.Err())
}

func TestARealEnvoyThatCrashesGetsItsLastGoodResources(t *testing.T) {
	envoytest.Path(t)
	s := newServer(t, named(to("out", greeter(t))), named(from(t, "in", pipe("in.sock"), "out")))
	bed := newBed(t, t.TempDir())
	bed.follow(t, "a", s, nil)
	real := bed.startEnvoy(t)
	bed.greets(t)
	bed.file(t, "a.listeners.cache", "in.sock")
	bed.Ran()
	bed.file(t, "a.listeners.good", "in.sock")
	real.Kill()
	// A reverse tunnel over a Unix socket: Envoy 1.40 accepts it, and crashes when it dials.
	s.set(t, to("unix", pipe("nobody.sock")))
	reverse := socket("rc://node:cluster:tenant@unix:1", 0)
	reverse.GetSocketAddress().ResolverName = "envoy.resolvers.reverse_connection"
	if err := s.caches[lds].UpdateResource("deadly", from(t, "deadly", reverse, "out")); err != nil {
		t.Fatal(err)
	}
	for crashes := 1; ; crashes++ {
		var exit *exec.ExitError
		if err := bed.endOf(t); !errors.As(err, &exit) || errors.Is(err, context.DeadlineExceeded) {
			t.Fatalf("Envoy ended otherwise than by a crash: %v", err)
		}
		if bed.Crashed() {
			expect(t, "crashes", crashes, 3)
			break
		}
	}
	bed.startEnvoy(t)
	bed.greets(t)
	if got := bed.State("a").Refused; !strings.Contains(got, "deadly") {
		t.Errorf("the reason is %q", got)
	}
}
