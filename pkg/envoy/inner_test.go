package envoy_test

import (
	"bufio"
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/fairlead/fairlead/internal/envoytest"
	"github.com/fairlead/fairlead/internal/freeport"
	"github.com/fairlead/fairlead/pkg/certs"
	"github.com/fairlead/fairlead/pkg/model"
)

// TestAGatewayVerifiesTheIDOfATunnel has edges that open a reverse tunnel with their own leaf, and then present another
// in it, as in an attack on the network that takes over the connection.
func TestAGatewayVerifiesTheIDOfATunnel(t *testing.T) {
	wc := cluster(t, "c1", freeport.Endpoint(t))
	in := newInstallation(t, 1, wc)
	edge := model.Subject{Role: model.RoleEdge, Node: model.NewNodeName(), ID: wc.ID}
	tests := map[string]struct {
		inner   certs.Identity
		wantErr string
	}{
		"another edge's leaf": {
			inner:   in.ca.issue(t, model.Subject{Role: model.RoleEdge, Node: edge.Node, ID: model.NewID()}),
			wantErr: "remote error: tls: ",
		},
		"a gateway's leaf": {
			inner:   in.ca.issue(t, model.Subject{Role: model.RoleGateway, Node: "gateway-0"}),
			wantErr: "remote error: tls: ",
		},
		"a leaf of another CA":                {inner: newAuthority(t).issue(t, edge), wantErr: "remote error: tls: "},
		"a leaf of the same tunnel is let in": {inner: in.ca.issue(t, edge)},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			err := presentInner(t, in, wc, edge, tc.inner)
			for range 2 { // on a busy machine the gateway may give up on a handshake before it receives the leaf
				if errors.Is(err, io.EOF) {
					err = presentInner(t, in, wc, edge, tc.inner)
				}
			}
			checkError(t, err, tc.wantErr)
		})
	}
}

// presentInner opens a reverse tunnel as the edge, makes the gateway use it, and presents another leaf in it. It
// returns the result of that handshake.
func presentInner(
	t *testing.T, in *installation, wc model.WorkloadCluster, edge model.Subject, shown certs.Identity,
) error {
	t.Helper()
	outer := dialPublic(t, in, in.ca.issue(t, edge))
	defer func() { _ = outer.NetConn().Close() }()
	request := "GET /reverse_connections/request HTTP/1.1\r\nHost: gateway\r\n" + header("node-id", edge.NodeID()) +
		header("cluster-id", domain.TunnelID(edge.ID)) + header("tenant-id", model.TenantID) + "\r\n"
	if _, err := io.WriteString(outer, request); err != nil {
		t.Fatal(err)
	}
	response, err := http.ReadResponse(bufio.NewReader(outer), nil)
	if err != nil || response.StatusCode != http.StatusOK {
		t.Fatalf("got %v, %v, want 200", response, err)
	}
	// A client makes the gateway use the reverse tunnel.
	go func() { _, _ = in.getBySNI(t.Context(), in.gateways[0], wc.Hostname) }()
	config := serverConfig(shown)
	config.NextProtos, config.ClientAuth, config.ClientCAs = []string{"h2"}, tls.RequireAndVerifyClientCert, in.ca.roots()
	inner := tls.Server(outer.NetConn(), config)
	if err := inner.HandshakeContext(t.Context()); err != nil {
		return err
	}
	return inner.ConnectionState().PeerCertificates[0].VerifyHostname(domain.Gateway())
}

