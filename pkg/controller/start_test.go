package controller

import (
	"context"
	"log/slog"
	"testing"
	"time"

	apimeta "k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/client-go/tools/events"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	"github.com/fairlead/fairlead/api/v1alpha1"
	"github.com/fairlead/fairlead/pkg/model"
)

// started is a controller that has seen nothing yet; cached and live are the two ways in which it reads.
func started(t *testing.T, cached client.Client, live client.Reader) *tunnels {
	t.Helper()
	d := deps{config: testConfig(), client: cached, live: live, log: slog.New(slog.DiscardHandler), now: time.Now, recorder: events.NewFakeRecorder(10)}
	restorer := &restorerOf{}
	restorer.r = newTunnels(d, newEndedTunnels(cached, live, d.config.Namespace, time.Now), restorer, nil)
	return restorer.r
}

// restorerOf restores with what the reconciler of Tunnels has at the moment: tests replace parts of it.
type restorerOf struct{ r *tunnels }

func (o *restorerOf) giveBack(ctx context.Context, of objects) (*v1alpha1.Tunnel, error) {
	return newRestorer(o.r.deps).giveBack(ctx, of)
}

func TestAgeDecidesAfterAStart(t *testing.T) {
	c1, older := served("older", 1000, "api.example.org")
	c2, younger := served("younger", 1001, "api.example.org")
	api := fakeAPI(t, c1, older, c2, younger)
	r := started(t, api, api)
	key := client.ObjectKeyFromObject(younger)
	if _, err := r.Reconcile(t.Context(), reconcile.Request{NamespacedName: key}); err != nil { // the younger is looked at first
		t.Fatal(err)
	}
	if err := api.Get(t.Context(), key, younger); err != nil {
		t.Fatal(err)
	}
	if c := apimeta.FindStatusCondition(younger.Status.Conditions, v1alpha1.ConditionAccepted); c == nil || c.Reason != v1alpha1.ReasonInvalidExtraName {
		t.Errorf("the younger has taken the name: %+v", c)
	}
	if got := r.names.release(model.Key(key)); len(got) != 1 {
		t.Errorf("the older is not known to claim the name: %v", got)
	}
}

func TestATunnelIsNotEndedByALateCache(t *testing.T) {
	cluster, tunnel := served("c1", 1000)
	cached, live := fakeAPI(t, tunnel), fakeAPI(t, cluster, tunnel)
	r := started(t, cached, live)
	key := client.ObjectKeyFromObject(tunnel)
	if _, err := r.Reconcile(t.Context(), reconcile.Request{NamespacedName: key}); err != nil {
		t.Fatal(err)
	}
	if err := cached.Get(t.Context(), key, tunnel); err != nil || !hasFinalizer(tunnel) {
		t.Errorf("its edges were cut off, although the apiserver has the Cluster: %v", err)
	}
}
