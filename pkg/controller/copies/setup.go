package copies

import (
	"context"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	apimeta "k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/util/workqueue"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/builder"
	"sigs.k8s.io/controller-runtime/pkg/cache"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/event"
	"sigs.k8s.io/controller-runtime/pkg/handler"
	"sigs.k8s.io/controller-runtime/pkg/predicate"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"
	"sigs.k8s.io/controller-runtime/pkg/source"

	"github.com/fairlead/fairlead/api/v1alpha1"
	"github.com/fairlead/fairlead/pkg/controller/reconciler"
	"github.com/fairlead/fairlead/pkg/controller/records"
	"github.com/fairlead/fairlead/pkg/kubeconfig"
)

// Setup adds the controller of additional kubeconfigs to a manager.
func Setup(p reconciler.Deps, mgr ctrl.Manager) error {
	labelled, err := reconciler.SecretCache(mgr, cache.ByObject{Label: reconciler.HasLabel(v1alpha1.CopyLabel)})
	if err != nil {
		return err
	}
	r := &Reconciler{Deps: p, labelled: labelled}
	build := ctrl.NewControllerManagedBy(mgr).
		Named("copies").
		Watches(&v1alpha1.Tunnel{}, tunnelOrItsOrphans(), builder.WithPredicates(copiesMayDiffer())).
		Watches(&clusterv1.Cluster{}, &handler.EnqueueRequestForObject{}, builder.WithPredicates(predicate.Or[client.Object](
			predicate.GenerationChangedPredicate{}, predicate.AnnotationChangedPredicate{}))).
		WatchesMetadata(
			&corev1.Namespace{}, handler.EnqueueRequestsFromMapFunc(r.tunnelsFor),
			builder.WithPredicates(predicate.AnnotationChangedPredicate{}),
		).
		WatchesRawSource(source.Kind[client.Object](
			labelled, reconciler.SecretMetadata(), handler.EnqueueRequestsFromMapFunc(r.tunnelOf),
		))
	for _, suffix := range append([]string{kubeconfig.Suffix}, userCASuffixes...) {
		build = build.Watches(&corev1.Secret{}, reconciler.ByName(suffix))
	}
	return build.WithOptions(reconciler.Options(
		copyWorkers, "tunnel", p.Log,
	)).Complete(reconciler.Traced{Name: "copies", Reconciler: r})
}

// tunnelOrItsOrphans maps a Tunnel to itself, and a deleted one to its id, which marks its copies.
func tunnelOrItsOrphans() handler.EventHandler {
	add := func(queue workqueue.TypedRateLimitingInterface[reconcile.Request], o client.Object) {
		queue.Add(reconcile.Request{NamespacedName: client.ObjectKeyFromObject(o)})
	}
	return handler.Funcs{
		CreateFunc: func(
			_ context.Context, e event.CreateEvent, queue workqueue.TypedRateLimitingInterface[reconcile.Request],
		) {
			add(queue, e.Object)
		},
		UpdateFunc: func(
			_ context.Context, e event.UpdateEvent, queue workqueue.TypedRateLimitingInterface[reconcile.Request],
		) {
			add(queue, e.ObjectNew)
		},
		DeleteFunc: func(
			_ context.Context, e event.DeleteEvent, queue workqueue.TypedRateLimitingInterface[reconcile.Request],
		) {
			for _, id := range reconciler.TunnelIDOf(e.Object) {
				queue.Add(orphansOf(id))
			}
		},
	}
}

func orphansOf(id string) reconcile.Request {
	return reconcile.Request{NamespacedName: client.ObjectKey{Name: id}}
}

// copiesMayDiffer passes updates of the Tunnel fields that copies depend on.
func copiesMayDiffer() predicate.Predicate {
	of := func(o client.Object) any {
		tunnel, ok := o.(*v1alpha1.Tunnel)
		if !ok {
			return nil
		}
		record := tunnel.Status.Kubeconfig
		return []any{
			tunnel.Generation, tunnel.Annotations, tunnel.OwnerReferences, tunnel.DeletionTimestamp, tunnel.Status.Hostname,
			record,
			apimeta.IsStatusConditionTrue(tunnel.Status.Conditions, v1alpha1.ConditionHostnameResolves),
			apimeta.FindStatusCondition(tunnel.Status.Conditions, v1alpha1.ConditionCopiesReady) == nil,
			records.CertificateNames(tunnel.Status.Edges, time.Time{}),
		}
	}
	return predicate.Funcs{
		UpdateFunc: func(e event.UpdateEvent) bool { return !equality.Semantic.DeepEqual(of(e.ObjectOld), of(e.ObjectNew)) },
	}
}

// tunnelOf maps a copy to the Tunnel that it is marked with, or, if that does not exist, to the orphans of its id.
func (r *Reconciler) tunnelOf(ctx context.Context, o client.Object) []reconcile.Request {
	id := o.GetLabels()[v1alpha1.CopyLabel]
	if id == "" {
		return nil
	}
	requests := reconciler.TunnelRequests(ctx, r.Client, r.Log, client.MatchingFields{reconciler.TunnelIDIndex: id})
	if len(requests) == 0 {
		return []reconcile.Request{orphansOf(id)}
	}
	return requests
}

// tunnelsFor maps a Namespace to the Tunnels that request copies in it.
func (r *Reconciler) tunnelsFor(ctx context.Context, o client.Object) []reconcile.Request {
	return reconciler.TunnelRequests(
		ctx, r.Client, r.Log, client.MatchingFields{reconciler.CopiesNamespaceIndex: o.GetName()},
	)
}

func namespaceMetadata() *metav1.PartialObjectMetadata {
	o := &metav1.PartialObjectMetadata{}
	o.SetGroupVersionKind(corev1.SchemeGroupVersion.WithKind("Namespace"))
	return o
}

// copyWorkers is how many Tunnels have their copies reconciled concurrently.
const copyWorkers = 4
