package source_test

import (
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/fairlead/fairlead/api/v1alpha1"
	"github.com/fairlead/fairlead/internal/kubetest"
	"github.com/fairlead/fairlead/pkg/enrol"
	"github.com/fairlead/fairlead/pkg/model"
	"github.com/fairlead/fairlead/pkg/source"
)

// eventually waits until the watches have read what was written.
func eventually(t *testing.T, what string, done func() bool) {
	t.Helper()
	kubetest.Eventually(t, what, func() error {
		if !done() {
			return errors.New("not read")
		}
		return nil
	})
}

func TestTokensOfEdges(t *testing.T) {
	b := newBed(t)
	record := func(hash string, uses int32, left time.Duration) v1alpha1.TokenStatus {
		return v1alpha1.TokenStatus{
			SHA256:    enrol.HashToken(hash),
			MaxUses:   2,
			Uses:      uses,
			ExpiresAt: metav1.NewTime(time.Now().Add(left)),
		}
	}
	_, tunnel := b.pair(t, "c1", "a")
	tunnel.Status.ID = tunnel.Spec.ID
	tunnel.Status.Tokens = []v1alpha1.TokenStatus{
		record("good", 1, time.Hour),
		record("used", 2, time.Hour),
		record("expired", 0, -time.Second),
	}
	if err := b.Status().Update(t.Context(), tunnel); err != nil {
		t.Fatal(err)
	}
	cluster, orphan := b.pair(t, "c2", "b")
	orphan.Status.ID = orphan.Spec.ID
	orphan.Status.Tokens = []v1alpha1.TokenStatus{record("orphaned", 0, time.Hour)}
	if err := b.Status().Update(t.Context(), orphan); err != nil {
		t.Fatal(err)
	}
	if err := b.Delete(t.Context(), cluster); err != nil {
		t.Fatal(err)
	}
	// Tunnels that claim an id that the controller has not granted them
	for i, recorded := range []string{"", "somebody-elses"} {
		_, thief := b.pair(t, fmt.Sprintf("c%d", 3+i), fmt.Sprintf("t%d", i))
		thief.Status.ID = recorded
		thief.Status.Tokens = []v1alpha1.TokenStatus{record("thief"+recorded, 0, time.Hour)}
		if err := b.Status().Update(t.Context(), thief); err != nil {
			t.Fatal(err)
		}
	}
	b.run(t)
	b.first(t, map[string][]string{"c1": none}) // c3 and c4 do not have their ids on record

	grant, err := b.EdgeToken(enrol.HashToken("good"), "")
	if want := (enrol.Grant{Tunnel: model.Key{Namespace: b.namespace, Name: "c1"}, ID: id("a")}); err != nil ||
		grant != want {
		t.Errorf("got %v and %v, want %v", grant, err, want)
	}
	for _, token := range []string{"used", "expired", "orphaned", "thief", "thiefsomebody-elses", "unknown", ""} {
		if grant, err := b.EdgeToken(enrol.HashToken(token), ""); !errors.Is(err, enrol.ErrUnknownToken) {
			t.Errorf("token %q: got %v and %v", token, grant, err)
		}
	}
	if _, err := b.EdgeToken("", ""); !errors.Is(err, enrol.ErrUnknownToken) {
		t.Errorf("no hash: got %v", err)
	}

	tunnel.Status.Tokens[0].Uses = 2
	if err := b.Status().Update(t.Context(), tunnel); err != nil {
		t.Fatal(err)
	}
	eventually(t, "the last use", func() bool {
		_, err := b.EdgeToken(enrol.HashToken("good"), "")
		return errors.Is(err, enrol.ErrUnknownToken)
	})

	// The edge whose answer was lost repeats its request.
	tunnel.Status.Edges = []v1alpha1.EdgeStatus{{
		NodeID: model.NodeID("edge-last"), TokenSHA256: enrol.HashToken("good"), EnrolledAt: metav1.Now(),
		CertificateNotAfter: metav1.Now(),
	}}
	if err := b.Status().Update(t.Context(), tunnel); err != nil {
		t.Fatal(err)
	}
	eventually(t, "the edge that has used it", func() bool {
		_, err := b.EdgeToken(enrol.HashToken("good"), "edge-last")
		return err == nil
	})
	for token, node := range map[string]string{"good": "edge-other", "used": "edge-last"} {
		if _, err := b.EdgeToken(enrol.HashToken(token), node); !errors.Is(err, enrol.ErrUnknownToken) {
			t.Errorf("token %q and node %s: got %v", token, node, err)
		}
	}
}

