package dial_test

import (
	"crypto/sha1" // Envoy requires passwords in this form
	"encoding/base64"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/fairlead/fairlead/internal/envoytest"
	"github.com/fairlead/fairlead/internal/freeport"
	"github.com/fairlead/fairlead/pkg/dial"
	"github.com/fairlead/fairlead/pkg/model"
)

// forwardProxy is a real Envoy that accepts CONNECT with user and password, to names that only Envoy can resolve.
const forwardProxy = `
admin: {address: {pipe: {path: admin.sock}}}
static_resources:
  listeners:
  - name: proxy
    address: {socket_address: {address: 127.0.0.1, port_value: %[1]d}}
    filter_chains:
    - filters:
      - name: http
        typed_config:
          "@type": type.googleapis.com/envoy.extensions.filters.network.http_connection_manager.v3.HttpConnectionManager
          stat_prefix: proxy
          upgrade_configs: [{upgrade_type: CONNECT}]
          local_reply_config:
            mappers:
            - filter: {status_code_filter: {comparison: {op: EQ, value: {default_value: 401, runtime_key: none}}}}
              status_code: 407
          route_config:
            virtual_hosts:
            - name: all
              domains: ["*"]
              routes:
              - match: {connect_matcher: {}}
                route: {cluster: anywhere, upgrade_configs: [{upgrade_type: CONNECT, connect_config: {}}]}
          http_filters:
          - name: credentials
            typed_config:
              "@type": type.googleapis.com/envoy.extensions.filters.http.basic_auth.v3.BasicAuth
              users: {inline_string: "%[2]s"}
              authentication_header: proxy-authorization
          - name: names
            typed_config: &names
              "@type": type.googleapis.com/envoy.extensions.filters.http.dynamic_forward_proxy.v3.FilterConfig
              dns_cache_config: &cache
                name: names
                dns_lookup_family: V4_ONLY
                typed_dns_resolver_config:
                  name: names
                  typed_config:
                    "@type": type.googleapis.com/envoy.extensions.network.dns_resolver.cares.v3.CaresDnsResolverConfig
                    resolvers: [{socket_address: {address: 127.0.0.1, port_value: %[3]d}}]
          - name: router
            typed_config: {"@type": type.googleapis.com/envoy.extensions.filters.http.router.v3.Router}
  clusters:
  - name: anywhere
    lb_policy: CLUSTER_PROVIDED
    connect_timeout: 2s
    cluster_type:
      name: names
      typed_config:
        "@type": type.googleapis.com/envoy.extensions.clusters.dynamic_forward_proxy.v3.ClusterConfig
        dns_cache_config: *cache
`

// startProxy starts one for user alice with password "open sesame", and returns its host:port.
func startProxy(t testing.TB, dns *names) string {
	t.Helper()
	port := freeport.TCP(t)
	sum := sha1.Sum([]byte("open sesame"))
	users := "alice:{SHA}" + base64.StdEncoding.EncodeToString(sum[:])
	config := fmt.Sprintf(forwardProxy, port, users, dns.conn.LocalAddr().(*net.UDPAddr).Port)
	envoytest.Start(t, envoytest.Dir(t), []byte(config))
	return fmt.Sprintf("127.0.0.1:%d", port)
}

func TestThroughARealProxy(t *testing.T) {
	dns := newNames(t)
	dns.set("gateway.example.com", "127.0.0.1")
	proxy := startProxy(t, dns)
	a := newAuthority(t)
	server := xdsServer(t, a, "127.0.0.1:0")
	gateway := model.Endpoint{Host: "gateway.example.com", Port: server.address.Port}
	port := func(e model.Endpoint) model.Endpoint { return model.Endpoint{Host: gateway.Host, Port: e.Port} }
	for name, test := range map[string]struct {
		url, file string // file: the content of the credentials file; empty: no file
		to        []model.Endpoint
		want      string // in the error; empty: no error
	}{
		"user and password are in the URL": {"http://alice:open%20sesame@" + proxy, "", []model.Endpoint{gateway}, ""},
		"they are in a file":               {proxy, "alice:open sesame\n", []model.Endpoint{gateway}, ""},
		"one address is unusable": {proxy, "alice:open sesame", []model.Endpoint{
			port(dead(t, "127.0.0.1")),
			gateway,
		}, ""},
		"there are none": {
			proxy, "", []model.Endpoint{gateway}, "it requires a user and a password, and none are configured",
		},
		"the password is wrong": {proxy, "alice:guess sesame", []model.Endpoint{gateway}, "it rejects the user and password"},
		"nothing listens behind the proxy": {
			proxy, "alice:open sesame",
			[]model.Endpoint{port(dead(t, "127.0.0.1"))},
			"the proxy answers \"503 Service Unavailable\": it cannot reach this address",
		},
		"it does not resolve the address": {
			proxy, "alice:open sesame",
			[]model.Endpoint{{Host: "nowhere.example.com", Port: 443}},
			"it cannot reach this address; it reports \"no healthy upstream\"",
		},
	} {
		t.Run(name, func(t *testing.T) {
			p, err := dial.ParseProxy(test.url, "", inFile(t, test.file))
			if err != nil {
				t.Fatal(err)
			}
			d := &dial.Dialer{Addresses: test.to, Proxy: p}
			dial.SetResolver(d, &net.Resolver{PreferGo: true, Dial: failDial})
			err = call(t.Context(), prepare(t, d, trust{a}, source{a}))
			switch {
			case test.want == "" && err != nil:
				t.Error(err)
			case test.want != "" && (err == nil || !strings.Contains(err.Error(), test.want)):
				t.Errorf("error %v, want one that says %q", err, test.want)
			case err != nil && strings.Contains(err.Error(), "sesame"):
				t.Errorf("the error has the password in it: %v", err)
			}
		})
	}
}

// inFile returns credentials from a file with one line, or nil if line is empty.
func inFile(t testing.TB, line string) func() (string, string, error) {
	t.Helper()
	if line == "" {
		return nil
	}
	path := filepath.Join(t.TempDir(), "credentials")
	if err := os.WriteFile(path, []byte(line), 0o600); err != nil {
		t.Fatal(err)
	}
	return dial.CredentialsFile(path)
}
