package signer

import (
	"encoding/pem"
	"errors"
	"strings"
	"testing"
	"time"

	certificatesv1 "k8s.io/api/certificates/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/fairlead/fairlead/api/v1alpha1"
	"github.com/fairlead/fairlead/pkg/certs"
	"github.com/fairlead/fairlead/pkg/controller/controllertest"
)

// FuzzSigningRequest feeds CertificateSigningRequests to the controller. The names in an accepted request match a
// profile , and can be parsed again from the leaf.
func FuzzSigningRequest(f *testing.F) {
	key, err := certs.NewKey()
	if err != nil {
		f.Fatal(err)
	}
	der, err := certs.NewCSR(key)
	if err != nil {
		f.Fatal(err)
	}
	signers := []string{
		v1alpha1.SignerEdge, v1alpha1.SignerGateway, v1alpha1.SignerControl, v1alpha1.SignerEgress,
		"example.com/other",
	}
	request := pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE REQUEST", Bytes: der})
	for signer := range signers {
		f.Add(uint8(signer), request, controllertest.TestNode, controllertest.TestID, "prod/c1", "host", int32(600))
	}
	f.Add(uint8(0), request, "gateway-0", controllertest.TestID, "prod/c1/x", "a\nb", int32(-1))
	f.Add(uint8(1), append(append([]byte{}, request...), request...), "gateway-0", "", "", "", int32(1<<30))
	f.Fuzz(func(t *testing.T, signer uint8, request []byte, node, id, tunnel, host string, seconds int32) {
		now := time.Now()
		csr := &certificatesv1.CertificateSigningRequest{
			ObjectMeta: metav1.ObjectMeta{CreationTimestamp: metav1.NewTime(now), Annotations: map[string]string{
				v1alpha1.RequestTunnelAnnotation: tunnel, v1alpha1.RequestTunnelIDAnnotation: id,
				v1alpha1.RequestNodeAnnotation: node, v1alpha1.RequestHostAnnotation: host,
			}},
			Spec: certificatesv1.CertificateSigningRequestSpec{
				SignerName: signers[int(signer)%len(signers)], Username: controllertest.XDSServerUser, Request: request,
				ExpirationSeconds: &seconds,
				Usages:            []certificatesv1.KeyUsage{certificatesv1.UsageDigitalSignature},
			},
		}
		if !open(csr) {
			return
		}
		got, err := readRequest(controllertest.Config(), csr, now)
		if err != nil {
			var no *refusal
			if !errors.As(err, &no) {
				t.Errorf("it is refused for no reason: %v", err)
			}
			return
		}
		domain := controllertest.Config().Domain
		subject, err := domain.ParseSubject(got.subject.Node, domain.DNSNames(got.subject))
		if err != nil || subject != got.subject {
			t.Errorf("%+v is read as %+v, %v", got.subject, subject, err)
		}
		if subject.Role.Enrols() &&
			(strings.Contains(got.tunnel.Name, "/") || strings.ContainsAny(got.host, "\n\r\x00")) {
			t.Errorf("for %+v on %q", got.tunnel, got.host)
		}
		if got.notAfter.After(now.Add(controllertest.Config().LeafLifetime)) {
			t.Errorf("it is good until %s", got.notAfter)
		}
	})
}
