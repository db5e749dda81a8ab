package status

import (
	"context"
	"time"

	"k8s.io/apimachinery/pkg/api/equality"
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
	"github.com/fairlead/fairlead/pkg/controller/condition"
	"github.com/fairlead/fairlead/pkg/controller/reconciler"
	"github.com/fairlead/fairlead/pkg/controller/records"
	"github.com/fairlead/fairlead/pkg/decision"
)

// New returns the reconciler of live state. Without a view the live state stays unknown.
func New(p reconciler.Deps, view View, ended *records.EndedTunnels) *Reconciler {
	return &Reconciler{
		Deps:          p,
		view:          view,
		ended:         ended,
		clusterStatus: condition.ClusterWriter{Client: p.Client},
		writes:        newWriteQueue(p.Config.StatusWrites),
	}
}

// Figures receives measurements of the reconciler. Both functions must not block; nil functions are not called.
type Figures struct {
	// Written is called for each write of live state, with its urgency and the time that the change waited for it.
	Written func(urgency string, after time.Duration)
	// Cut is called when all gateways have closed all connections of a revoked edge, with the time since the reconciler
	// saw the revocation.
	Cut func(after time.Duration)
}

// Observe sets what receives the measurements. It must be called before Setup.
func (r *Reconciler) Observe(f Figures) { r.figures = f }

// Setup adds the reconciler to a manager. It reconciles the Tunnels with the ids that changed delivers.
func (r *Reconciler) Setup(mgr ctrl.Manager, changed workqueue.TypedInterface[string]) error {
	return ctrl.NewControllerManagedBy(mgr).
		Named("live").
		For(&v1alpha1.Tunnel{}).
		Watches(
			&clusterv1.Cluster{}, handler.EnqueueRequestsFromMapFunc(r.tunnelsOf),
			builder.WithPredicates(predicate.Or[client.Object](
				predicate.GenerationChangedPredicate{}, predicate.AnnotationChangedPredicate{}, ourConditionChanged(),
			)),
		).
		WatchesRawSource(source.Func(func(
			ctx context.Context, queue workqueue.TypedRateLimitingInterface[reconcile.Request],
		) error {
			go reconciler.EnqueueTunnels(ctx, r.Client, r.Log, changed, queue)
			go r.grantTurns(ctx, queue)
			return nil
		})).
		WithOptions(reconciler.Options(liveWorkers, "cluster", r.Log)).
		Complete(reconciler.Traced{Name: "live", Reconciler: r})
}

// grantTurns enqueues each Tunnel that gets a turn to write, before all others: while unusedTurns are not used, no
// further turn is granted, and writes would wait until everything in the queue is reconciled.
func (r *Reconciler) grantTurns(ctx context.Context, queue workqueue.TypedRateLimitingInterface[reconcile.Request]) {
	r.writes.run(ctx, func(key client.ObjectKey) {
		reconciler.Enqueue(queue, turnPriority, reconcile.Request{NamespacedName: key})
	})
}

// tunnelsOf maps a Cluster to its Tunnel, and to those of its networks and of its apiservers.
func (r *Reconciler) tunnelsOf(ctx context.Context, cluster client.Object) []reconcile.Request {
	key := client.ObjectKeyFromObject(cluster)
	requests := []reconcile.Request{{NamespacedName: key}}
	networks, err := reconciler.NetworksOf(ctx, r.Client, key)
	if err != nil && ctx.Err() == nil {
		r.Log.Error("cannot find the networks of a Cluster", "cluster", key.String(), "error", err)
	}
	names := []string{decision.EgressTunnel(key.Name)} // which outlives the networks
	for i := range networks {
		names = append(names, decision.NetworkTunnel(networks[i].Name))
	}
	for _, name := range names {
		requests = append(
			requests, reconcile.Request{NamespacedName: client.ObjectKey{Namespace: key.Namespace, Name: name}},
		)
	}
	return requests
}

// ourConditionChanged passes updates of the controller's condition on a Cluster: the cache keeps no other.
func ourConditionChanged() predicate.Predicate {
	return predicate.Funcs{UpdateFunc: func(e event.UpdateEvent) bool {
		before, okBefore := e.ObjectOld.(*clusterv1.Cluster)
		after, okAfter := e.ObjectNew.(*clusterv1.Cluster)
		return okBefore && okAfter && !equality.Semantic.DeepEqual(before.Status.Conditions, after.Status.Conditions)
	}}
}

// liveWorkers is how many Tunnels have their live state reconciled concurrently.
const liveWorkers = 8

// turnPriority is the priority of Tunnels with a turn to write. Events have 0.
const turnPriority = 1

// Waiting returns how many writes of status are waiting, by urgency.
func (r *Reconciler) Waiting() map[string]int { return r.writes.waiting() }
