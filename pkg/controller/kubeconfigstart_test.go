package controller

import (
	"bytes"
	"context"
	"errors"
	"log/slog"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/tools/events"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/interceptor"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	"github.com/fairlead/fairlead/api/v1alpha1"
	"github.com/fairlead/fairlead/pkg/kubeconfig"
)

// kubeconfigsOf is the controller of kubeconfigs that belongs to that of tunnels. It dials nobody.
func kubeconfigsOf(r *tunnels) *kubeconfigs {
	k := newKubeconfigs(r.deps, r, "")
	k.resolver.lookup = func(context.Context, string) ([]string, error) { return nil, errors.New("no DNS") }
	return k
}

func TestALateCacheOverwritesNoKubeconfig(t *testing.T) {
	cluster, tunnel := served("c1", 1000)
	secret := kubeconfigSecret(t, "prod", "c1", originalServer)
	api := fakeAPI(t, cluster, tunnel, secret)
	key := client.ObjectKeyFromObject(secret)
	var stale corev1.Secret
	if err := api.Get(t.Context(), key, &stale); err != nil {
		t.Fatal(err)
	}
	rotated := stale.DeepCopy()
	rotated.Data = kubeconfigSecret(t, "prod", "c1", originalServer).Data
	if err := api.Update(t.Context(), rotated); err != nil {
		t.Fatal(err)
	}
	late := interceptor.NewClient(api, interceptor.Funcs{Get: func(ctx context.Context, c client.WithWatch, k client.ObjectKey, o client.Object, opts ...client.GetOption) error {
		if s, ok := o.(*corev1.Secret); ok && k == key {
			stale.DeepCopyInto(s)
			return nil
		}
		return c.Get(ctx, k, o, opts...)
	}})
	tunnel.Status = v1alpha1.TunnelStatus{Hostname: "c1.prod.tunnels.example.com", ID: tunnel.Spec.ID, Names: []string{"c1.prod.tunnels.example.com"}}
	tunnel.Status.Conditions = []metav1.Condition{{Type: v1alpha1.ConditionAccepted, Status: metav1.ConditionTrue, Reason: v1alpha1.ReasonAccepted}}
	if err := api.Status().Update(t.Context(), tunnel); err != nil {
		t.Fatal(err)
	}
	result, err := kubeconfigsOf(withTunnels(t, late, api)).Reconcile(t.Context(), reconcile.Request{NamespacedName: client.ObjectKeyFromObject(tunnel)})
	if err != nil || result.RequeueAfter != conflictDelay {
		t.Errorf("got %+v, %v; want another try", result, err)
	}
	if err := api.Get(t.Context(), key, secret); err != nil || !bytes.Equal(secret.Data[kubeconfig.Key], rotated.Data[kubeconfig.Key]) {
		t.Errorf("the provider's new credentials were overwritten: %v", err)
	}
}

// withTunnels is a controller that has seen nothing yet; cached and live are the two ways in which it reads.
func withTunnels(t *testing.T, cached client.Client, live client.Reader) *tunnels {
	t.Helper()
	d := deps{config: testConfig(), client: cached, live: live, log: slog.New(slog.DiscardHandler), now: time.Now, recorder: events.NewFakeRecorder(10)}
	restorer := &currentRestorer{}
	restorer.r = newTunnels(d, newEndedTunnels(cached, live, d.config.Namespace, time.Now), restorer, nil)
	return restorer.r
}

// currentRestorer restores with what the reconciler of Tunnels has at the moment: tests replace parts of it.
type currentRestorer struct{ r *tunnels }

func (o *currentRestorer) giveBack(ctx context.Context, of objects) (*v1alpha1.Tunnel, error) {
	return newRestorer(o.r.deps).giveBack(ctx, of)
}
