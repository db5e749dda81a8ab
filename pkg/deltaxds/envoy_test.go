package deltaxds_test

import (
	"fmt"
	"net/http"
	"slices"
	"strings"
	"testing"

	clusterv3 "github.com/envoyproxy/go-control-plane/envoy/config/cluster/v3"
	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	endpointv3 "github.com/envoyproxy/go-control-plane/envoy/config/endpoint/v3"
	listenerv3 "github.com/envoyproxy/go-control-plane/envoy/config/listener/v3"
	tcpproxyv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/network/tcp_proxy/v3"
	resourcev3 "github.com/envoyproxy/go-control-plane/pkg/resource/v3"
	"google.golang.org/protobuf/types/known/anypb"

	"github.com/fairlead/fairlead/internal/envoytest"
	"github.com/fairlead/fairlead/pkg/deltaxds"
)

const bootstrap = `
node: {id: envoy, cluster: test}
admin: {address: {pipe: {path: admin.sock}}}
dynamic_resources:
  cds_config: &ads {resource_api_version: V3, initial_fetch_timeout: 0s, ads: {}}
  lds_config: *ads
  ads_config:
    api_type: DELTA_GRPC
    transport_api_version: V3
    grpc_services: [{envoy_grpc: {cluster_name: ads, retry_policy: {retry_back_off: {base_interval: 0.1s, max_interval: 0.5s}}}}]
static_resources:
  clusters:
  - name: ads
    load_assignment:
      cluster_name: ads
      endpoints: [{lb_endpoints: [{endpoint: {address: {pipe: {path: ads.sock}}}}]}]
    typed_extension_protocol_options:
      envoy.extensions.upstreams.http.v3.HttpProtocolOptions:
        "@type": type.googleapis.com/envoy.extensions.upstreams.http.v3.HttpProtocolOptions
        explicit_http_config: {http2_protocol_options: {}}
`

// to returns an Envoy cluster with one endpoint. An address that is not a number is invalid.
func to(t *testing.T, name, address string) *deltaxds.Resource {
	t.Helper()
	r, err := deltaxds.Encode(resourcev3.ClusterType, name, &clusterv3.Cluster{
		Name: name, LoadAssignment: &endpointv3.ClusterLoadAssignment{
			ClusterName: name,
			Endpoints: []*endpointv3.LocalityLbEndpoints{{LbEndpoints: []*endpointv3.LbEndpoint{{
				HostIdentifier: &endpointv3.LbEndpoint_Endpoint{Endpoint: &endpointv3.Endpoint{
					Address: &corev3.Address{Address: &corev3.Address_SocketAddress{SocketAddress: &corev3.SocketAddress{
						Address: address, PortSpecifier: &corev3.SocketAddress_PortValue{PortValue: 1},
					}}},
				}},
			}}}},
		},
	})
	if err != nil {
		t.Fatal(err)
	}
	return r
}

// listener returns a listener on a Unix socket that forwards to an Envoy cluster.
func listener(t *testing.T, name, cluster string) *deltaxds.Resource {
	t.Helper()
	proxy, err := anypb.New(
		&tcpproxyv3.TcpProxy{StatPrefix: name, ClusterSpecifier: &tcpproxyv3.TcpProxy_Cluster{Cluster: cluster}},
	)
	if err != nil {
		t.Fatal(err)
	}
	r, err := deltaxds.Encode(resourcev3.ListenerType, name, &listenerv3.Listener{
		Name:    name,
		Address: &corev3.Address{Address: &corev3.Address_Pipe{Pipe: &corev3.Pipe{Path: name + ".sock"}}},
		FilterChains: []*listenerv3.FilterChain{{Filters: []*listenerv3.Filter{{
			Name: "tcp_proxy", ConfigType: &listenerv3.Filter_TypedConfig{TypedConfig: proxy},
		}}}},
	})
	if err != nil {
		t.Fatal(err)
	}
	return r
}

// becomes waits until Envoy has exactly these Envoy clusters and listeners, and the server has sent a number of
// resources.
func becomes(t *testing.T, e *envoytest.Envoy, s *server, sent int, want ...string) {
	t.Helper()
	slices.Sort(want)
	envoytest.Eventually(t, fmt.Sprintf("Envoy has %v", want), func() error {
		clusters, err := e.Admin(t.Context(), http.MethodGet, "/clusters")
		if err != nil {
			return err
		}
		listeners, err := e.Admin(t.Context(), http.MethodGet, "/listeners")
		if err != nil {
			return err
		}
		var has []string
		for line := range strings.Lines(clusters + listeners) {
			if name, _, ok := strings.Cut(line, "::"); ok && name != "ads" && !slices.Contains(has, name) {
				has = append(has, name)
			}
		}
		s.mu.Lock()
		defer s.mu.Unlock()
		if slices.Sort(has); !slices.Equal(has, want) || s.sent != sent {
			return fmt.Errorf("it has %v, and was sent %d resources, want %d", has, s.sent, sent)
		}
		return nil
	})
}

// TestARealEnvoy changes, rejects and removes resources of a real Envoy, and restarts the server.
func TestARealEnvoy(t *testing.T) {
	envoytest.Path(t)
	s := newServer(resourcev3.ClusterType, resourcev3.ListenerType)
	dir := envoytest.Dir(t)
	g := listen(t, dir, s)
	a, b := to(t, "a", "127.0.0.1"), to(t, "b", "127.0.0.1")
	s.set(0, a, b)
	s.set(1, listener(t, "in", "a"))
	e := envoytest.Start(t, dir, []byte(bootstrap))
	becomes(t, e, s, 3, "a", "b", "in")

	s.set(0, b, to(t, "c", "127.0.0.1"))
	s.set(1, listener(t, "in", "c"))
	becomes(t, e, s, 6, "b", "c", "in")

	// Of a response with an invalid resource Envoy applies the rest. Neither is sent again.
	c, bad := to(t, "c", "127.0.0.1"), to(t, "bad", "no address")
	s.set(0, c, bad, to(t, "d", "127.0.0.1"))
	becomes(t, e, s, 9, "c", "d", "in")
	s.set(0, c, bad, to(t, "d", "127.0.0.2"))
	becomes(t, e, s, 10, "c", "d", "in")
	s.mu.Lock()
	if len(s.rejected) != 1 || !strings.Contains(s.rejected[0], "no address") {
		t.Errorf("Envoy's reasons are %q", s.rejected)
	}
	s.mu.Unlock()
	s.set(0, c, to(t, "bad", "127.0.0.1"), to(t, "d", "127.0.0.2"))
	becomes(t, e, s, 11, "bad", "c", "d", "in")

	// An Envoy that returns is sent what has changed meanwhile. It states that it has b, because it rejected the response
	// that removed b, although it applied that.
	g.Stop()
	envoytest.Eventually(t, "the stream has ended", func() error {
		s.mu.Lock()
		defer s.mu.Unlock()
		if len(s.streams) > 0 {
			return fmt.Errorf("%d are open", len(s.streams))
		}
		return nil
	})
	s.set(0, c, to(t, "e", "127.0.0.1"), to(t, "d", "127.0.0.2"))
	listen(t, dir, s)
	becomes(t, e, s, 14, "c", "d", "e", "in")
}
