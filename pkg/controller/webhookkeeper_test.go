package controller

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"fmt"
	"log/slog"
	"testing"
	"time"

	admissionv1 "k8s.io/api/admissionregistration/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	"github.com/fairlead/fairlead/api/v1alpha1"
	"github.com/fairlead/fairlead/internal/kubetest"
	"github.com/fairlead/fairlead/pkg/kubeconfig"
)

// TestTheWebhooksCertificateIsRotated on a real apiserver, with the keeper's clock, and looks at what a replica serves in each state.
func TestTheWebhooksCertificateIsRotated(t *testing.T) {
	m := apiserver(t)
	namespace := kubetest.NewNamespace(t, m)
	now := time.Now()
	keeper := &webhookKeeper{
		client: m, live: m, watched: m, key: client.ObjectKey{Namespace: namespace, Name: v1alpha1.WebhookSecretName},
		log: slog.New(slog.DiscardHandler), now: func() time.Time { return now }, times: servingTimes{life: 90 * 24 * time.Hour, settle: time.Minute},
	}
	configuration := &admissionv1.MutatingWebhookConfiguration{ObjectMeta: metav1.ObjectMeta{Name: v1alpha1.WebhookConfigurationName}}
	if err := m.Get(t.Context(), client.ObjectKeyFromObject(configuration), configuration); err != nil {
		t.Fatal(err)
	}
	// One of its own under another name: the real keeper has the real one.
	own := &admissionv1.MutatingWebhookConfiguration{ObjectMeta: metav1.ObjectMeta{GenerateName: "rotated-"}, Webhooks: configuration.Webhooks}
	for i := range own.Webhooks {
		own.Webhooks[i].NamespaceSelector = &metav1.LabelSelector{MatchLabels: map[string]string{webhookLabel: "nobody"}}
		own.Webhooks[i].ClientConfig.CABundle = nil
	}
	create(t, m, own)
	keeper.watched = renamed{m, own.Name}
	replica := &servingSource{from: m, key: keeper.key}

	look := func() (served string, cas int) {
		t.Helper()
		if _, err := keeper.Reconcile(t.Context(), reconcile.Request{}); err != nil {
			t.Fatal(err)
		}
		pair, err := replica.certificate(&tls.ClientHelloInfo{})
		if err != nil {
			t.Fatal(err)
		}
		published := read(t, m, own).Webhooks[0].ClientConfig.CABundle
		roots := x509.NewCertPool()
		roots.AppendCertsFromPEM(published)
		leaf, err := x509.ParseCertificate(pair.Certificate[0])
		if err != nil {
			t.Fatal(err)
		}
		if _, err := leaf.Verify(x509.VerifyOptions{Roots: roots, CurrentTime: now, DNSName: "127.0.0.1"}); err != nil {
			t.Errorf("at %s apiservers do not trust what is served: %v", now, err)
		}
		return leaf.SerialNumber.Text(16), len(parsed(published))
	}
	first, cas := look()
	if cas != 1 {
		t.Errorf("%d CAs at first", cas)
	}
	now = now.Add(61 * 24 * time.Hour)
	if served, cas := look(); served != first || cas != 2 {
		t.Errorf("when the new CA is published there are %d CAs, and the new leaf is served already: %v", cas, served != first)
	}
	now = now.Add(2 * time.Minute)
	second, cas := look()
	if second == first || cas != 2 {
		t.Errorf("a while later the leaf is still the old one, or there are %d CAs", cas)
	}
	now = now.Add(30 * 24 * time.Hour)
	if served, cas := look(); served != second || cas != 1 {
		t.Errorf("after its end the old CA is still there: %d CAs", cas)
	}

	// Somebody applies the manifest again, without a CA, and somebody else deletes the Secret.
	edit(t, m, own, func(c *admissionv1.MutatingWebhookConfiguration) { c.Webhooks[0].ClientConfig.CABundle = nil })
	look()
	if err := m.Delete(t.Context(), secretNamed(namespace, v1alpha1.WebhookSecretName)); err != nil {
		t.Fatal(err)
	}
	if served, _ := look(); served == second {
		t.Error("the leaf that was deleted is still served")
	}
	if err := m.Delete(t.Context(), own); err != nil {
		t.Fatal(err)
	}
	if _, err := keeper.Reconcile(t.Context(), reconcile.Request{}); err != nil {
		t.Errorf("without a configuration: %v", err)
	}
	if keeper.problem == "" {
		t.Error("nobody is told that there is no configuration")
	}
}

// renamed reads another configuration of a webhook under the usual name.
type renamed struct {
	client.Reader
	name string
}

func (r renamed) Get(ctx context.Context, key client.ObjectKey, o client.Object, opts ...client.GetOption) error {
	if key.Name == v1alpha1.WebhookConfigurationName {
		key.Name = r.name
	}
	return r.Reader.Get(ctx, key, o, opts...)
}

// TestAPausedClusterIsLeftAlone by the webhook, as by the controller.
func TestAPausedClusterIsLeftAlone(t *testing.T) {
	m := apiserver(t)
	startReplica(t, m)
	cluster := webhookCluster(t, m, "paused")
	pause := func(on bool) {
		edit(t, m, cluster, func(c *clusterv1.Cluster) { c.Spec.Paused = &on })
	}
	written := func(want string) {
		t.Helper()
		eventually(t, func() error {
			secret := kubeconfigSecret(t, cluster.Namespace, cluster.Name, "https://192.0.2.77:6443")
			if err := m.Update(t.Context(), secret, client.DryRunAll); err != nil {
				return err
			}
			if got := entryOf(t, secret).Server; got != want {
				return fmt.Errorf("it would be stored with %s, want %s", got, want)
			}
			return nil
		})
	}
	through := entryOf(t, read(t, m, secretNamed(cluster.Namespace, cluster.Name+kubeconfig.Suffix))).Server
	pause(true)
	written("https://192.0.2.77:6443")
	pause(false)
	written(through)
}

// TestGivingBackIsNotUndone: a replica that has not seen it yet would write the way once more.
func TestGivingBackIsNotUndone(t *testing.T) {
	m := apiserver(t)
	startReplica(t, m)
	for i := range 5 {
		cluster := webhookCluster(t, m, fmt.Sprintf("given-back-%d", i))
		secret := secretNamed(cluster.Namespace, cluster.Name+kubeconfig.Suffix)
		seen := watchSecret(t, m, secret)
		edit(t, m, cluster, func(c *clusterv1.Cluster) { c.Labels[v1alpha1.TunnelLabel] = v1alpha1.TunnelDisabled })
		if got := entryOf(t, next(t, seen).secret).Server; got != originalServer {
			t.Fatalf("it was given back as %s", got)
		}
		waitGone(t, m, tunnelNamed(cluster))
		if now := read(t, m, secret); entryOf(t, now).Server != originalServer || kubeconfig.Noted(now) {
			t.Errorf("it did not stay given back: %s, %v", entryOf(t, now).Server, now.Annotations)
		}
	}
}
