package path

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
)

// forwarder starts one Envoy that forwards TCP.
func forwarder(ctx context.Context, p *place, s *subject, l link) error {
	at, err := ports(1)
	if err != nil {
		return err
	}
	to, err := s.over(l, p.at)
	if err != nil {
		return err
	}
	s.reach(at[0])
	return s.forward(ctx, p, "envoy", at[0], to, "", "")
}

// pair starts two Envoys that forward TCP with mutual TLS between them, and no tunnel: what users would run if they
// could dial the apiserver. The pair opens a TLS connection for each connection of a client.
func pair(ctx context.Context, p *place, s *subject, l link) error {
	at, err := ports(2)
	if err != nil {
		return err
	}
	const socket = `transport_socket:
%[1]s  name: envoy.transport_sockets.tls
%[1]s  typed_config:
%[1]s    "@type": type.googleapis.com/envoy.extensions.transport_sockets.tls.v3.%[2]s
%[1]s    common_tls_context:
%[1]s      tls_params: {tls_minimum_protocol_version: TLSv1_3, tls_maximum_protocol_version: TLSv1_3}
%[1]s      tls_certificates: [{certificate_chain: {filename: %[3]s}, private_key: {filename: %[4]s}}]
%[1]s      validation_context: {trusted_ca: {filename: %[5]s}}
`
	server := fmt.Sprintf(
		socket, "      ", "DownstreamTlsContext", p.file("server.crt"), p.file("server.key"), p.file("ca.crt"),
	)
	client := fmt.Sprintf(
		socket, "    ", "UpstreamTlsContext", p.file("client.crt"), p.file("client.key"), p.file("ca.crt"),
	)
	if err := s.forward(ctx, p, "far", at[1], p.at, server, ""); err != nil {
		return err
	}
	between, err := s.over(l, at[1])
	if err != nil {
		return err
	}
	s.reach(at[0])
	return s.forward(ctx, p, "near", at[0], between, "", client)
}

// forward starts an Envoy that listens at one address and forwards to another, each with or without a transport socket.
func (s *subject) forward(ctx context.Context, p *place, name, at, to, server, client string) error {
	config := fmt.Sprintf(`static_resources:
  listeners:
  - address: {socket_address: {address: 127.0.0.1, port_value: %s}}
    filter_chains:
    - filters:
      - name: envoy.filters.network.tcp_proxy
        typed_config:
          "@type": type.googleapis.com/envoy.extensions.filters.network.tcp_proxy.v3.TcpProxy
          stat_prefix: t
          cluster: t
      %s
  clusters:
  - name: t
    connect_timeout: 5s
    load_assignment:
      cluster_name: t
      endpoints:
      - lb_endpoints:
        - endpoint: {address: {socket_address: {address: 127.0.0.1, port_value: %s}}}
    %s
`, port(at), server, port(to), client)
	file := name + ".yaml"
	if err := os.WriteFile(filepath.Join(s.dir, file), []byte(config), 0o600); err != nil {
		return err
	}
	return s.start(
		ctx, at, name, filepath.Join(p.bin, "envoy"), "-c", file, "--disable-hot-restart", "--concurrency", "1", "-l",
		"warning",
	)
}
