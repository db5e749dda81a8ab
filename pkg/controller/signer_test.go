package controller

import (
	"context"
	"crypto/x509"
	"encoding/pem"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	certificatesv1 "k8s.io/api/certificates/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/fairlead/fairlead/api/v1alpha1"
	"github.com/fairlead/fairlead/internal/kubetest"
	"github.com/fairlead/fairlead/pkg/certs"
	"github.com/fairlead/fairlead/pkg/controller/ca"
	"github.com/fairlead/fairlead/pkg/controller/controllertest"
	"github.com/fairlead/fairlead/pkg/controller/objects"
	"github.com/fairlead/fairlead/pkg/controller/signer"
	"github.com/fairlead/fairlead/pkg/enrol"
	csrs "github.com/fairlead/fairlead/pkg/enrol/csr"
	enrolserver "github.com/fairlead/fairlead/pkg/enrol/server"
	"github.com/fairlead/fairlead/pkg/model"
)

// pausedTunnel creates a Tunnel that holds its id and has one token with three uses. The controller writes only its
// status.
func pausedTunnel(t *testing.T, m *management) *v1alpha1.Tunnel {
	t.Helper()
	tunnel := claims(t, m, controllertest.TestID)
	setTokens(t, m, tunnel, usableToken())
	return tunnel
}

// claims creates a Tunnel of a paused Cluster that claims an id, and the bootstrap Secret without which its tokens end.
func claims(t *testing.T, m *management, id string) *v1alpha1.Tunnel {
	t.Helper()
	cluster := kubetest.Cluster(kubetest.NewNamespace(t, m), "c1")
	cluster.Spec.Paused = ptr.To(true)
	controllertest.Create(t, m, cluster)
	tunnel := controllertest.TunnelNamed(cluster)
	tunnel.Spec.ID = id
	controllertest.Create(t, m, controllertest.SecretNamed(tunnel.Namespace, tunnel.Name+v1alpha1.BootstrapSecretSuffix))
	objects.CompleteTunnel(tunnel, cluster)
	controllertest.Create(t, m, tunnel)
	return tunnel
}

// usableToken returns the record of controllertest.TestToken, which has three uses.
func usableToken() v1alpha1.TokenStatus {
	return v1alpha1.TokenStatus{
		SHA256: enrol.HashToken(controllertest.TestToken), ExpiresAt: metav1.NewTime(time.Now().Add(time.Hour)), MaxUses: 3,
	}
}

func setTokens(t *testing.T, m *management, tunnel *v1alpha1.Tunnel, tokens ...v1alpha1.TokenStatus) {
	t.Helper()
	controllertest.Eventually(t, func() error {
		if err := m.Get(t.Context(), client.ObjectKeyFromObject(tunnel), tunnel); err != nil {
			return err
		}
		tunnel.Status.ID, tunnel.Status.Tokens = tunnel.Spec.ID, tokens
		tunnel.Status.Served = &v1alpha1.ServedStatus{ClusterUID: metav1.GetControllerOf(tunnel).UID} // so it is decided
		return m.Status().Update(t.Context(), tunnel)
	})
}

// answered sends a request as the xds-server and waits for the answer.
func answered(
	t *testing.T, m *management, csr *certificatesv1.CertificateSigningRequest,
) *certificatesv1.CertificateSigningRequest {
	t.Helper()
	if err := m.xdsServer.Create(t.Context(), csr); err != nil {
		t.Fatal(err)
	}
	controllertest.Eventually(t, func() error {
		if err := m.Get(t.Context(), client.ObjectKeyFromObject(csr), csr); err != nil {
			return err
		}
		if len(csr.Status.Certificate) == 0 && denialOf(csr) == "" {
			return fmt.Errorf("%s has no answer", csr.Name)
		}
		return nil
	})
	return csr
}

// denialOf returns the reason for which a request was denied, or an empty string.
func denialOf(csr *certificatesv1.CertificateSigningRequest) string {
	for _, c := range csr.Status.Conditions {
		if c.Type == certificatesv1.CertificateDenied && c.Status == corev1.ConditionTrue {
			return c.Reason
		}
	}
	return ""
}

