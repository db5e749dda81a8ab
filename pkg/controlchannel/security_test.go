package controlchannel_test

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/rsa"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/asn1"
	"net"
	"net/url"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/fairlead/fairlead/pkg/certs"
	"github.com/fairlead/fairlead/pkg/controlchannel"
	enrolv1 "github.com/fairlead/fairlead/pkg/enrol/v1"
	"github.com/fairlead/fairlead/pkg/model"
)

// subjectOf returns the subject of a certificate and its leaf.
func subjectOf(
	t *testing.T, certificate *enrolv1.Certificate, key *ecdsa.PrivateKey,
) (model.Subject, *x509.Certificate) {
	t.Helper()
	identity, err := certs.NewIdentity(certificate.GetChain(), key)
	if err != nil {
		t.Fatal(err)
	}
	leaf := identity.Leaf()
	subject, err := domain.ParseSubject(leaf.Subject.CommonName, leaf.DNSNames)
	if err != nil {
		t.Fatal(err)
	}
	return subject, leaf
}

// greedyCSR returns a request for everything that an X.509 request can contain.
func greedyCSR(t *testing.T, key *ecdsa.PrivateKey) []byte {
	t.Helper()
	basic, err := asn1.Marshal(struct{ CA bool }{true})
	if err != nil {
		t.Fatal(err)
	}
	der, err := x509.CreateCertificateRequest(rand.Reader, &x509.CertificateRequest{
		Subject: pkix.Name{CommonName: "gateway-0", Organization: []string{"system:masters"}},
		DNSNames: []string{
			domain.Gateway(),
			domain.GatewayReplica("gateway-0"),
			domain.Control(),
			domain.TunnelID(c2.ID),
			"*." + string(domain),
		},
		IPAddresses:    []net.IP{net.IPv4(10, 0, 0, 1)},
		EmailAddresses: []string{"root@" + string(domain)},
		URIs:           []*url.URL{{Scheme: "spiffe", Host: string(domain), Path: "/gateway"}},
		ExtraExtensions: []pkix.Extension{
			{Id: asn1.ObjectIdentifier{2, 5, 29, 19}, Critical: true, Value: basic}, // it requests to be a CA
			{Id: asn1.ObjectIdentifier{2, 5, 29, 15}, Critical: true, Value: []byte{3, 2, 1, 6}},
		},
	}, key)
	if err != nil {
		t.Fatal(err)
	}
	return der
}

func TestACertificateHasTheNamesOfItsTokenDespiteItsCSR(t *testing.T) {
	b := newTestbed(t, controlchannel.Bounds{})
	key, err := certs.NewKey()
	if err != nil {
		t.Fatal(err)
	}
	token := b.newToken(t, c1, 2)
	for name, der := range map[string][]byte{"a modest one": csrOf(t, key), "a greedy one": greedyCSR(t, key)} {
		t.Run(name, func(t *testing.T) {
			service := enrolv1.NewEnrolmentClient(b.dial(t, nil, "203.0.113.1:1"))
			got, err := service.EnrolEdge(t.Context(), &enrolv1.EnrolEdgeRequest{Token: token, Csr: der, Host: "gateway-0"})
			if err != nil {
				t.Fatal(err)
			}
			checkEdge(t, got, key, "")
			subject, _ := subjectOf(t, got, key)
			identity, err := certs.NewIdentity(got.GetChain(), key)
			if err != nil {
				t.Fatal(err)
			}
			again, err := enrolv1.NewEnrolmentClient(b.dial(t, &identity, "203.0.113.1:1")).
				Renew(t.Context(), &enrolv1.RenewRequest{Csr: greedyCSR(t, key)})
			if err != nil {
				t.Fatal(err)
			}
			checkEdge(t, again, key, subject.Node)
		})
	}
}

func csrOf(t *testing.T, key *ecdsa.PrivateKey) []byte {
	t.Helper()
	der, err := certs.NewCSR(key)
	if err != nil {
		t.Fatal(err)
	}
	return der
}

