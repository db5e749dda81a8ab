package webhook

import (
	"bytes"
	"context"
	"crypto/tls"
	"crypto/x509"
	"log/slog"
	"slices"
	"strings"
	"testing"
	"time"

	admissionv1 "k8s.io/api/admissionregistration/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	"github.com/fairlead/fairlead/api/v1alpha1"
	"github.com/fairlead/fairlead/internal/kubetest"
	"github.com/fairlead/fairlead/pkg/controller/controllertest"
)

// TestTheWebhooksCertificateIsRotated runs on a real apiserver with the keeper's clock, and checks what a replica
// serves in each state.
func TestTheWebhooksCertificateIsRotated(t *testing.T) {
	m := controllertest.APIServer(t)
	namespace := kubetest.NewNamespace(t, m)
	now := time.Now()
	keeper := &webhookKeeper{
		client: m, live: m, watched: m, key: client.ObjectKey{Namespace: namespace, Name: v1alpha1.WebhookSecretName},
		log: slog.New(slog.DiscardHandler), now: func() time.Time { return now },
		times: servingTimes{life: 90 * 24 * time.Hour, settle: time.Minute},
	}
	own := &admissionv1.MutatingWebhookConfiguration{ObjectMeta: metav1.ObjectMeta{GenerateName: "rotated-"}}
	for _, name := range []string{"create.kubeconfigs.fairlead.dev", "update.kubeconfigs.fairlead.dev"} {
		own.Webhooks = append(own.Webhooks, admissionv1.MutatingWebhook{
			Name: name, AdmissionReviewVersions: []string{"v1"}, SideEffects: ptr.To(admissionv1.SideEffectClassNone),
			ClientConfig: admissionv1.WebhookClientConfig{URL: ptr.To("https://127.0.0.1:9443" + Path)},
		})
	}
	controllertest.Create(t, m, own)
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
		webhooks := controllertest.Read(t, m, own).Webhooks
		published := webhooks[0].ClientConfig.CABundle
		if !bytes.Equal(published, webhooks[1].ClientConfig.CABundle) {
			t.Error("the webhooks of one configuration have different bundles")
		}
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
		t.Errorf(
			"when the new CA is published there are %d CAs, and the new leaf is served already: %v", cas, served != first,
		)
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

	owner := slices.IndexFunc(controllertest.Read(t, m, own).ManagedFields, func(e metav1.ManagedFieldsEntry) bool {
		return e.Manager == fieldOwner && e.Operation == metav1.ManagedFieldsOperationApply &&
			!strings.Contains(e.FieldsV1.GetRawString(), "f:url") && strings.Contains(e.FieldsV1.GetRawString(), "f:caBundle")
	})
	if owner < 0 {
		t.Error("the keeper owns something else than the bundles")
	}

	// The manifest is applied again without a CA, and the Secret is deleted.
	controllertest.Edit(
		t, m, own, func(c *admissionv1.MutatingWebhookConfiguration) { c.Webhooks[0].ClientConfig.CABundle = nil },
	)
	look()
	if err := m.Delete(t.Context(), controllertest.SecretNamed(namespace, v1alpha1.WebhookSecretName)); err != nil {
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