func TestTheTokenOfARevokedEdge(t *testing.T) {
	b := newBed(t)
	_, tunnel := b.pair(t, "c1", "a")
	tunnel.Status.ID = tunnel.Spec.ID
	for _, token := range []string{"stolen", "other"} {
		tunnel.Status.Tokens = append(
			tunnel.Status.Tokens,
			v1alpha1.TokenStatus{
				SHA256:    enrol.HashToken(token),
				MaxUses:   9,
				ExpiresAt: metav1.NewTime(time.Now().Add(time.Hour)),
			},
		)
		tunnel.Status.Edges = append(tunnel.Status.Edges, v1alpha1.EdgeStatus{
			NodeID: model.NodeID(
				"edge-" + token,
			), TokenSHA256: enrol.HashToken(token), EnrolledAt: metav1.Now(), CertificateNotAfter: metav1.Now(),
		})
	}
	if err := b.Status().Update(t.Context(), tunnel); err != nil {
		t.Fatal(err)
	}
	b.run(t)
	b.first(t, map[string][]string{"c1": none})
	if _, err := b.EdgeToken(enrol.HashToken("stolen"), ""); err != nil {
		t.Fatal(err)
	}
	// The status was not written since.
	b.update(t, tunnel, func() { tunnel.Spec.RevokedEdges = []string{"edge-stolen"} })
	eventually(t, "the revocation", func() bool {
		_, err := b.EdgeToken(enrol.HashToken("stolen"), "")
		return errors.Is(err, enrol.ErrUnknownToken)
	})
	if _, err := b.EdgeToken(enrol.HashToken("other"), ""); err != nil {
		t.Errorf("the token of another edge: %v", err)
	}
}

func TestTokensAreUnknownUntilAllAreRead(t *testing.T) {
	kube, err := source.NewKube(server.Config(t), source.KubeConfig{Namespace: "x"})
	if err != nil {
		t.Fatal(err)
	}
	// Not ErrUnknownToken: the caller should retry.
	if _, err := kube.EdgeToken("x", ""); err == nil || errors.Is(err, enrol.ErrUnknownToken) {
		t.Errorf("token of an edge: %v", err)
	}
	if err := kube.GatewayToken("x"); err == nil || errors.Is(err, enrol.ErrUnknownToken) {
		t.Errorf("token of a gateway: %v", err)
	}
	if bundle := kube.TrustBundle(); bundle != nil {
		t.Errorf("trust bundle: %q", bundle)
	}
}

func TestValuesOfTheInstallation(t *testing.T) {
	b := newBed(t)
	b.run(t)
	b.first(t, map[string][]string{})
	if err := b.GatewayToken(enrol.HashToken("")); !errors.Is(err, enrol.ErrUnknownToken) {
		t.Errorf("without a ConfigMap: %v", err)
	}
	if bundle := b.TrustBundle(); len(bundle) > 0 {
		t.Errorf("a trust bundle before there is one: %q", bundle)
	}

	cm := &corev1.ConfigMap{
		ObjectMeta: metav1.ObjectMeta{Namespace: b.namespace, Name: v1alpha1.InstallationConfigMapName},
		Data:       map[string]string{v1alpha1.TrustBundleKey: "one"},
	}
	if err := b.Create(t.Context(), cm); err != nil {
		t.Fatal(err)
	}
	eventually(t, "the trust bundle", func() bool { return string(b.TrustBundle()) == "one" })
	if err := b.GatewayToken(""); !errors.Is(err, enrol.ErrUnknownToken) {
		t.Errorf("an installation without a gateway token took an empty one: %v", err)
	}

	b.update(t, cm, func() {
		cm.Data[v1alpha1.GatewayTokenHashKey] = enrol.HashToken("secret")
		cm.Data[v1alpha1.TrustBundleKey] = "two"
	})
	eventually(t, "the rotated bundle", func() bool { return string(b.TrustBundle()) == "two" })
	if err := b.GatewayToken(enrol.HashToken("secret")); err != nil {
		t.Error(err)
	}
	for _, hash := range []string{enrol.HashToken("other"), "", strings.ToUpper(enrol.HashToken("secret"))} {
		if err := b.GatewayToken(hash); !errors.Is(err, enrol.ErrUnknownToken) {
			t.Errorf("hash %q: got %v", hash, err)
		}
	}
}