// checkEdge checks that a certificate is for an edge of c1 and nothing else; if node is empty, any node name but a
// gateway's.
func checkEdge(t *testing.T, certificate *enrolv1.Certificate, key *ecdsa.PrivateKey, node string) {
	t.Helper()
	subject, leaf := subjectOf(t, certificate, key)
	if subject.Role != model.RoleEdge || subject.ID != c1.ID || (node != "" && subject.Node != node) {
		t.Errorf("got %+v", subject)
	}
	if leaf.Subject.String() != "CN="+subject.Node || len(leaf.DNSNames) != 1 ||
		len(leaf.IPAddresses)+len(leaf.URIs)+len(leaf.EmailAddresses) > 0 {
		t.Errorf("got %s, %v, %v, %v, %v", leaf.Subject, leaf.DNSNames, leaf.IPAddresses, leaf.URIs, leaf.EmailAddresses)
	}
	if leaf.IsCA || leaf.KeyUsage != x509.KeyUsageDigitalSignature || len(leaf.UnhandledCriticalExtensions) > 0 {
		t.Errorf("it may be used for %v, as a CA: %t", leaf.KeyUsage, leaf.IsCA)
	}
}

func TestATokenIsForOneTunnelAndALimitedNumberOfUses(t *testing.T) {
	b := newTestbed(t, controlchannel.Bounds{})
	token := b.newToken(t, c1, 3)
	var good, used atomic.Int32
	var all sync.WaitGroup
	for range 12 { // concurrently: the last use is not counted twice
		service, request := enrolv1.NewEnrolmentClient(
			b.dial(t, nil, ""),
		), &enrolv1.EnrolEdgeRequest{
			Token: token,
			Csr:   csr(t),
		}
		all.Go(func() {
			switch _, err := service.EnrolEdge(t.Context(), request); status.Code(err) {
			case codes.OK:
				good.Add(1)
			case codes.PermissionDenied, codes.Unauthenticated:
				used.Add(1)
			default:
				t.Error(err)
			}
		})
	}
	all.Wait()
	if good.Load() != 3 || used.Load() != 9 {
		t.Errorf("%d enrolled by a token with 3 uses, %d were refused", good.Load(), used.Load())
	}
	_, err := enrolv1.NewEnrolmentClient(b.dial(t, nil, "")).
		EnrolEdge(t.Context(), &enrolv1.EnrolEdgeRequest{Token: token, Csr: csr(t)})
	if status.Code(err) != codes.Unauthenticated || !strings.Contains(err.Error(), "used up") {
		t.Errorf("replayed after its last use: %v", err)
	}
	edgeToken := b.newToken(t, c2, 1)
	_, err = enrolv1.NewEnrolmentClient(b.dial(t, nil, "")).EnrolGateway(t.Context(), &enrolv1.EnrolGatewayRequest{
		Credential: &enrolv1.EnrolGatewayRequest_Token{Token: edgeToken}, Csr: csr(t), Gateway: "gateway-0",
	})
	if status.Code(err) != codes.Unauthenticated {
		t.Errorf("a gateway's certificate by an edge's token: %v", err)
	}
}

