package csr_test

import (
	"context"
	"encoding/pem"
	"errors"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	certificatesv1 "k8s.io/api/certificates/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"

	"github.com/fairlead/fairlead/api/v1alpha1"
	"github.com/fairlead/fairlead/pkg/certs"
	"github.com/fairlead/fairlead/pkg/enrol"
	"github.com/fairlead/fairlead/pkg/enrol/csr"
	enrolserver "github.com/fairlead/fairlead/pkg/enrol/server"
	"github.com/fairlead/fairlead/pkg/model"
)

const domain = model.TunnelDomain("tunnels.example.com")

var (
	edge   = model.Subject{Role: model.RoleEdge, Node: "edge-a", ID: strings.Repeat("a", 20)}
	egress = model.Subject{Role: model.RoleEgress, Node: "egress-a", ID: strings.Repeat("b", 20)}
)

// signer is a controller that handles each new CertificateSigningRequest with a function of the test.
type signer struct {
	kubernetes.Interface
	ca   *certs.CA
	seen chan *certificatesv1.CertificateSigningRequest
}

// newSigner starts a signer that runs until the test ends.
func newSigner(
	t *testing.T, answer func(ctx context.Context, s *signer, csr *certificatesv1.CertificateSigningRequest) error,
) *signer {
	t.Helper()
	ca, err := certs.NewCA("test", time.Now(), time.Hour)
	if err != nil {
		t.Fatal(err)
	}
	s := &signer{apiserver(t), ca, make(chan *certificatesv1.CertificateSigningRequest, 16)}
	requests := s.CertificatesV1().CertificateSigningRequests()
	list, err := requests.List(t.Context(), metav1.ListOptions{})
	if err != nil {
		t.Fatal(err)
	}
	changes, err := requests.Watch(t.Context(), metav1.ListOptions{ResourceVersion: list.ResourceVersion})
	if err != nil {
		t.Fatal(err)
	}
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		for event := range changes.ResultChan() {
			csr, ok := event.Object.(*certificatesv1.CertificateSigningRequest)
			if !ok || event.Type != "ADDED" {
				continue
			}
			s.seen <- csr
			if err := answer(context.Background(), s, csr.DeepCopy()); err != nil {
				t.Errorf("answering %s: %v", csr.Name, err)
			}
		}
	}()
	t.Cleanup(func() { changes.Stop(); <-ended })
	return s
}

// sign approves and signs with the profile of the signer name.
func sign(ctx context.Context, s *signer, csr *certificatesv1.CertificateSigningRequest) error {
	if err := condition(ctx, s, csr, certificatesv1.CertificateApproved, ""); err != nil {
		return err
	}
	block, _ := pem.Decode(csr.Spec.Request)
	key, err := certs.ParseCSR(block.Bytes)
	if err != nil {
		return err
	}
	subject := edge
	switch csr.Spec.SignerName {
	case v1alpha1.SignerEgress:
		subject = egress
	case v1alpha1.SignerControl:
		subject = model.ControlSubject()
	case v1alpha1.SignerGateway:
		subject = model.Subject{Role: model.RoleGateway, Node: csr.Annotations[v1alpha1.RequestNodeAnnotation]}
	}
	leaf := certs.Leaf{
		CommonName: subject.Node,
		DNSNames:   domain.DNSNames(subject),
		Server:     true,
		NotBefore:  time.Now(),
		NotAfter:   time.Now().Add(time.Hour),
	}
	if csr.Status.Certificate, err = s.ca.Issue(key, leaf); err != nil {
		return err
	}
	_, err = s.CertificatesV1().CertificateSigningRequests().UpdateStatus(ctx, csr, metav1.UpdateOptions{})
	return err
}

func condition(
	ctx context.Context, s *signer, csr *certificatesv1.CertificateSigningRequest,
	kind certificatesv1.RequestConditionType, message string,
) error {
	csr.Status.Conditions = append(csr.Status.Conditions, certificatesv1.CertificateSigningRequestCondition{
		Type: kind, Status: corev1.ConditionTrue, Reason: "TestReason", Message: message,
	})
	write := s.CertificatesV1().CertificateSigningRequests()
	var err error
	var updated *certificatesv1.CertificateSigningRequest
	if kind == certificatesv1.CertificateFailed {
		updated, err = write.UpdateStatus(ctx, csr, metav1.UpdateOptions{})
	} else {
		updated, err = write.UpdateApproval(ctx, csr.Name, csr, metav1.UpdateOptions{})
	}
	if err == nil {
		*csr = *updated
	}
	return err
}

// newCSR returns a signing request of a new key.
func newCSR(t *testing.T) []byte {
	t.Helper()
	key, err := certs.NewKey()
	if err != nil {
		t.Fatal(err)
	}
	der, err := certs.NewCSR(key)
	if err != nil {
		t.Fatal(err)
	}
	return der
}