// checkLeaf verifies a leaf with the published trust bundle.
func checkLeaf(t *testing.T, m *management, chain []byte, want model.Subject, usages ...x509.ExtKeyUsage) {
	t.Helper()
	block, _ := pem.Decode(chain)
	if block == nil {
		t.Fatal("there is no certificate")
	}
	leaf, err := x509.ParseCertificate(block.Bytes)
	if err != nil {
		t.Fatal(err)
	}
	bundle, err := ca.ReadBundle(t.Context(), m, controllertest.Config().Namespace)
	if err != nil {
		t.Fatal(err)
	}
	roots := x509.NewCertPool()
	roots.AppendCertsFromPEM(bundle)
	if _, err := leaf.Verify(x509.VerifyOptions{
		Roots: roots, KeyUsages: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth},
	}); err != nil {
		t.Error(err)
	}
	got, err := controllertest.Config().Domain.ParseSubject(leaf.Subject.CommonName, leaf.DNSNames)
	if err != nil || got != want || len(leaf.Subject.Organization) != 0 {
		t.Errorf("subject %+v of %s, %v; want %+v", got, leaf.Subject, err, want)
	}
	if !slices.Equal(leaf.ExtKeyUsage, usages) || leaf.IsCA {
		t.Errorf("usages %v, CA %v", leaf.ExtKeyUsage, leaf.IsCA)
	}
	if life := time.Until(leaf.NotAfter); life > 24*time.Hour || life < 23*time.Hour {
		t.Errorf("the leaf lives for %s", life)
	}
}

func TestAnEdgeGetsTheNamesOfItsTunnelAndNoOthers(t *testing.T) {
	m := apiserver(t)
	tunnel := pausedTunnel(t, m)
	csr := answered(t, m, controllertest.EdgeRequest(t, tunnel.Namespace+"/c1")) // its CSR asks to be a gateway
	checkLeaf(
		t, m, csr.Status.Certificate,
		model.Subject{Role: model.RoleEdge, Node: controllertest.TestNode, ID: controllertest.TestID},
		x509.ExtKeyUsageServerAuth, x509.ExtKeyUsageClientAuth,
	)
	status := controllertest.Read(t, m, tunnel).Status
	if len(status.Edges) != 1 || status.Edges[0].NodeID != "CN="+controllertest.TestNode ||
		status.Edges[0].Host != "machine-1" {
		t.Errorf("edges %+v", status.Edges)
	}
	if status.Tokens[0].Uses != 1 || status.Tokens[0].LastUsedAt == nil {
		t.Errorf("token %+v", status.Tokens[0])
	}
	renewal := controllertest.EdgeRequest(t, tunnel.Namespace+"/c1")
	delete(renewal.Annotations, v1alpha1.RequestTokenAnnotation)
	delete(renewal.Annotations, v1alpha1.RequestHostAnnotation)
	renewal = answered(t, m, renewal)
	checkLeaf(
		t, m, renewal.Status.Certificate,
		model.Subject{Role: model.RoleEdge, Node: controllertest.TestNode, ID: controllertest.TestID},
		x509.ExtKeyUsageServerAuth, x509.ExtKeyUsageClientAuth,
	)
	status = controllertest.Read(t, m, tunnel).Status
	if len(status.Edges) != 1 || status.Edges[0].Host != "machine-1" || status.Tokens[0].Uses != 1 {
		t.Errorf("a renewal has changed more than the end of the certificate: %+v", status)
	}
}

