package tunnel

import (
	"context"
	"log/slog"
	"testing"
	"time"

	apimeta "k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/client-go/tools/events"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/interceptor"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	"github.com/fairlead/fairlead/api/v1alpha1"
	"github.com/fairlead/fairlead/pkg/controller/controllertest"
	"github.com/fairlead/fairlead/pkg/controller/kubeconfigs"
	"github.com/fairlead/fairlead/pkg/controller/objects"
	"github.com/fairlead/fairlead/pkg/controller/reconciler"
	"github.com/fairlead/fairlead/pkg/controller/records"
	"github.com/fairlead/fairlead/pkg/model"
)

// started returns a controller with empty memory. cached and live are its two readers.
func started(t *testing.T, cached client.Client, live client.Reader) *Reconciler {
	t.Helper()
	d := reconciler.Deps{
		Config: controllertest.Config(), Client: cached, Live: live, Log: slog.New(slog.DiscardHandler), Now: time.Now,
		Recorder: events.NewFakeRecorder(10),
	}
	restorer := &restorerOf{}
	restorer.r = New(d, records.NewEndedTunnels(cached, live, d.Config.Namespace, time.Now), restorer, nil)
	return restorer.r
}

// restorerOf restores with the current fields of the reconciler of Tunnels, because tests replace some of them.
type restorerOf struct{ r *Reconciler }

func (o *restorerOf) Restore(ctx context.Context, of objects.Group) (*v1alpha1.Tunnel, error) {
	return kubeconfigs.NewRestorer(o.r.Deps).Restore(ctx, of)
}

func TestAgeDecidesAfterAStart(t *testing.T) {
	c1, older := controllertest.Served("older", 1000, "api.example.org")
	c2, younger := controllertest.Served("younger", 1001, "api.example.org")
	api := controllertest.FakeAPI(t, c1, older, c2, younger)
	r := started(t, api, api)
	key := client.ObjectKeyFromObject(younger)
	// the younger is reconciled first
	if _, err := r.Reconcile(t.Context(), reconcile.Request{NamespacedName: key}); err != nil {
		t.Fatal(err)
	}
	if err := api.Get(t.Context(), key, younger); err != nil {
		t.Fatal(err)
	}
	if c := apimeta.FindStatusCondition(younger.Status.Conditions, v1alpha1.ConditionAccepted); c == nil ||
		c.Reason != v1alpha1.ReasonInvalidExtraName {
		t.Errorf("the younger has taken the name: %+v", c)
	}
	if got := r.names.release(model.Key(key)); len(got) != 1 {
		t.Errorf("the older is not known to claim the name: %v", got)
	}
}

func TestATunnelIsNotEndedByALateCache(t *testing.T) {
	cluster, tunnel := controllertest.Served("c1", 1000)
	cached, live := controllertest.FakeAPI(t, tunnel), controllertest.FakeAPI(t, cluster, tunnel)
	r := started(t, cached, live)
	key := client.ObjectKeyFromObject(tunnel)
	if _, err := r.Reconcile(t.Context(), reconcile.Request{NamespacedName: key}); err != nil {
		t.Fatal(err)
	}
	if err := cached.Get(t.Context(), key, tunnel); err != nil || !controllertest.HasFinalizer(tunnel) {
		t.Errorf("its edges were cut off, although the apiserver has the Cluster: %v", err)
	}
}

// TestAStartCopiesNoTunnels: the first reconciliation reads all Tunnels.
func TestAStartCopiesNoTunnels(t *testing.T) {
	cluster, tunnel := controllertest.Served("c1", 1000, "api.example.org")
	var listed []client.ListOptions
	api := interceptor.NewClient(controllertest.FakeAPI(t, cluster, tunnel), interceptor.Funcs{List: func(
		ctx context.Context, from client.WithWatch, list client.ObjectList, options ...client.ListOption,
	) error {
		if _, ok := list.(*v1alpha1.TunnelList); ok {
			all := client.ListOptions{}
			all.ApplyOptions(options)
			listed = append(listed, all)
		}
		return from.List(ctx, list, options...)
	}})
	if err := started(t, api, api).ClaimAll(t.Context()); err != nil {
		t.Fatal(err)
	}
	if len(listed) != 1 || listed[0].UnsafeDisableDeepCopy == nil || !*listed[0].UnsafeDisableDeepCopy {
		t.Errorf("Tunnels are listed with %+v", listed)
	}
}
