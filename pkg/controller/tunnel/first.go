package tunnel

import (
	"context"

	apimeta "k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/client-go/util/workqueue"
	"k8s.io/utils/ptr"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/controller/priorityqueue"
	"sigs.k8s.io/controller-runtime/pkg/event"
	"sigs.k8s.io/controller-runtime/pkg/handler"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	"github.com/fairlead/fairlead/api/v1alpha1"
	"github.com/fairlead/fairlead/pkg/controller/objects"
)

// unseenFirst raises the priority of Clusters that have changed since a controller processed them. At a start,
// controller-runtime enqueues all existing objects with low priority, and 10,000 of them take a minute.
func unseenFirst(allClusters bool) handler.EventHandler {
	return handler.Funcs{CreateFunc: func(
		_ context.Context, e event.CreateEvent, queue workqueue.TypedRateLimitingInterface[reconcile.Request],
	) {
		cluster, ok := e.Object.(*clusterv1.Cluster)
		ordered, can := queue.(priorityqueue.PriorityQueue[reconcile.Request])
		if ok && can && e.IsInInitialList && unseen(cluster, allClusters) {
			ordered.AddWithOpts(
				priorityqueue.AddOpts{Priority: ptr.To(0)}, reconcile.Request{NamespacedName: client.ObjectKeyFromObject(cluster)},
			)
		}
	}}
}

// unseen reports whether a Cluster that requests a tunnel differs from what its condition describes.
func unseen(cluster *clusterv1.Cluster, allClusters bool) bool {
	if !objects.OptedIn(cluster, allClusters) {
		return false
	}
	seen := apimeta.FindStatusCondition(cluster.Status.Conditions, v1alpha1.ClusterConditionTunnelReady)
	return seen == nil || seen.ObservedGeneration != cluster.Generation || !cluster.DeletionTimestamp.IsZero()
}