func TestGatewayAndControlLeaves(t *testing.T) {
	m := apiserver(t)
	gateway := controllertest.EdgeRequest(t, "")
	gateway.Spec.SignerName = v1alpha1.SignerGateway
	gateway.Annotations = map[string]string{v1alpha1.RequestNodeAnnotation: "gateway-3"}
	gateway = answered(t, m, gateway)
	checkLeaf(
		t, m, gateway.Status.Certificate, model.Subject{Role: model.RoleGateway, Node: "gateway-3"},
		x509.ExtKeyUsageServerAuth, x509.ExtKeyUsageClientAuth,
	)

	control := controllertest.EdgeRequest(t, "")
	control.Spec.SignerName = v1alpha1.SignerControl
	control.Spec.Usages = []certificatesv1.KeyUsage{certificatesv1.UsageDigitalSignature, certificatesv1.UsageServerAuth}
	control.Annotations = nil
	control = answered(t, m, control)
	checkLeaf(t, m, control.Status.Certificate, model.ControlSubject(), x509.ExtKeyUsageServerAuth)
}

// TestATokenIsNeverUsedBeyondItsLimit enrols edges concurrently, with the xds-server's own half of signing.
func TestATokenIsNeverUsedBeyondItsLimit(t *testing.T) {
	m := apiserver(t)
	tunnel := pausedTunnel(t, m)
	clientset, err := kubernetes.NewForConfig(m.xdsServerConfig)
	if err != nil {
		t.Fatal(err)
	}
	const edges = 8
	results := make([]error, edges)
	var wg sync.WaitGroup
	for i := range edges {
		wg.Go(func() { results[i] = enrolEdge(t.Context(), clientset, tunnel) })
	}
	wg.Wait()
	issued := 0
	for _, err := range results {
		switch {
		case err == nil:
			issued++
		case !strings.Contains(err.Error(), signer.ReasonTokenUsedUp):
			t.Error(err)
		}
	}
	status := controllertest.Read(t, m, tunnel).Status
	if issued != 3 || status.Tokens[0].Uses != 3 || len(status.Edges) != 3 {
		t.Errorf("%d leaves, %d uses, %d edges; want 3 of each", issued, status.Tokens[0].Uses, len(status.Edges))
	}
}

// TestARepeatedEnrolmentIsCountedOnce: the first answer came too late, and the xds-server gives the same request the
// same node name.
func TestARepeatedEnrolmentIsCountedOnce(t *testing.T) {
	m := apiserver(t)
	tunnel := pausedTunnel(t, m)
	clientset, err := kubernetes.NewForConfig(kubetest.Impersonate(server.Config(t), controllertest.XDSServerUser))
	if err != nil {
		t.Fatal(err)
	}
	key, err := certs.NewKey()
	if err != nil {
		t.Fatal(err)
	}
	csr, err := certs.NewCSR(key)
	if err != nil {
		t.Fatal(err)
	}
	hash := enrol.HashToken(controllertest.TestToken)
	for range 3 {
		_, err = csrs.Requests{Client: clientset}.Issue(t.Context(), enrolserver.IssueRequest{
			Subject: model.Subject{Role: model.RoleEdge, Node: model.NodeNameFor(hash, csr), ID: tunnel.Spec.ID},
			Tunnel:  model.Key{Namespace: tunnel.Namespace, Name: tunnel.Name}, CSR: csr, TokenHash: hash,
		})
		if err != nil {
			t.Fatal(err)
		}
	}
	if status := controllertest.Read(t, m, tunnel).Status; status.Tokens[0].Uses != 1 || len(status.Edges) != 1 {
		t.Errorf("%d uses, %d edges; want one of each", status.Tokens[0].Uses, len(status.Edges))
	}
}

func enrolEdge(ctx context.Context, clientset kubernetes.Interface, tunnel *v1alpha1.Tunnel) error {
	key, err := certs.NewKey()
	if err != nil {
		return err
	}
	csr, err := certs.NewCSR(key)
	if err != nil {
		return err
	}
	_, err = csrs.Requests{Client: clientset}.Issue(ctx, enrolserver.IssueRequest{
		Subject: model.Subject{Role: model.RoleEdge, Node: model.NewNodeName(), ID: tunnel.Spec.ID},
		Tunnel:  model.Key{Namespace: tunnel.Namespace, Name: tunnel.Name}, CSR: csr,
		TokenHash: enrol.HashToken(controllertest.TestToken),
	})
	return err
}
