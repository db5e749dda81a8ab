package signer

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"errors"
	"testing"
	"time"

	jose "github.com/go-jose/go-jose/v4"
	certificatesv1 "k8s.io/api/certificates/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"

	"github.com/fairlead/fairlead/api/v1alpha1"
	"github.com/fairlead/fairlead/internal/jwttest"
	"github.com/fairlead/fairlead/pkg/controller/controllertest"
	"github.com/fairlead/fairlead/pkg/controller/reconciler"
	"github.com/fairlead/fairlead/pkg/enrol"
	"github.com/fairlead/fairlead/pkg/enrol/podtoken"
	"github.com/fairlead/fairlead/pkg/model"
)

const podUID = "6b8f4f0a-1f1e-4d0c-9d3a-0c1d2e3f4a5b"

// pods is a Tunnel that lets Pods enrol, and the issuer of their tokens.
type pods struct {
	cluster *clusterv1.Cluster
	tunnel  *v1alpha1.Tunnel
	key     *ecdsa.PrivateKey
}

func newPods(t *testing.T) *pods {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	der, err := x509.MarshalPKIXPublicKey(&key.PublicKey)
	if err != nil {
		t.Fatal(err)
	}
	cluster, tunnel := controllertest.Served("c1", 1000)
	tunnel.Spec.EdgeServiceAccount = &v1alpha1.EdgeServiceAccount{Namespace: "fairlead-edge", Name: "edge"}
	tunnel.Status.ID = tunnel.Spec.ID
	tunnel.Status.Served = &v1alpha1.ServedStatus{ClusterUID: cluster.UID}
	tunnel.Status.ServiceAccountIssuer = &v1alpha1.ServiceAccountIssuerStatus{
		ClusterUID: cluster.UID, Issuer: "https://issuer", Keys: []v1alpha1.ServiceAccountKey{{ID: "k", PublicKey: der}},
	}
	return &pods{cluster: cluster, tunnel: tunnel, key: key}
}

// token returns a token of a Pod that was issued at a time.
func (p *pods) token(t *testing.T, uid string, at time.Time) string {
	t.Helper()
	return jwttest.Sign(t, jose.ES256, p.key, "k", map[string]any{
		"iss": "https://issuer", "sub": "system:serviceaccount:fairlead-edge:edge",
		"aud": podtoken.Audience(p.tunnel.Spec.ID), "iat": at.Unix(), "nbf": at.Unix(), "exp": at.Unix() + 600,
		"kubernetes.io": map[string]any{
			"namespace": "fairlead-edge", "serviceaccount": map[string]string{"name": "edge"},
			"pod": map[string]string{"name": "edge-0", "uid": uid},
		},
	})
}

// request returns what the xds-server writes for a Pod with a new key.
func (p *pods) request(t *testing.T, token string) *certificatesv1.CertificateSigningRequest {
	t.Helper()
	csr := controllertest.EdgeRequest(t, "prod/c1")
	delete(csr.Annotations, v1alpha1.RequestTokenAnnotation)
	csr.Annotations[v1alpha1.RequestTunnelIDAnnotation] = p.tunnel.Spec.ID
	csr.Annotations[v1alpha1.RequestNodeAnnotation] = model.NodeNameForPod(p.tunnel.Spec.ID, podUID)
	csr.Annotations[v1alpha1.RequestPodTokenAnnotation] = token
	return csr
}

// admit returns the reason of a refusal, or "" if the request is admitted.
func (p *pods) admit(t *testing.T, csr *certificatesv1.CertificateSigningRequest) string {
	t.Helper()
	api := controllertest.FakeAPI(t, p.cluster.DeepCopy(), p.tunnel.DeepCopy())
	r := &Reconciler{Deps: reconciler.Deps{Config: controllertest.Config(), Client: api, Live: api, Now: time.Now}}
	wanted, err := readRequest(r.Config, csr, time.Now())
	if err == nil {
		err = r.admitEdge(t.Context(), &wanted)
	}
	var no *refusal
	if err != nil && !errors.As(err, &no) {
		t.Fatal(err)
	}
	p.tunnel = controllertest.Read(t, api, p.tunnel)
	if no == nil {
		return ""
	}
	return no.reason
}

