package kubeconfigs

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
	"github.com/fairlead/fairlead/pkg/controller/controllertest"
	"github.com/fairlead/fairlead/pkg/controller/objects"
	"github.com/fairlead/fairlead/pkg/controller/reconciler"
	"github.com/fairlead/fairlead/pkg/controller/records"
	"github.com/fairlead/fairlead/pkg/controller/tunnel"
	"github.com/fairlead/fairlead/pkg/kubeconfig"
)

// kubeconfigsOf returns the reconciler of kubeconfigs that belongs to a reconciler of tunnels. It dials no address.
func kubeconfigsOf(r *tunnel.Reconciler) *Reconciler {
	k := New(r.Deps, r, "")
	k.resolver.lookup = func(context.Context, string) ([]string, error) { return nil, errors.New("no DNS") }
	return k
}

func TestALateCacheOverwritesNoKubeconfig(t *testing.T) {
	cluster, tunnel := controllertest.Served("c1", 1000)
	secret := controllertest.KubeconfigSecret(t, "prod", "c1", controllertest.OriginalServer)
	api := controllertest.FakeAPI(t, cluster, tunnel, secret)
	key := client.ObjectKeyFromObject(secret)
	var stale corev1.Secret
	if err := api.Get(t.Context(), key, &stale); err != nil {
		t.Fatal(err)
	}
	rotated := stale.DeepCopy()
	rotated.Data = controllertest.KubeconfigSecret(t, "prod", "c1", controllertest.OriginalServer).Data
	if err := api.Update(t.Context(), rotated); err != nil {
		t.Fatal(err)
	}
	late := interceptor.NewClient(api, interceptor.Funcs{Get: func(
		ctx context.Context, c client.WithWatch, k client.ObjectKey, o client.Object, opts ...client.GetOption,
	) error {
		if s, ok := o.(*corev1.Secret); ok && k == key {
			stale.DeepCopyInto(s)
			return nil
		}
		return c.Get(ctx, k, o, opts...)
	}})
	tunnel.Status = v1alpha1.TunnelStatus{
		Hostname: "c1.prod.tunnels.example.com", ID: tunnel.Spec.ID, Names: []string{"c1.prod.tunnels.example.com"},
	}
	tunnel.Status.Conditions = []metav1.Condition{{
		Type: v1alpha1.ConditionAccepted, Status: metav1.ConditionTrue, Reason: v1alpha1.ReasonAccepted,
	}}
	if err := api.Status().Update(t.Context(), tunnel); err != nil {
		t.Fatal(err)
	}
	result, err := kubeconfigsOf(withTunnels(t, late, api)).Reconcile(
		t.Context(), reconcile.Request{NamespacedName: client.ObjectKeyFromObject(tunnel)},
	)
	if err != nil || result.RequeueAfter < reconciler.ConflictDelay/2 || result.RequeueAfter > reconciler.ConflictDelay {
		t.Errorf("got %+v, %v; want another try", result, err)
	}
	if err := api.Get(t.Context(), key, secret); err != nil ||
		!bytes.Equal(secret.Data[kubeconfig.Key], rotated.Data[kubeconfig.Key]) {
		t.Errorf("the provider's new credentials were overwritten: %v", err)
	}
}

// withTunnels returns a controller with empty memory. cached and live are its two readers.
func withTunnels(t *testing.T, cached client.Client, live client.Reader) *tunnel.Reconciler {
	t.Helper()
	d := reconciler.Deps{
		Config: controllertest.Config(), Client: cached, Live: live, Log: slog.New(slog.DiscardHandler), Now: time.Now,
		Recorder: events.NewFakeRecorder(10),
	}
	restorer := &currentRestorer{}
	restorer.r = tunnel.New(d, records.NewEndedTunnels(cached, live, d.Config.Namespace, time.Now), restorer, nil)
	return restorer.r
}

// currentRestorer restores with the current fields of the reconciler of Tunnels, because tests replace some of them.
type currentRestorer struct{ r *tunnel.Reconciler }

func (o *currentRestorer) Restore(ctx context.Context, of objects.Group) (*v1alpha1.Tunnel, error) {
	return NewRestorer(o.r.Deps).Restore(ctx, of)
}
