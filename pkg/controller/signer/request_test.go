package signer

import (
	"crypto/rand"
	"crypto/rsa"
	"encoding/pem"
	"errors"
	"strings"
	"testing"
	"time"

	certificatesv1 "k8s.io/api/certificates/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"

	"github.com/fairlead/fairlead/api/v1alpha1"
	"github.com/fairlead/fairlead/pkg/controller/controllertest"
	"github.com/fairlead/fairlead/pkg/enrol"
	"github.com/fairlead/fairlead/pkg/model"
)

func TestReadRequestRejects(t *testing.T) {
	rsaKey, err := rsa.GenerateKey(rand.Reader, 2048)
	if err != nil {
		t.Fatal(err)
	}
	annotate := func(key, value string) func(*certificatesv1.CertificateSigningRequest) {
		return func(r *certificatesv1.CertificateSigningRequest) { r.Annotations[key] = value }
	}
	gateway := func(name string) func(*certificatesv1.CertificateSigningRequest) {
		return func(r *certificatesv1.CertificateSigningRequest) {
			r.Spec.SignerName = v1alpha1.SignerGateway
			r.Annotations[v1alpha1.RequestNodeAnnotation] = name
		}
	}
	tests := map[string]struct {
		change func(*certificatesv1.CertificateSigningRequest)
		want   string
	}{
		"another user": {
			func(r *certificatesv1.CertificateSigningRequest) { r.Spec.Username = "system:admin" }, ReasonWrongUser,
		},
		"no user": {func(r *certificatesv1.CertificateSigningRequest) { r.Spec.Username = "" }, ReasonWrongUser},
		"a request without a waiting caller": {func(r *certificatesv1.CertificateSigningRequest) {
			r.CreationTimestamp = metav1.NewTime(time.Now().Add(-time.Minute))
		}, reasonTooOld},
		"a usage of CAs": {func(r *certificatesv1.CertificateSigningRequest) {
			r.Spec.Usages = append(r.Spec.Usages, certificatesv1.UsageCertSign)
		}, ReasonWrongUsage},
		"an xds-server as a client": {
			func(r *certificatesv1.CertificateSigningRequest) { r.Spec.SignerName = v1alpha1.SignerControl }, ReasonWrongUsage,
		},
		"an apiserver's Envoy as a server": {
			func(r *certificatesv1.CertificateSigningRequest) { r.Spec.SignerName = v1alpha1.SignerEgress }, ReasonWrongUsage,
		},
		"garbage": {
			func(r *certificatesv1.CertificateSigningRequest) { r.Spec.Request = []byte("garbage") }, reasonInvalidRequest,
		},
		"invalid data in PEM": {func(r *certificatesv1.CertificateSigningRequest) {
			r.Spec.Request = pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE REQUEST", Bytes: []byte("garbage")})
		}, reasonInvalidRequest},
		"two requests in one": {func(r *certificatesv1.CertificateSigningRequest) {
			r.Spec.Request = append(r.Spec.Request, r.Spec.Request...)
		}, reasonInvalidRequest},
		"a kind of key that we don't take": {
			func(r *certificatesv1.CertificateSigningRequest) { r.Spec.Request = controllertest.CSRFor(t, rsaKey) },
			reasonInvalidRequest,
		},
		"no tunnel":                     {annotate(v1alpha1.RequestTunnelAnnotation, ""), ReasonInvalidName},
		"a tunnel without a name":       {annotate(v1alpha1.RequestTunnelAnnotation, "prod/"), ReasonInvalidName},
		"a tunnel with two slashes":     {annotate(v1alpha1.RequestTunnelAnnotation, "prod/c1/x"), ReasonInvalidName},
		"no tunnel id":                  {annotate(v1alpha1.RequestTunnelIDAnnotation, ""), ReasonInvalidName},
		"no node":                       {annotate(v1alpha1.RequestNodeAnnotation, ""), ReasonInvalidName},
		"an edge with a gateway's name": {annotate(v1alpha1.RequestNodeAnnotation, "gateway-0"), ReasonInvalidName},
		"a host with a line break":      {annotate(v1alpha1.RequestHostAnnotation, "a\nb"), ReasonInvalidName},
		"a request without end": {func(r *certificatesv1.CertificateSigningRequest) {
			r.Spec.Request = append(r.Spec.Request, make([]byte, maxRequestPEM)...)
		}, reasonInvalidRequest},
		"a host without end": {
			annotate(v1alpha1.RequestHostAnnotation, strings.Repeat("h", 254)), ReasonInvalidName,
		},
		"a gateway with an edge's name": {gateway(controllertest.TestNode), ReasonInvalidName},
		"a gateway without number":      {gateway("gateway"), ReasonInvalidName},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			csr := controllertest.EdgeRequest(t, "prod/c1")
			tc.change(csr)
			_, err := readRequest(controllertest.Config(), csr, time.Now())
			var no *refusal
			if !errors.As(err, &no) || no.reason != tc.want {
				t.Errorf("got %v, want reason %s", err, tc.want)
			}
		})
	}
}

func TestReadRequest(t *testing.T) {
	config := controllertest.Config()
	csr := controllertest.EdgeRequest(t, "prod/c1")
	csr.Spec.ExpirationSeconds = ptr.To[int32](3600)
	q, err := readRequest(config, csr, time.Now())
	if err != nil {
		t.Fatal(err)
	}
	if want := (model.Subject{
		Role: model.RoleEdge, Node: controllertest.TestNode, ID: controllertest.TestID,
	}); q.subject != want || q.tunnel != (model.Key{Namespace: "prod", Name: "c1"}) {
		t.Errorf("subject %+v, tunnel %s", q.subject, q.tunnel)
	}
	if want := csr.CreationTimestamp.Add(time.Hour); !q.notAfter.Equal(want) {
		t.Errorf("ends at %s, want %s as asked for", q.notAfter, want)
	}
	csr.Spec.ExpirationSeconds = ptr.To[int32](1e6)
	if q, err = readRequest(config, csr, time.Now()); err != nil ||
		!q.notAfter.Equal(csr.CreationTimestamp.Add(config.LeafLifetime)) {
		t.Errorf("ends at %s, %v; want no more than the lifetime of leaves", q.notAfter, err)
	}
}

func TestATokenIsCountedOncePerEdge(t *testing.T) {
	at := time.Now()
	status := &v1alpha1.TunnelStatus{
		Tokens: []v1alpha1.TokenStatus{{
			SHA256: enrol.HashToken(controllertest.TestToken), ExpiresAt: metav1.NewTime(at.Add(time.Hour)), MaxUses: 1,
		}},
	}
	q := request{
		subject:   model.Subject{Role: model.RoleEdge, Node: controllertest.TestNode, ID: controllertest.TestID},
		tokenHash: enrol.HashToken(controllertest.TestToken), notAfter: at.Add(time.Hour),
	}
	for range 2 { // the second time after a crash between counting and signing
		if no := q.enter(status, nil, at); no != nil {
			t.Fatal(no)
		}
	}
	if status.Tokens[0].Uses != 1 || len(status.Edges) != 1 {
		t.Errorf("uses %d, edges %d", status.Tokens[0].Uses, len(status.Edges))
	}
	q.subject.Node = "edge-other"
	if no := q.enter(status, nil, at); no == nil || no.reason != ReasonTokenUsedUp {
		t.Errorf("a second edge got %v", no)
	}
}