func TestAPodEnrols(t *testing.T) {
	p := newPods(t)
	issued := time.Now().Truncate(time.Second)
	csr := p.request(t, p.token(t, podUID, issued))
	for range 2 { // the second time because the answer was lost
		if no := p.admit(t, csr); no != "" {
			t.Fatalf("refused: %s", no)
		}
	}
	edges := p.tunnel.Status.Edges
	if len(edges) != 1 || edges[0].Pod == nil || edges[0].Pod.Name != "edge-0" || edges[0].Pod.UID != podUID ||
		!edges[0].Pod.TokenIssuedAt.Time.Equal(issued) || edges[0].TokenSHA256 != "" {
		t.Errorf("recorded %+v", edges)
	}
}

// TestATokenOfAPodEnrolsOneKey: a CertificateSigningRequest contains the token, so a reader of these objects must not
// be able to use it. A Pod that lost its key enrols again with its next token, as the same edge.
func TestATokenOfAPodEnrolsOneKey(t *testing.T) {
	p := newPods(t)
	first := time.Now().Add(-5 * time.Minute)
	if no := p.admit(t, p.request(t, p.token(t, podUID, first))); no != "" {
		t.Fatalf("refused: %s", no)
	}
	for name, token := range map[string]string{
		"the same token": p.token(t, podUID, first), "an earlier token": p.token(t, podUID, first.Add(-time.Minute)),
	} {
		if no := p.admit(t, p.request(t, token)); no != ReasonTokenUsedUp {
			t.Errorf("%s for another key: got %q", name, no)
		}
	}
	if no := p.admit(t, p.request(t, p.token(t, podUID, first.Add(time.Minute)))); no != "" {
		t.Errorf("the next token: got %q", no)
	}
	if len(p.tunnel.Status.Edges) != 1 {
		t.Errorf("one Pod is %d edges", len(p.tunnel.Status.Edges))
	}
}

