package envoy_test

import (
	"bufio"
	"crypto/tls"
	"crypto/x509"
	"fmt"
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

// claim contains the ids that an edge sends in the handshake.
type claim struct{ node, tunnel string }

func TestHandshakeBindsBothIDsToTheCertificate(t *testing.T) {
	victim := cluster(t, "victim", freeport.Endpoint(t))
	in := newInstallation(t, 1, victim)
	self := model.Subject{Role: model.RoleEdge, Node: model.NewNodeName(), ID: model.NewID()}
	identity := in.ca.issue(t, self)
	own := claim{node: self.NodeID(), tunnel: domain.TunnelID(self.ID)}
	other := claim{node: model.NodeID(model.NewNodeName()), tunnel: domain.TunnelID(victim.ID)}
	tests := map[string]struct {
		in   claim
		want int
	}{
		"the edge's own ids":                  {in: own, want: http.StatusOK},
		"another tunnel's id":                 {in: claim{own.node, other.tunnel}, want: http.StatusForbidden},
		"another edge's node id":              {in: claim{other.node, own.tunnel}, want: http.StatusForbidden},
		"both of another edge":                {in: other, want: http.StatusForbidden},
		"another edge's node id as tunnel id": {in: claim{own.node, other.node}, want: http.StatusForbidden},
		"another tunnel's id as node id":      {in: claim{other.tunnel, own.tunnel}, want: http.StatusForbidden},
		"its own tunnel id as node id":        {in: claim{own.tunnel, own.tunnel}, want: http.StatusForbidden},
		"two tunnel ids in one": {
			in:   claim{own.node, own.tunnel + "," + other.tunnel},
			want: http.StatusForbidden,
		},
		"no node id":   {in: claim{"", own.tunnel}, want: http.StatusBadRequest},
		"no tunnel id": {in: claim{own.node, ""}, want: http.StatusBadRequest},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			got, err := handshake(t, in, identity, tc.in)
			if err != nil || got != tc.want {
				t.Errorf("got %d, %v, want %d", got, err, tc.want)
			}
		})
	}
	if held := heldFor(t, in.gateways[0].bind.APIServer, victim.Hostname); held < 100*time.Millisecond {
		t.Errorf("the victim's clients were closed after %s: is there a tunnel?", held)
	}
}

func TestOnlyALeafOfAnEdgeOpensATunnel(t *testing.T) {
	in := newInstallation(t, 1)
	edge := model.Subject{Role: model.RoleEdge, Node: model.NewNodeName(), ID: model.NewID()}
	names := domain.DNSNames(edge)
	tests := map[string]struct {
		identity certs.Identity
		works    bool
	}{
		"an edge's leaf":        {identity: in.ca.issue(t, edge), works: true},
		"a gateway's leaf":      {identity: in.ca.issue(t, model.Subject{Role: model.RoleGateway, Node: "gateway-1"})},
		"the xds-server's leaf": {identity: in.ca.issue(t, model.ControlSubject())},
		"a leaf of a tunnel hostname": {
			identity: in.ca.leaf(
				t, certs.Leaf{CommonName: edge.Node, DNSNames: []string{"c1.prod." + string(domain)}, Client: true},
			),
		},
		"a leaf of another domain": {
			identity: in.ca.leaf(
				t, certs.Leaf{CommonName: edge.Node, DNSNames: []string{edge.ID + ".id.example.com"}, Client: true},
			),
		},
		"a leaf for servers alone": {
			identity: in.ca.leaf(t, certs.Leaf{CommonName: edge.Node, DNSNames: names, Server: true}),
		},
		"a leaf that has expired": {
			identity: in.ca.leaf(
				t,
				certs.Leaf{
					CommonName: edge.Node,
					DNSNames:   names,
					Client:     true,
					NotBefore:  time.Now().Add(-time.Hour),
					NotAfter:   time.Now().Add(-time.Second),
				},
			),
		},
		"a leaf of another CA": {identity: newAuthority(t).issue(t, edge)},
		"no certificate":       {},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			if tc.works {
				if got, err := handshake(t, in, tc.identity, claim{edge.NodeID(), domain.TunnelID(edge.ID)}); got != http.StatusOK {
					t.Errorf("got %d, %v, want 200", got, err)
				}
				return
			}
			// With TLS 1.3, a client detects a rejection only when it reads, after its handshake.
			if _, err := dialPublic(t, in, tc.identity).Read(make([]byte, 1)); err == nil ||
				!strings.Contains(err.Error(), "tls: ") {
				t.Errorf("got %v, want an alert of TLS", err)
			}
		})
	}
}

// handshake acts as an edge at the first gateway, and returns the gateway's answer. The connection stays open until
// the end of the test.
func handshake(t *testing.T, in *installation, identity certs.Identity, c claim) (status int, err error) {
	t.Helper()
	return sendHandshake(dialPublic(t, in, identity), c)
}

// sendHandshake sends the handshake of an edge, and returns the gateway's answer.
func sendHandshake(conn net.Conn, c claim) (status int, err error) {
	if _, err := fmt.Fprintf(conn, "GET /reverse_connections/request HTTP/1.1\r\nHost: gateway\r\n%s%s%s\r\n",
		header("node-id", c.node), header("cluster-id", c.tunnel), header("tenant-id", model.TenantID)); err != nil {
		return 0, err
	}
	response, err := http.ReadResponse(bufio.NewReader(conn), nil)
	if err != nil {
		return 0, err
	}
	return response.StatusCode, response.Body.Close()
}

func header(name, value string) string {
	if value == "" {
		return ""
	}
	return "x-envoy-reverse-tunnel-" + name + ": " + value + "\r\n"
}

// dialPublic dials a gateway as an edge does. The zero identity presents no certificate.
func dialPublic(t *testing.T, in *installation, identity certs.Identity) *tls.Conn {
	t.Helper()
	return dialPublicAs(t, in, identity, domain.GatewayReplica("gateway-0"))
}

// dialPublicAs is dialPublic with another SNI.
func dialPublicAs(t *testing.T, in *installation, identity certs.Identity, sni string) *tls.Conn {
	t.Helper()
	raw, err := net.DialTimeout("tcp", in.gateways[0].bind.Public.String(), envoytest.Patience)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = raw.Close() })
	_ = raw.SetDeadline(time.Now().Add(envoytest.Patience))
	config := &tls.Config{ServerName: sni, InsecureSkipVerify: true, VerifyConnection: func(s tls.ConnectionState) error {
		_, err := s.PeerCertificates[0].Verify(
			x509.VerifyOptions{Roots: in.ca.roots(), DNSName: domain.GatewayReplica("gateway-0")},
		)
		return err
	}}
	if identity.Leaf() != nil {
		// Not Certificates: crypto/tls would not send a certificate that does not match the server's list of CAs.
		certificate := identity.TLSCertificate()
		config.GetClientCertificate = func(*tls.CertificateRequestInfo) (*tls.Certificate, error) { return &certificate, nil }
	}
	return tls.Client(raw, config)
}