func TestIssue(t *testing.T) {
	tunnel := model.Key{Namespace: "prod", Name: "c1"}
	tests := map[string]struct {
		in          enrolserver.IssueRequest
		signer      string
		client      bool
		noServer    bool
		annotations map[string]string
	}{
		"the first leaf of an edge": {
			in:     enrolserver.IssueRequest{Subject: edge, Tunnel: tunnel, TokenHash: enrol.HashToken("x"), Host: "node-1"},
			signer: v1alpha1.SignerEdge, client: true,
			annotations: map[string]string{
				v1alpha1.RequestTunnelAnnotation: "prod/c1", v1alpha1.RequestTunnelIDAnnotation: edge.ID,
				v1alpha1.RequestNodeAnnotation:  "edge-a",
				v1alpha1.RequestTokenAnnotation: enrol.HashToken("x"), v1alpha1.RequestHostAnnotation: "node-1",
			},
		},
		"a further leaf of an edge, without any token": {
			in:     enrolserver.IssueRequest{Subject: edge, Tunnel: tunnel},
			signer: v1alpha1.SignerEdge, client: true,
			annotations: map[string]string{
				v1alpha1.RequestTunnelAnnotation: "prod/c1", v1alpha1.RequestTunnelIDAnnotation: edge.ID,
				v1alpha1.RequestNodeAnnotation: "edge-a",
			},
		},
		"an apiserver's Envoy, which is never a server": {
			in:     enrolserver.IssueRequest{Subject: egress, Tunnel: tunnel, TokenHash: enrol.HashToken("x")},
			signer: v1alpha1.SignerEgress, client: true, noServer: true,
			annotations: map[string]string{
				v1alpha1.RequestTunnelAnnotation: "prod/c1", v1alpha1.RequestTunnelIDAnnotation: egress.ID,
				v1alpha1.RequestNodeAnnotation:  "egress-a",
				v1alpha1.RequestTokenAnnotation: enrol.HashToken("x"),
			},
		},
		"a gateway": {
			in:     enrolserver.IssueRequest{Subject: model.Subject{Role: model.RoleGateway, Node: "gateway-1"}},
			signer: v1alpha1.SignerGateway, client: true,
			annotations: map[string]string{v1alpha1.RequestNodeAnnotation: "gateway-1"},
		},
		"the xds-server": {
			in:          enrolserver.IssueRequest{Subject: model.ControlSubject()},
			signer:      v1alpha1.SignerControl,
			annotations: map[string]string{v1alpha1.RequestNodeAnnotation: "control"},
		},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			s := newSigner(t, sign)
			tc.in.CSR = newCSR(t)
			chain, err := csr.Requests{Client: s}.Issue(t.Context(), tc.in)
			if err != nil {
				t.Fatal(err)
			}
			if block, _ := pem.Decode(chain); block == nil || block.Type != "CERTIFICATE" {
				t.Error("got no certificate")
			}
			made := <-s.seen
			if made.Spec.SignerName != tc.signer ||
				slices.Contains(made.Spec.Usages, certificatesv1.UsageClientAuth) != tc.client ||
				slices.Contains(made.Spec.Usages, certificatesv1.UsageServerAuth) == tc.noServer {
				t.Errorf("asked %s for %v", made.Spec.SignerName, made.Spec.Usages)
			}
			if diff := cmp.Diff(tc.annotations, made.Annotations); diff != "" {
				t.Error(diff)
			}
		})
	}
}

func TestIssueReturnsDenials(t *testing.T) {
	tests := map[string]struct {
		answer func(ctx context.Context, s *signer, csr *certificatesv1.CertificateSigningRequest) error
		want   string
		denied bool
	}{
		"a denial": {
			answer: func(ctx context.Context, s *signer, csr *certificatesv1.CertificateSigningRequest) error {
				return condition(ctx, s, csr, certificatesv1.CertificateDenied, "the token is used up")
			},
			want: "TestReason: the token is used up", denied: true,
		},
		"a failure": {
			answer: func(ctx context.Context, s *signer, csr *certificatesv1.CertificateSigningRequest) error {
				return condition(ctx, s, csr, certificatesv1.CertificateFailed, "the tunnel has ended")
			},
			want: "TestReason: the tunnel has ended", denied: true,
		},
		"a request that is deleted": {
			answer: func(ctx context.Context, s *signer, csr *certificatesv1.CertificateSigningRequest) error {
				return s.CertificatesV1().CertificateSigningRequests().Delete(ctx, csr.Name, metav1.DeleteOptions{})
			},
			want: "it was deleted",
		},
		"a signer that does not answer": {
			answer: func(context.Context, *signer, *certificatesv1.CertificateSigningRequest) error { return nil },
			want:   "waiting for CertificateSigningRequest",
		},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			s := newSigner(t, tc.answer)
			ctx, cancel := context.WithTimeout(t.Context(), 2*time.Second)
			defer cancel()
			chain, err := csr.Requests{Client: s}.Issue(ctx, enrolserver.IssueRequest{Subject: edge, CSR: newCSR(t)})
			if err == nil {
				t.Fatalf("got %d bytes", len(chain))
			}
			if errors.Is(err, enrolserver.ErrDenied) != tc.denied || !strings.Contains(err.Error(), tc.want) {
				t.Errorf("got %q, want %q, denied: %t", err, tc.want, tc.denied)
			}
		})
	}
	if _, err := (csr.Requests{}).Issue(t.Context(),
		enrolserver.IssueRequest{Subject: model.Subject{Role: "other"}}); err == nil {
		t.Error("there is a signer for another role")
	}
}

func TestControlRenewsTheIdentity(t *testing.T) {
	s := newSigner(t, sign)
	bundle := s.ca.CertPEM()
	renew := csr.Control(csr.Requests{Client: s}, func() []byte { return bundle })
	first, trust, err := renew(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if !slices.Equal(trust, bundle) || !slices.Equal(first.Leaf().DNSNames, []string{domain.Control()}) {
		t.Errorf("got a leaf for %v and bundle %q", first.Leaf().DNSNames, trust)
	}
	second, _, err := renew(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if slices.Equal(first.Leaf().RawSubjectPublicKeyInfo, second.Leaf().RawSubjectPublicKeyInfo) {
		t.Error("the key was not changed")
	}
	<-s.seen
	<-s.seen
	bundle = nil
	if _, _, err := renew(t.Context()); err == nil || len(s.seen) > 0 {
		t.Errorf("without a trust bundle: %v, %d requests", err, len(s.seen))
	}
}
