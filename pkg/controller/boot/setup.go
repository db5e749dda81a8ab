package boot

import (
	"context"
	"fmt"

	"k8s.io/apimachinery/pkg/api/equality"
	apimeta "k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/client-go/util/workqueue"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/builder"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/event"
	"sigs.k8s.io/controller-runtime/pkg/handler"
	"sigs.k8s.io/controller-runtime/pkg/predicate"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"
	"sigs.k8s.io/controller-runtime/pkg/source"

	"github.com/fairlead/fairlead/api/v1alpha1"
	"github.com/fairlead/fairlead/pkg/controller/objects"
	"github.com/fairlead/fairlead/pkg/controller/reconciler"
	reportview "github.com/fairlead/fairlead/pkg/report/view"
)

const bootWorkers = 4

// Setup adds the controller of boot reports to a manager.
func Setup(p reconciler.Deps, mgr ctrl.Manager, view *reportview.View) error {
	kind := clusterv1.GroupVersion.WithKind("Machine")
	if _, err := mgr.GetRESTMapper().RESTMapping(kind.GroupKind(), kind.Version); apimeta.IsNoMatchError(err) {
		p.Log.Warn("management cluster does not have the kind Machine: boot reports are ignored")
		return nil
	} else if err != nil {
		return fmt.Errorf("finding the kind Machine: %w", err)
	}
	booted := workqueue.NewTyped[string]()
	view.OnBoot(booted.Add)
	r := &Reconciler{Deps: p, view: view}
	return ctrl.NewControllerManagedBy(mgr).
		Named("boot").
		Watches(&clusterv1.Machine{}, handler.EnqueueRequestsFromMapFunc(clusterOfMachine), builder.WithPredicates(
			machineChanged())).
		Watches(&clusterv1.Cluster{}, &handler.EnqueueRequestForObject{}, builder.WithPredicates(predicate.Or[client.Object](
			predicate.GenerationChangedPredicate{}, predicate.AnnotationChangedPredicate{}))).
		Watches(&v1alpha1.Tunnel{}, &handler.EnqueueRequestForObject{}, builder.WithPredicates(
			reconciler.LiveStateIgnored())).
		WatchesRawSource(source.Func(func(ctx context.Context,
			queue workqueue.TypedRateLimitingInterface[reconcile.Request],
		) error {
			go reconciler.EnqueueTunnels(ctx, p.Client, p.Log, booted, queue)
			return nil
		})).
		WithOptions(reconciler.Options(bootWorkers, "cluster", p.Log)).
		Complete(reconciler.Traced{Name: "boot", Reconciler: r})
}

// clusterOfMachine maps a Machine to its Cluster.
func clusterOfMachine(_ context.Context, o client.Object) []reconcile.Request {
	m, ok := o.(*clusterv1.Machine)
	if !ok || m.Spec.ClusterName == "" {
		return nil
	}
	return []reconcile.Request{{NamespacedName: client.ObjectKey{Namespace: m.Namespace, Name: m.Spec.ClusterName}}}
}

// machineChanged passes updates of the Machine fields that the cache keeps, and of pauses.
func machineChanged() predicate.Predicate {
	return predicate.Funcs{
		UpdateFunc: func(e event.UpdateEvent) bool {
			before, okBefore := e.ObjectOld.(*clusterv1.Machine)
			after, okAfter := e.ObjectNew.(*clusterv1.Machine)
			return okBefore && okAfter && (objects.HasPause(before) != objects.HasPause(after) ||
				!equality.Semantic.DeepEqual(before.Spec, after.Spec) || !equality.Semantic.DeepEqual(before.Status, after.Status))
		},
		DeleteFunc: func(event.DeleteEvent) bool { return false },
	}
}
