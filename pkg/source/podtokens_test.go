package source_test

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"errors"
	"testing"
	"time"

	jose "github.com/go-jose/go-jose/v4"
	"github.com/go-jose/go-jose/v4/jwt"

	"github.com/fairlead/fairlead/api/v1alpha1"
	"github.com/fairlead/fairlead/pkg/enrol"
	"github.com/fairlead/fairlead/pkg/enrol/podtoken"
	"github.com/fairlead/fairlead/pkg/model"
	"github.com/fairlead/fairlead/pkg/source"
)

const podUID = "6b8f4f0a-1f1e-4d0c-9d3a-0c1d2e3f4a5b"

// podToken returns a token of a Pod for a tunnel, and the key that verifies it.
func podToken(t *testing.T, tunnelID string) (string, v1alpha1.ServiceAccountKey) {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	der, err := x509.MarshalPKIXPublicKey(&key.PublicKey)
	if err != nil {
		t.Fatal(err)
	}
	signer, err := jose.NewSigner(
		jose.SigningKey{Algorithm: jose.ES256, Key: jose.JSONWebKey{Key: key, KeyID: "k"}}, nil,
	)
	if err != nil {
		t.Fatal(err)
	}
	now := time.Now()
	token, err := jwt.Signed(signer).Claims(jwt.Claims{
		Issuer: "https://issuer", Subject: "system:serviceaccount:edges:edge",
		Audience: jwt.Audience{podtoken.Audience(tunnelID)},
		IssuedAt: jwt.NewNumericDate(now), NotBefore: jwt.NewNumericDate(now),
		Expiry: jwt.NewNumericDate(now.Add(time.Minute)),
	}).Claims(map[string]any{"kubernetes.io": map[string]any{
		"namespace": "edges", "serviceaccount": map[string]string{"name": "edge"},
		"pod": map[string]string{"name": "edge-0", "uid": podUID},
	}}).Serialize()
	if err != nil {
		t.Fatal(err)
	}
	return token, v1alpha1.ServiceAccountKey{ID: "k", PublicKey: der}
}

// TestTokensOfPods follows the withdrawals of a Tunnel, which do not wait for the controller.
func TestTokensOfPods(t *testing.T) {
	b := newBed(t)
	cluster, tunnel := b.pair(t, "c1", "a")
	token, key := podToken(t, id("a"))
	foreign, _ := podToken(t, id("a"))
	elsewhere, _ := podToken(t, id("b"))
	b.update(t, tunnel, func() {
		tunnel.Spec.EdgeServiceAccount = &v1alpha1.EdgeServiceAccount{Namespace: "edges", Name: "edge"}
	})
	tunnel.Status.ServiceAccountIssuer = &v1alpha1.ServiceAccountIssuerStatus{
		ClusterUID: cluster.UID, Issuer: "https://issuer", Keys: []v1alpha1.ServiceAccountKey{key},
	}
	if err := b.Status().Update(t.Context(), tunnel); err != nil {
		t.Fatal(err)
	}
	b.run(t)
	b.first(t, map[string][]string{"c1": none})

	node := model.NodeNameForPod(id("a"), podUID)
	want := enrol.PodGrant{
		Grant: enrol.Grant{Tunnel: model.Key{Namespace: b.namespace, Name: "c1"}, ID: id("a")}, Node: node,
	}
	if grant, err := b.PodToken(token); err != nil || grant != want {
		t.Errorf("got %+v and %v, want %+v", grant, err, want)
	}
	for name, bad := range map[string]string{
		"of another issuer": foreign, "for a tunnel that does not exist": elsewhere, "that is none": "a.b.c", "empty": "",
	} {
		if grant, err := b.PodToken(bad); !errors.Is(err, enrol.ErrDeniedToken) {
			t.Errorf("a token %s: got %+v and %v", name, grant, err)
		}
	}
	denied := func() bool { _, err := b.PodToken(token); return errors.Is(err, enrol.ErrDeniedToken) }
	b.update(t, tunnel, func() { tunnel.Spec.RevokedEdges = []string{node} })
	eventually(t, "the revocation", denied)
	b.update(t, tunnel, func() { tunnel.Spec.RevokedEdges = nil })
	eventually(t, "the end of the revocation", func() bool { return !denied() })
	b.update(t, tunnel, func() { tunnel.Spec.EdgeServiceAccount.Name = "other" })
	eventually(t, "another ServiceAccount", denied)
	b.update(t, tunnel, func() { tunnel.Spec.EdgeServiceAccount.Name = "edge" })
	eventually(t, "the ServiceAccount", func() bool { return !denied() })
	b.update(t, tunnel, func() { tunnel.Spec.EdgeServiceAccount = nil })
	eventually(t, "no ServiceAccount", denied)
}

// TestNoTokenOfAPodIsAcceptedBeforeTheObjectsAreRead, and none is rejected forever.
func TestNoTokenOfAPodIsAcceptedBeforeTheObjectsAreRead(t *testing.T) {
	kube, err := source.NewKube(server.Config(t), source.KubeConfig{Domain: domain, Namespace: "default"})
	if err != nil {
		t.Fatal(err)
	}
	token, _ := podToken(t, id("a"))
	if _, err := kube.PodToken(token); err == nil || errors.Is(err, enrol.ErrDeniedToken) {
		t.Errorf("got %v", err)
	}
}