// TestTheControllerVerifiesTokensOfPodsItself: an xds-server under an attacker's control can write any
// CertificateSigningRequest.
func TestTheControllerVerifiesTokensOfPodsItself(t *testing.T) {
	otherPod := "00000000-1f1e-4d0c-9d3a-0c1d2e3f4a5b"
	tests := map[string]struct {
		change func(*pods, *certificatesv1.CertificateSigningRequest)
		want   string
	}{
		"no token at all, but its annotation": {func(_ *pods, r *certificatesv1.CertificateSigningRequest) {
			r.Annotations[v1alpha1.RequestPodTokenAnnotation] = "a.b.c"
		}, ReasonInvalidPodToken},
		"the node name of another Pod": {func(p *pods, r *certificatesv1.CertificateSigningRequest) {
			r.Annotations[v1alpha1.RequestNodeAnnotation] = model.NodeNameForPod(p.tunnel.Spec.ID, otherPod)
		}, ReasonInvalidPodToken},
		"a node name of its choice": {func(_ *pods, r *certificatesv1.CertificateSigningRequest) {
			r.Annotations[v1alpha1.RequestNodeAnnotation] = controllertest.TestNode
		}, ReasonInvalidPodToken},
		"two credentials": {func(_ *pods, r *certificatesv1.CertificateSigningRequest) {
			r.Annotations[v1alpha1.RequestTokenAnnotation] = enrol.HashToken(controllertest.TestToken)
		}, ReasonInvalidPodToken},
		"keys of another issuer": {func(p *pods, _ *certificatesv1.CertificateSigningRequest) {
			p.tunnel.Status.ServiceAccountIssuer.Keys = newPods(t).tunnel.Status.ServiceAccountIssuer.Keys
		}, ReasonInvalidPodToken},
		"another ServiceAccount in the spec": {func(p *pods, _ *certificatesv1.CertificateSigningRequest) {
			p.tunnel.Spec.EdgeServiceAccount.Name = "other"
		}, ReasonInvalidPodToken},
		"a Tunnel that lets no Pods enrol": {func(p *pods, _ *certificatesv1.CertificateSigningRequest) {
			p.tunnel.Spec.EdgeServiceAccount = nil
		}, ReasonPodsNotAccepted},
		"a Tunnel without keys": {func(p *pods, _ *certificatesv1.CertificateSigningRequest) {
			p.tunnel.Status.ServiceAccountIssuer.Keys = nil
		}, ReasonPodsNotAccepted},
		"keys of an earlier Cluster of the same name": {func(p *pods, _ *certificatesv1.CertificateSigningRequest) {
			p.tunnel.Status.ServiceAccountIssuer.ClusterUID = "earlier"
		}, ReasonPodsNotAccepted},
		"a grant for an earlier Cluster": {func(p *pods, _ *certificatesv1.CertificateSigningRequest) {
			p.tunnel.Status.Served.ClusterUID = "earlier"
		}, ReasonPodsNotAccepted},
		"a Tunnel that waits for its Cluster": {func(p *pods, _ *certificatesv1.CertificateSigningRequest) {
			p.tunnel.Status.Served = &v1alpha1.ServedStatus{EnrolmentOnly: true}
		}, ReasonPodsNotAccepted},
		"a kubeconfig mode without tunnel": {func(p *pods, _ *certificatesv1.CertificateSigningRequest) {
			p.tunnel.Spec.Kubeconfig.Mode = v1alpha1.KubeconfigModeAddress
		}, ReasonPodsNotAccepted},
		"a Cluster that was created again": {func(p *pods, _ *certificatesv1.CertificateSigningRequest) {
			p.cluster.UID = "later"
		}, ReasonTunnelEnded},
		"an id that the Tunnel does not hold": {func(p *pods, _ *certificatesv1.CertificateSigningRequest) {
			p.tunnel.Status.ID = ""
		}, ReasonNotHeld},
		"a revoked Pod": {func(p *pods, _ *certificatesv1.CertificateSigningRequest) {
			p.tunnel.Spec.RevokedEdges = []string{model.NodeNameForPod(p.tunnel.Spec.ID, podUID)}
		}, ReasonRevoked},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			p := newPods(t)
			csr := p.request(t, p.token(t, podUID, time.Now()))
			tc.change(p, csr)
			if got := p.admit(t, csr); got != tc.want {
				t.Errorf("got %q, want %q", got, tc.want)
			}
			if len(p.tunnel.Status.Edges) > 0 {
				t.Errorf("recorded %+v", p.tunnel.Status.Edges)
			}
		})
	}
}

// TestARevokedPodCannotUseABootstrapToken, which it may have read from its volume, until the tokens of that moment have
// ended.
func TestARevokedPodCannotUseABootstrapToken(t *testing.T) {
	p := newPods(t)
	if no := p.admit(t, p.request(t, p.token(t, podUID, time.Now()))); no != "" {
		t.Fatalf("refused: %s", no)
	}
	p.tunnel.Status.Tokens = []v1alpha1.TokenStatus{{
		SHA256: enrol.HashToken(controllertest.TestToken), MaxUses: 9, ExpiresAt: metav1.NewTime(time.Now().Add(time.Hour)),
	}}
	byToken := controllertest.EdgeRequest(t, "prod/c1")
	byToken.Annotations[v1alpha1.RequestTunnelIDAnnotation] = p.tunnel.Spec.ID
	p.tunnel.Spec.RevokedEdges = []string{model.NodeNameForPod(p.tunnel.Spec.ID, podUID)}
	if no := p.admit(t, byToken); no != ReasonRevoked {
		t.Errorf("got %q", no)
	}
	revokedAt := metav1.Now() // recorded together with the end of these tokens; the next tokens enrol other machines
	p.tunnel.Status.Edges[0].RevokedAt = &revokedAt
	if no := p.admit(t, byToken); no != "" {
		t.Errorf("later tokens: got %q", no)
	}
}
