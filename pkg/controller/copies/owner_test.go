package copies

import (
	"context"
	"log/slog"
	"slices"
	"testing"
	"time"

	apimeta "k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/client-go/tools/events"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/interceptor"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	"github.com/fairlead/fairlead/api/v1alpha1"
	"github.com/fairlead/fairlead/pkg/controller/controllertest"
	"github.com/fairlead/fairlead/pkg/controller/reconciler"
)

// TestALateCacheHoldsUpNoStatusOfCopies has another reconciler write the status between the read and the write.
func TestALateCacheHoldsUpNoStatusOfCopies(t *testing.T) {
	cluster, tunnel := controllertest.Served("c1", 1000)
	tunnel.Spec.Kubeconfig.Copies = []v1alpha1.KubeconfigCopy{{
		Name: "copy", Exec: &v1alpha1.ExecAudience{Command: "kubelogin"},
	}}
	tunnel.Status.Hostname, tunnel.Status.Kubeconfig.Mode = controllertest.Hostname, v1alpha1.KubeconfigModeConnect
	secret := controllertest.KubeconfigSecret(t, "prod", "c1", controllertest.OriginalServer)
	api := controllertest.FakeAPI(t, cluster, tunnel, secret)
	key := client.ObjectKeyFromObject(tunnel)
	stale := &v1alpha1.Tunnel{}
	if err := api.Get(t.Context(), key, stale); err != nil {
		t.Fatal(err)
	}
	now := stale.DeepCopy()
	now.Status.Edges = []v1alpha1.EdgeStatus{controllertest.Recorded("edge-a", time.Now())}
	now.Status.Names = []string{controllertest.Hostname}
	if err := api.Status().Update(t.Context(), now); err != nil {
		t.Fatal(err)
	}
	late := interceptor.NewClient(api, interceptor.Funcs{
		Get: func(
			ctx context.Context, c client.WithWatch, k client.ObjectKey, o client.Object, opts ...client.GetOption,
		) error {
			if into, ok := o.(*v1alpha1.Tunnel); ok {
				stale.DeepCopyInto(into)
				return nil
			}
			return c.Get(ctx, k, o, opts...)
		},
	})
	r := &Reconciler{
		Deps: reconciler.Deps{
			Config: controllertest.Config(), Client: late, Live: late, Recorder: events.NewFakeRecorder(10),
			Log: slog.New(slog.DiscardHandler), Now: time.Now,
		},
		labelled: api,
	}
	result, err := r.Reconcile(t.Context(), reconcile.Request{NamespacedName: key})
	if err != nil || 0 < result.RequeueAfter && result.RequeueAfter <= reconciler.ConflictDelay {
		t.Fatalf("got %+v, %v: a conflict", result, err)
	}
	if err := api.Get(t.Context(), key, now); err != nil {
		t.Fatal(err)
	}
	if !apimeta.IsStatusConditionTrue(now.Status.Conditions, v1alpha1.ConditionCopiesReady) ||
		len(now.Status.Kubeconfig.Copies) != 1 {
		t.Errorf("conditions %+v, copies %+v", now.Status.Conditions, now.Status.Kubeconfig.Copies)
	}
	if len(now.Status.Edges) != 1 || !slices.Equal(now.Status.Names, []string{controllertest.Hostname}) ||
		now.Status.Kubeconfig.Mode != v1alpha1.KubeconfigModeConnect {
		t.Errorf("what another wrote is gone: %+v", now.Status)
	}
}
