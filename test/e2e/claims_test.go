package e2e

import (
	"bufio"
	"context"
	"crypto/tls"
	"crypto/x509"
	"fmt"
	"io"
	"net/http"
	"testing"
	"time"

	"github.com/fairlead/fairlead/pkg/certs"
	"github.com/fairlead/fairlead/pkg/model"
	"github.com/fairlead/fairlead/test/lab"
)

// claim is what somebody says in the handshake of a tunnel, and the certificate shown with it. The certificate may be
// anything.
type claim struct {
	certificate *tls.Certificate
	node, id    string // node id and tunnel id
}

// tunnelClaims proves that a tunnel is given only to whom its certificate names.
func (w *world) tunnelClaims(t *testing.T) {
	berlin, roots := identityOf(t, w.berlin.edge.StateDir)
	gateway, _ := identityOf(t, w.Gateway.StateDir)
	self, other := subjectOf(t, w.berlin.edge.StateDir), subjectOf(t, w.tokyo.edge.StateDir)
	foreign := foreignIdentity(t, self)
	ownID, otherID := domain.TunnelID(self.ID), domain.TunnelID(other.ID)

	promise(t, "an edge that claims what its certificate says gets a tunnel", func(t *testing.T) {
		if status, err := w.handshake(t.Context(), roots, claim{&berlin, self.NodeID(), ownID}); status != http.StatusOK {
			t.Errorf("status %d, error %v: the attacks below would prove nothing", status, err)
		}
	})
	for name, attack := range map[string]claim{
		"an edge that claims another tunnel id gets no tunnel":                   {&berlin, self.NodeID(), otherID},
		"an edge that claims another edge's node id gets no tunnel":              {&berlin, other.NodeID(), ownID},
		"an edge that claims another edge's node id as its tunnel id gets none":  {&berlin, self.NodeID(), other.NodeID()},
		"an edge that claims both ids of another edge gets no tunnel":            {&berlin, other.NodeID(), otherID},
		"a gateway's certificate used as an edge's gets no tunnel":               {&gateway, self.NodeID(), ownID},
		"a gateway's certificate used as an edge's, by its own names, gets none": {&gateway, "CN=gateway-0", domain.GatewayReplica("gateway-0")},
		"a certificate of another CA with all the right names gets no tunnel":    {&foreign, self.NodeID(), ownID},
		"an edge without a certificate gets no tunnel":                           {nil, self.NodeID(), ownID},
	} {
		promise(t, name, func(t *testing.T) {
			if status, err := w.handshake(t.Context(), roots, attack); err == nil && status != http.StatusForbidden {
				t.Errorf("the gateway answered %d, want a refusal", status)
			}
		})
	}
	eventually(t, w.allWork)
}

// handshake dials the gateway's public port from the workload network and asks for a tunnel as Envoy does. It returns
// the gateway's answer, or the error that took its place.
func (w *world) handshake(ctx context.Context, roots *x509.CertPool, c claim) (int, error) {
	ctx, cancel := context.WithTimeout(ctx, 5*time.Second)
	defer cancel()
	conn, err := w.dialPublic(ctx, roots, domain.GatewayReplica("gateway-0"), c.certificate)
	if err != nil {
		return 0, err
	}
	defer func() { _ = conn.Close() }()
	_ = conn.SetDeadline(time.Now().Add(5 * time.Second))
	_, err = fmt.Fprintf(conn, "GET /reverse_connections/request HTTP/1.1\r\nHost: gateway\r\nConnection: Upgrade\r\nUpgrade: reverse-tunnel\r\n"+
		"x-envoy-reverse-tunnel-node-id: %s\r\nx-envoy-reverse-tunnel-cluster-id: %s\r\nx-envoy-reverse-tunnel-tenant-id: %s\r\n\r\n",
		c.node, c.id, model.TenantID)
	if err != nil {
		return 0, err
	}
	response, err := http.ReadResponse(bufio.NewReader(conn), nil)
	if err != nil {
		return 0, err
	}
	_, _ = io.Copy(io.Discard, response.Body)
	return response.StatusCode, response.Body.Close()
}

// dialPublic makes a TLS connection to the gateway's public port from the workload network. Without a certificate none
// is shown.
func (w *world) dialPublic(ctx context.Context, roots *x509.CertPool, name string, certificate *tls.Certificate) (*tls.Conn, error) {
	conn, err := w.Network.Workload.DialContext(ctx, "tcp", hostPort(lab.PublicName, lab.PublicPort))
	if err != nil {
		return nil, err
	}
	config := &tls.Config{RootCAs: roots, ServerName: name}
	if certificate != nil {
		config.Certificates = []tls.Certificate{*certificate}
	}
	client := tls.Client(conn, config)
	if err := client.HandshakeContext(ctx); err != nil {
		_ = conn.Close()
		return nil, err
	}
	return client, nil
}

// foreignIdentity is a certificate with a subject's names, of a CA that nobody trusts.
func foreignIdentity(t *testing.T, subject model.Subject) tls.Certificate {
	t.Helper()
	ca, err := certs.NewCA("fairlead", time.Now(), time.Hour)
	must(t, err)
	key, err := certs.NewKey()
	must(t, err)
	chain, err := ca.Issue(key.Public(), certs.Leaf{
		CommonName: subject.Node, DNSNames: domain.DNSNames(subject), Client: true, Server: true,
		NotBefore: time.Now().Add(-time.Minute), NotAfter: time.Now().Add(time.Hour),
	})
	must(t, err)
	identity, err := certs.NewIdentity(chain, key)
	must(t, err)
	return identity.TLSCertificate()
}
