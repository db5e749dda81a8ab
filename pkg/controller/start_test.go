package controller

import (
	"bytes"
	"context"
	"errors"
	"log/slog"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	apimeta "k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/tools/events"
	"k8s.io/client-go/util/workqueue"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"
	"sigs.k8s.io/controller-runtime/pkg/client/interceptor"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	"github.com/fairlead/fairlead/api/v1alpha1"
	"github.com/fairlead/fairlead/internal/kubetest"
	"github.com/fairlead/fairlead/pkg/kubeconfig"
	"github.com/fairlead/fairlead/pkg/model"
)

// served is a Cluster with an extra name and the Tunnel that it has had since a time.
func served(name string, since int64, extraNames ...string) (*clusterv1.Cluster, *v1alpha1.Tunnel) {
	cluster := kubetest.Cluster("prod", name)
	cluster.UID = types.UID("uid-of-" + name)
	tunnel := tunnelNamed(cluster)
	tunnel.CreationTimestamp = metav1.NewTime(time.Unix(since, 0))
	tunnel.Spec.ExtraNames = extraNames
	fillTunnel(tunnel, cluster)
	return cluster, tunnel
}

func fakeAPI(t *testing.T, all ...client.Object) client.WithWatch {
	t.Helper()
	scheme, err := NewScheme()
	if err != nil {
		t.Fatal(err)
	}
	return fake.NewClientBuilder().WithScheme(scheme).WithObjects(all...).WithStatusSubresource(&v1alpha1.Tunnel{}).
		WithIndex(&clusterv1.Cluster{}, endpointIndex, endpointHosts).WithIndex(&v1alpha1.Tunnel{}, credentialsIndex, credentialsOf).Build()
}

// started is a controller that has seen nothing yet; cached and live are the two ways in which it reads.
func started(t *testing.T, cached client.Client, live client.Reader) *tunnels {
	t.Helper()
	queue := workqueue.NewTypedRateLimitingQueue(workqueue.DefaultTypedControllerRateLimiter[reconcile.Request]())
	t.Cleanup(queue.ShutDown)
	config := testConfig()
	ended := &endedTunnels{client: cached, live: live, namespace: config.Namespace, now: time.Now}
	return &tunnels{
		ended: ended, clusterStatus: clusterStatus{cached},
		config: config, client: cached, live: live, log: slog.New(slog.DiscardHandler), now: time.Now, queue: queue,
		recorder: events.NewFakeRecorder(10), names: &registry{},
	}
}

// kubeconfigsOf is the controller of kubeconfigs that belongs to that of tunnels. It dials nobody.
func kubeconfigsOf(r *tunnels) *kubeconfigs {
	k := parts{config: r.config, client: r.client, live: r.live, recorder: r.recorder, log: r.log, now: r.now}.kubeconfigs(r.names)
	k.resolver.lookup = func(context.Context, string) ([]string, error) { return nil, errors.New("no DNS") }
	return k
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
	result, err := kubeconfigsOf(started(t, late, api)).Reconcile(t.Context(), reconcile.Request{NamespacedName: client.ObjectKeyFromObject(tunnel)})
	if err != nil || result.RequeueAfter != conflictDelay {
		t.Errorf("got %+v, %v; want another try", result, err)
	}
	if err := api.Get(t.Context(), key, secret); err != nil || !bytes.Equal(secret.Data[kubeconfig.Key], rotated.Data[kubeconfig.Key]) {
		t.Errorf("the provider's new credentials were overwritten: %v", err)
	}
}