func TestKeysThatAreRejected(t *testing.T) {
	b := newTestbed(t, controlchannel.Bounds{})
	service := enrolv1.NewEnrolmentClient(b.dial(t, nil, ""))
	weak, err := rsa.GenerateKey(rand.Reader, 2048)
	if err != nil {
		t.Fatal(err)
	}
	other, err := ecdsa.GenerateKey(elliptic.P384(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	good := csr(t)
	stolen := append([]byte{}, good...)
	stolen[len(stolen)-1] ^= 1 // no proof of possession of the key
	tests := map[string][]byte{
		"RSA":                request(t, weak),
		"another curve":      request(t, other),
		"no proof":           stolen,
		"more after its end": append(append([]byte{}, good...), 0),
		"nothing":            nil,
		"9 KiB":              make([]byte, 9<<10),
	}
	token := b.newToken(t, c1, 1)
	for name, der := range tests {
		if _, err := service.EnrolEdge(t.Context(), &enrolv1.EnrolEdgeRequest{Token: token, Csr: der}); status.Code(
			err,
		) != codes.InvalidArgument {
			t.Errorf("%s: got %v", name, err)
		}
	}
	if _, err := service.EnrolEdge(t.Context(), &enrolv1.EnrolEdgeRequest{Token: token, Csr: good}); err != nil {
		t.Errorf("after all of these the token's only use is gone: %v", err)
	}
}

func request(t *testing.T, key any) []byte {
	t.Helper()
	der, err := x509.CreateCertificateRequest(rand.Reader, &x509.CertificateRequest{}, key)
	if err != nil {
		t.Fatal(err)
	}
	return der
}

func TestAnEdgesCertificateOpensNothingOfOthers(t *testing.T) {
	b := newTestbed(t, controlchannel.Bounds{})
	mine := b.dial(t, ptr(b.identity(t, edge, time.Hour)), "203.0.113.1:1")
	for name, claims := range map[string]model.Subject{
		"another edge's configuration of the same tunnel": {Role: model.RoleEdge, Node: "edge-b", ID: c1.ID},
		"the configuration of another tunnel's edge":      {Role: model.RoleEdge, Node: "edge-z", ID: c2.ID},
		"a gateway's configuration":                       gateway,
	} {
		if err := fetch(t, mine, claims); status.Code(err) != codes.PermissionDenied {
			t.Errorf("%s: %v", name, err)
		}
	}
	if err := fetch(t, mine, edge); err != nil {
		t.Errorf("its own configuration: %v", err)
	}
}

// TestEndedIdentitiesAreRejected calls every service: an ended identity is rejected everywhere in the same way,
// permanently or temporarily.
func TestEndedIdentitiesAreRejected(t *testing.T) {
	revoked := c2
	revoked.Revoked = []string{"edge-r"}
	tests := map[string]struct {
		is   model.Subject
		left time.Duration
		want codes.Code
	}{
		"a revoked edge": {
			is:   model.Subject{Role: model.RoleEdge, Node: "edge-r", ID: c2.ID},
			left: time.Hour,
			want: codes.FailedPrecondition,
		},
		"an edge of a tunnel on record as ended": {
			is:   model.Subject{Role: model.RoleEdge, Node: "edge-e", ID: workload("gone").ID},
			left: time.Hour,
			want: codes.FailedPrecondition,
		},
		"an edge of a tunnel that is not known": {
			is:   model.Subject{Role: model.RoleEdge, Node: "edge-u", ID: workload("new").ID},
			left: time.Hour,
			want: codes.Unavailable,
		},
		"an edge whose leaf expired beyond the grace time": {
			is:   edge,
			left: -grace - time.Minute,
			want: codes.FailedPrecondition,
		},
		"a gateway whose leaf expired beyond the grace time": {
			is:   gateway,
			left: -grace - time.Minute,
			want: codes.FailedPrecondition,
		},
	}
	b := newTestbed(t, controlchannel.Bounds{})
	b.ads.Publish(c2.Key, &revoked)
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			conn := b.dial(t, ptr(b.identity(t, tc.is, tc.left)), "")
			if err := fetch(t, conn, tc.is); status.Code(err) != tc.want {
				t.Errorf("ADS: %v", err)
			}
			if _, err := enrolv1.NewEnrolmentClient(conn).Renew(t.Context(), &enrolv1.RenewRequest{Csr: csr(t)}); status.Code(
				err,
			) != tc.want {
				t.Errorf("Renew: %v", err)
			}
			if err := send(t.Context(), conn, reportEdge, nil); status.Code(err) != tc.want {
				t.Errorf("report: %v", err)
			}
		})
	}
	slept := b.dial(t, ptr(b.identity(t, edge, -grace+time.Hour)), "203.0.113.2:2")
	if _, err := enrolv1.NewEnrolmentClient(slept).Renew(t.Context(), &enrolv1.RenewRequest{Csr: csr(t)}); err != nil {
		t.Errorf("renewing within the grace time: %v", err)
	}
	if err := fetch(t, slept, edge); status.Code(err) != codes.Unauthenticated {
		t.Errorf("a configuration by a leaf that has expired: %v", err)
	}
}
