package main

import (
	"crypto/ecdsa"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"errors"
	"fmt"
	"testing"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/status"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/fairlead/fairlead/api/v1alpha1"
	"github.com/fairlead/fairlead/internal/kubetest"
	"github.com/fairlead/fairlead/pkg/certs"
	"github.com/fairlead/fairlead/pkg/dial"
	enrolclient "github.com/fairlead/fairlead/pkg/enrol/client"
	enrolv1 "github.com/fairlead/fairlead/pkg/enrol/v1"
	"github.com/fairlead/fairlead/pkg/model"
)

// tunnel returns the Tunnel of a Cluster.
func (m *management) tunnel(t *testing.T, name string) *v1alpha1.Tunnel {
	t.Helper()
	var tunnel v1alpha1.Tunnel
	kubetest.Eventually(t, "tunnel "+name, func() error {
		return m.Get(t.Context(), client.ObjectKey{Namespace: "default", Name: name}, &tunnel)
	})
	return &tunnel
}

// bootstrap creates a Cluster and returns its bootstrap token and CA.
func (m *management) bootstrap(t *testing.T, name string) (token string, bundle []byte) {
	t.Helper()
	if err := m.Create(t.Context(), kubetest.Cluster("default", name)); err != nil {
		t.Fatal(err)
	}
	secret := m.secret(t, "default", name+v1alpha1.BootstrapSecretSuffix)
	return string(secret[v1alpha1.BootstrapTokenKey]), secret[v1alpha1.BootstrapCAKey]
}

// raw returns the service without the client, which would not send an attacker's requests.
func raw(t *testing.T, at model.Endpoint, bundle []byte) enrolv1.EnrolmentClient {
	t.Helper()
	roots, err := certs.Bundle(bundle).Roots()
	if err != nil {
		t.Fatal(err)
	}
	conn, err := grpc.NewClient(at.String(), grpc.WithTransportCredentials(credentials.NewTLS(&tls.Config{
		RootCAs: roots, ServerName: domain.Control(), MinVersion: tls.VersionTLS13,
	})))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = conn.Close() })
	return enrolv1.NewEnrolmentClient(conn)
}

// greedy returns a key and a CSR that requests the names of all other nodes.
func greedy(t *testing.T, other string) (*ecdsa.PrivateKey, []byte) {
	t.Helper()
	key, err := certs.NewKey()
	if err != nil {
		t.Fatal(err)
	}
	der, err := x509.CreateCertificateRequest(rand.Reader, &x509.CertificateRequest{
		Subject:  pkix.Name{CommonName: "gateway-0", Organization: []string{"system:masters"}},
		DNSNames: []string{domain.Gateway(), domain.GatewayReplica("gateway-0"), domain.Control(), domain.TunnelID(other)},
	}, key)
	if err != nil {
		t.Fatal(err)
	}
	return key, der
}

// The test uses a real kube-apiserver, the deployed permissions, and the real controller, which signs.
func TestATokenEnrolsOnlyItsTunnel(t *testing.T) {
	m := newManagement(t)
	at, _ := start(t, m)
	token, bundle := m.bootstrap(t, "t1")
	_, _ = m.bootstrap(t, "t2")
	one, two := m.tunnel(t, "t1"), m.tunnel(t, "t2")
	service := enrolclient.Client{
		Dialer: &dial.Dialer{Addresses: []model.Endpoint{at}},
		Domain: domain,
		Trust:  certs.Bundle(bundle),
	}

	key, der := greedy(t, two.Spec.ID)
	var got *enrolv1.Certificate
	kubetest.Eventually(t, "enrolling by a request for other names", func() (err error) {
		got, err = raw(t, at, bundle).EnrolEdge(t.Context(), &enrolv1.EnrolEdgeRequest{Token: token, Csr: der, Host: "h"})
		return err
	})
	thief, err := certs.NewIdentity(got.GetChain(), key)
	if err != nil {
		t.Fatal(err)
	}
	subject, err := domain.ParseSubject(thief.Leaf().Subject.CommonName, thief.Leaf().DNSNames)
	if err != nil || subject.Role != model.RoleEdge || subject.ID != one.Spec.ID ||
		len(thief.Leaf().Subject.Organization) > 0 {
		t.Errorf("the token of t1 got %s with %v: %v", thief.Leaf().Subject, thief.Leaf().DNSNames, err)
	}
	var edge certs.Identity
	kubetest.Eventually(t, "enrolling a second edge", func() (err error) {
		edge, _, err = service.EnrolEdge(t.Context(), token, "h2")
		return err
	})
	kubetest.Eventually(t, "rejection of a third use of two", func() error {
		if _, _, err := service.EnrolEdge(t.Context(), token, "h3"); !errors.Is(err, certs.ErrRefused) {
			return fmt.Errorf("got %w", err)
		}
		return nil
	})

	stream, _, err := subscribe(t, at, edge, bundle)
	if err != nil {
		t.Fatal(err)
	}
	node := edge.Leaf().Subject.CommonName
	kubetest.Eventually(t, "revoking the edge", func() error { // retried, because the controller writes the Tunnel too
		one = m.tunnel(t, "t1")
		one.Spec.RevokedEdges = append(one.Spec.RevokedEdges, node)
		return m.Update(t.Context(), one)
	})
	if _, err := stream.Recv(); status.Code(err) != codes.FailedPrecondition {
		t.Errorf("the revoked edge's stream ended with %v", err)
	}
	if _, _, err := service.Renew(t.Context(), edge); !errors.Is(err, enrolclient.ErrNotRenewable) {
		t.Errorf("renewing a revoked edge: %v", err)
	}
	if _, _, err := service.Renew(t.Context(), thief); err != nil {
		t.Errorf("renewing another edge of the same tunnel: %v", err)
	}
}
