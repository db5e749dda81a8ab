package tunnel

import (
	"fmt"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/controller/priorityqueue"
	"sigs.k8s.io/controller-runtime/pkg/event"
	"sigs.k8s.io/controller-runtime/pkg/handler"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	"github.com/fairlead/fairlead/api/v1alpha1"
	"github.com/fairlead/fairlead/pkg/controller/controllertest"
)

// TestNewClustersAreReconciledFirst proves that new work does not wait behind unchanged Clusters when a controller
// starts.
func TestNewClustersAreReconciledFirst(t *testing.T) {
	seen := func(name string, generation, at int64) *clusterv1.Cluster {
		c := &clusterv1.Cluster{
			ObjectMeta: metav1.ObjectMeta{
				Name: name, Generation: generation, Labels: map[string]string{v1alpha1.TunnelLabel: v1alpha1.TunnelEnabled},
			},
		}
		if at > 0 {
			c.Status.Conditions = []metav1.Condition{{Type: v1alpha1.ClusterConditionTunnelReady, ObservedGeneration: at}}
		}
		return c
	}
	var there []*clusterv1.Cluster
	for i := range 50 {
		there = append(there, seen(fmt.Sprintf("old-%d", i), 1, 1))
	}
	goes := seen("goes", 1, 1)
	goes.DeletionTimestamp = &metav1.Time{Time: time.Now()}
	unlabelled := seen("not-ours", 1, 0)
	unlabelled.Labels = nil
	there = append(there, unlabelled, seen("changed", 2, 1), seen("new", 1, 0), goes)
	queue := priorityqueue.New[reconcile.Request]("first")
	defer queue.ShutDown()
	for _, h := range []handler.EventHandler{&handler.EnqueueRequestForObject{}, unseenFirst(false)} {
		for _, c := range there {
			h.Create(t.Context(), event.CreateEvent{Object: c, IsInInitialList: true}, queue)
		}
	}
	first := map[string]bool{}
	for range 3 {
		request, priority, _ := queue.GetWithPriority()
		if first[request.Name] = true; priority != 0 {
			t.Errorf("%s has priority %d", request.Name, priority)
		}
		queue.Done(request)
	}
	if !first["changed"] || !first["new"] || !first["goes"] {
		t.Errorf("first come %v", first)
	}
	if request, priority, _ := queue.GetWithPriority(); priority != handler.LowPriority {
		t.Errorf("then comes %s with priority %d", request.Name, priority)
	}
}

// TestATrustBundleIsDeliveredAfterNewWork proves that only another trust bundle enqueues all Tunnels, with low
// priority, and that Tunnels that wait for their next token do not have the priority of an event.
func TestATrustBundleIsDeliveredAfterNewWork(t *testing.T) {
	cluster, tunnel := controllertest.Served("c1", 1000)
	_, other := controllertest.Served("c2", 1001)
	api := controllertest.FakeAPI(t, cluster, tunnel, other, trustBundle())
	r := started(t, api, api)
	queue := priorityqueue.New[reconcile.Request]("bundle")
	defer queue.ShutDown()

	before := trustBundle()
	annotated := before.DeepCopy()
	annotated.ResourceVersion, annotated.Annotations = "2", map[string]string{v1alpha1.RotateCAAnnotation: ""}
	annotated.Data[v1alpha1.CARotationKey] = "{}"
	rotated := annotated.DeepCopy()
	rotated.ResourceVersion, rotated.Data[v1alpha1.TrustBundleKey] = "3", "two CAs"
	update := func(from, to *corev1.ConfigMap) {
		changed := event.UpdateEvent{ObjectOld: from, ObjectNew: to}
		r.OnTrustBundle((*v1alpha1.Tunnel).OfCluster).Update(t.Context(), changed, queue)
	}
	update(before, annotated)
	if n := queue.Len(); n != 0 {
		t.Errorf("%d Tunnels are enqueued although the bundle is the same", n)
	}
	request := reconcile.Request{NamespacedName: client.ObjectKeyFromObject(tunnel)}
	var result reconcile.Result
	for range 2 {
		var err error
		if result, err = r.Reconcile(t.Context(), request); err != nil {
			t.Fatal(err)
		}
	}
	if result.RequeueAfter < time.Minute {
		t.Fatalf("the next token is due after %s", result.RequeueAfter)
	}
	queue.AddWithOpts( // as controller-runtime does
		priorityqueue.AddOpts{After: result.RequeueAfter, Priority: result.Priority}, request,
	)
	update(annotated, rotated)
	r.OnTrustBundle((*v1alpha1.Tunnel).OfCluster).Create(t.Context(), event.CreateEvent{Object: rotated}, queue)
	if n := queue.Len(); n != 2 {
		t.Errorf("%d Tunnels are enqueued, want 2", n)
	}
	for range 2 {
		request, priority, _ := queue.GetWithPriority()
		if priority != handler.LowPriority {
			t.Errorf("%s has the priority %d", request.Name, priority)
		}
		queue.Done(request)
	}
}