// TestAnEdgeAcceptsOnlyGateways has gateways that present one leaf to the edge that dials, and another inside of the
// reverse tunnel.
func TestAnEdgeAcceptsOnlyGateways(t *testing.T) {
	envoytest.Path(t)
	wc := cluster(t, "c1", freeport.Endpoint(t))
	authority := newAuthority(t)
	gateway := authority.issue(t, model.Subject{Role: model.RoleGateway, Node: "gateway-0"})
	edge := authority.issue(t, model.Subject{Role: model.RoleEdge, Node: model.NewNodeName(), ID: wc.ID})
	tests := map[string]struct {
		outer, inner         certs.Identity
		wantOuter, wantInner string
	}{
		"an edge's leaf as a gateway": {outer: edge, wantOuter: "tls: "},
		"another gateway's leaf": {
			outer:     authority.issue(t, model.Subject{Role: model.RoleGateway, Node: "gateway-1"}),
			wantOuter: "tls: ",
		},
		"an edge's leaf in the tunnel": {outer: gateway, inner: edge, wantInner: "tls: "},
		"the xds-server's in the tunnel": {
			outer:     gateway,
			inner:     authority.issue(t, model.ControlSubject()),
			wantInner: "tls: ",
		},
		"no certificate in the tunnel": {outer: gateway, wantInner: "tls: "},
		"a gateway's leaf is let in":   {outer: gateway, inner: gateway},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			conns := make(chan net.Conn, 100)
			in := &installation{ca: authority, public: newRelay(t)}
			door := newCountingListener(t, "tcp", "127.0.0.1:0", func(conn net.Conn) { conns <- conn })
			in.Installation = model.Installation{
				Domain:   domain,
				Public:   door.endpoint(t),
				Gateways: []model.Gateway{{Name: "gateway-0"}},
			}
			edge := in.startEdge(t, wc)
			ctx, cancel := context.WithTimeout(t.Context(), envoytest.Patience)
			defer cancel()
			outer := acceptTunnel(ctx, t, conns, tc.outer)
			err := outer.HandshakeContext(ctx)
			checkError(t, err, tc.wantOuter)
			if err != nil {
				return
			}
			checkHandshake(t, outer, domain.TunnelID(wc.ID))
			// Bytes that arrive before the edge has handed over the connection would be treated as the outer TLS.
			envoytest.Eventually(t, "the edge has taken the tunnel over", func() error {
				stats, err := edge.Admin(ctx, http.MethodGet, "/stats?filter=^http.tunnel.downstream_cx_ssl_total$")
				if err == nil && !strings.HasSuffix(strings.TrimSpace(stats), ": 1") {
					err = errors.New(stats)
				}
				return err
			})
			checkError(
				t, enter(ctx, outer.NetConn(), authority, tc.inner, domain.TunnelID(wc.ID), tc.wantInner == ""), tc.wantInner,
			)
		})
	}
}

// acceptTunnel returns the first connection of an edge for a reverse tunnel. It closes connections for its
// configuration.
func acceptTunnel(ctx context.Context, t *testing.T, conns <-chan net.Conn, identity certs.Identity) *tls.Conn {
	t.Helper()
	select {
	case conn := <-conns:
		t.Cleanup(func() { _ = conn.Close() })
		_ = conn.SetDeadline(time.Now().Add(envoytest.Patience))
		config := serverConfig(identity)
		config.ClientAuth = tls.RequireAnyClientCert
		return tls.Server(conn, config)
	case <-ctx.Done():
		t.Fatal("the edge did not dial")
		return nil
	}
}

// checkHandshake reads the handshake of an edge and accepts it.
func checkHandshake(t *testing.T, outer *tls.Conn, tunnelID string) {
	t.Helper()
	request, err := http.ReadRequest(bufio.NewReader(outer))
	if err != nil {
		t.Fatal(err)
	}
	if got := request.Header.Get("x-envoy-reverse-tunnel-cluster-id"); got != tunnelID {
		t.Errorf("the edge claims %q, want %q", got, tunnelID)
	}
	if _, err := fmt.Fprint(outer, "HTTP/1.1 200 OK\r\ncontent-length: 0\r\n\r\n"); err != nil {
		t.Fatal(err)
	}
}

// enter starts TLS inside of a reverse tunnel as a gateway does, and reads the edge's first bytes: an alert or, if
// greet is set, HTTP/2.
func enter(
	ctx context.Context, tunnel net.Conn, a authority, identity certs.Identity, tunnelID string, greet bool,
) error {
	config := &tls.Config{RootCAs: a.roots(), ServerName: tunnelID, NextProtos: []string{"h2"}}
	if identity.Leaf() != nil {
		certificate := identity.TLSCertificate()
		config.GetClientCertificate = func(*tls.CertificateRequestInfo) (*tls.Certificate, error) { return &certificate, nil }
	}
	inner := tls.Client(tunnel, config)
	if err := inner.HandshakeContext(ctx); err != nil {
		return err
	}
	if greet {
		// RFC 9113, section 3.4: the preface, and an empty SETTINGS frame.
		if _, err := io.WriteString(inner, "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"+
			"\x00\x00\x00\x04\x00\x00\x00\x00\x00"); err != nil {
			return err
		}
	}
	_, err := inner.Read(make([]byte, 1))
	return err
}

func checkError(t *testing.T, err error, want string) {
	t.Helper()
	switch {
	case want == "" && err != nil:
		t.Errorf("unexpected error: %v", err)
	case want != "" && (err == nil || !strings.Contains(err.Error(), want)):
		t.Errorf("got error %v, want one with %q", err, want)
	}
}
