package network

import (
	"context"
	"errors"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
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
	"github.com/fairlead/fairlead/pkg/controller/reconciler"
	"github.com/fairlead/fairlead/pkg/decision"
)

// workers is how many Tunnels, and how many RemoteNetworks, are reconciled concurrently.
const workers = 4

// atOnce is how many keys of one event have the priority of an event.
const atOnce = 2

// Setup adds the reconcilers to a manager. It starts nothing.
func (r *Reconciler) Setup(mgr ctrl.Manager) error {
	changed := builder.WithPredicates(predicate.Or[client.Object](
		predicate.GenerationChangedPredicate{}, predicate.AnnotationChangedPredicate{}, beingDeleted()))
	build := ctrl.NewControllerManagedBy(mgr).
		Named("network").
		Watches(&v1alpha1.RemoteNetwork{}, r.each(r.tunnelsBeside), changed).
		Watches(&clusterv1.Cluster{}, r.each(r.tunnelsOf), changed).
		Watches(
			&v1alpha1.Tunnel{}, r.each(r.tunnelsAfter), builder.WithPredicates(reconciler.LiveStateIgnored()),
		).
		WatchesRawSource(source.Func(r.queue.Begin)).
		WithOptions(reconciler.Options(workers, "tunnel", r.Log))
	if !r.Config.NoTunnels {
		build = build.Watches(
			&corev1.ConfigMap{}, r.onTrustBundle(),
			builder.WithPredicates(reconciler.Named(r.Config.Namespace, v1alpha1.InstallationConfigMapName)),
		)
	}
	tunnels := build.Complete(reconciler.Traced{Name: "network", Reconciler: r})
	status := ctrl.NewControllerManagedBy(mgr).
		Named("network-status").
		For(&v1alpha1.RemoteNetwork{}).
		Watches(&v1alpha1.Tunnel{}, r.each(r.networksAfter)).
		Watches(&clusterv1.Cluster{}, r.each(r.networksOf), builder.WithPredicates(predicate.GenerationChangedPredicate{})).
		WithOptions(reconciler.Options(workers, "network", r.Log)).
		Complete(reconciler.Traced{Name: "network-status", Reconciler: &statusReconciler{r.Deps}})
	return errors.Join(tunnels, status)
}

// onTrustBundle enqueues the Tunnels of networks and of apiservers when their trust bundle changes.
func (r *Reconciler) onTrustBundle() handler.EventHandler {
	return r.OnTrustBundle(func(t *v1alpha1.Tunnel) bool { return !t.OfCluster() })
}

// beingDeleted passes updates of an object that is being deleted.
func beingDeleted() predicate.Predicate {
	return predicate.NewPredicateFuncs(func(o client.Object) bool { return !o.GetDeletionTimestamp().IsZero() })
}

// each maps an object to the keys that a function returns, and logs its errors. Keys after the first ones have low
// priority: an owner can change one network again and again, and each time decision.MaxNetworks others are reconciled.
// With the priority of an event they would keep everything of low priority, such as the next tokens of other owners,
// from its turn.
func (r *Reconciler) each(keys func(context.Context, client.Object) ([]client.ObjectKey, error)) handler.EventHandler {
	type queue = workqueue.TypedRateLimitingInterface[reconcile.Request]
	enqueue := func(ctx context.Context, o client.Object, q queue) {
		all, err := keys(ctx, o)
		if err != nil && ctx.Err() == nil {
			r.Log.Error("cannot list what depends on an object", "name", client.ObjectKeyFromObject(o).String(), "error", err)
		}
		for i, key := range all {
			if request := (reconcile.Request{NamespacedName: key}); i < atOnce {
				q.Add(request)
			} else {
				reconciler.Enqueue(q, handler.LowPriority, request)
			}
		}
	}
	return handler.Funcs{
		CreateFunc: func(ctx context.Context, e event.CreateEvent, q queue) { enqueue(ctx, e.Object, q) },
		UpdateFunc: func(ctx context.Context, e event.UpdateEvent, q queue) {
			enqueue(ctx, e.ObjectOld, q)
			enqueue(ctx, e.ObjectNew, q)
		},
		DeleteFunc: func(ctx context.Context, e event.DeleteEvent, q queue) { enqueue(ctx, e.Object, q) },
	}
}

// networksOf returns the RemoteNetworks of a Cluster.
func (r *Reconciler) networksOf(ctx context.Context, cluster client.Object) (keys []client.ObjectKey, err error) {
	list, err := reconciler.NetworksOf(ctx, r.Client, client.ObjectKeyFromObject(cluster))
	for i := range list {
		keys = append(keys, client.ObjectKeyFromObject(&list[i]))
	}
	return keys, err
}

// networkTunnels returns the Tunnels of the networks of a Cluster.
func (r *Reconciler) networkTunnels(ctx context.Context, cluster client.Object) ([]client.ObjectKey, error) {
	keys, err := r.networksOf(ctx, cluster)
	for i := range keys {
		keys[i].Name = decision.NetworkTunnel(keys[i].Name)
	}
	return keys, err
}

// tunnelsOf returns the Tunnels of the apiservers and of the networks of a Cluster.
func (r *Reconciler) tunnelsOf(ctx context.Context, cluster client.Object) ([]client.ObjectKey, error) {
	keys, err := r.networkTunnels(ctx, cluster)
	egress := client.ObjectKey{Namespace: cluster.GetNamespace(), Name: decision.EgressTunnel(cluster.GetName())}
	return append([]client.ObjectKey{egress}, keys...), err
}

// tunnelsBeside returns the Tunnels that depend on a RemoteNetwork: its own, and the others of its Cluster. Those that
// are not served because there are too many do not count, so that their number does not multiply the work.
func (r *Reconciler) tunnelsBeside(ctx context.Context, o client.Object) ([]client.ObjectKey, error) {
	network, ok := o.(*v1alpha1.RemoteNetwork)
	if !ok {
		return nil, nil
	}
	named := func(name string) client.ObjectKey { return client.ObjectKey{Namespace: network.Namespace, Name: name} }
	own := named(decision.NetworkTunnel(network.Name))
	keys := []client.ObjectKey{named(decision.EgressTunnel(network.Spec.ClusterName)), own}
	others, err := reconciler.NetworksOf(ctx, r.Client, named(network.Spec.ClusterName))
	others = slices.DeleteFunc(others, func(n v1alpha1.RemoteNetwork) bool {
		return n.Name == network.Name || !n.DeletionTimestamp.IsZero()
	})
	if all := decision.OldestNetworks(append(slices.Clone(others), *network)); !slices.ContainsFunc(
		all, func(n v1alpha1.RemoteNetwork) bool { return n.Name == network.Name },
	) {
		return keys, err
	}
	for _, n := range decision.OldestNetworks(others) { // after a deletion one that was not served takes its place
		keys = append(keys, named(decision.NetworkTunnel(n.Name)))
	}
	return keys, err
}

// tunnelsAfter returns the Tunnels whose decision depends on a Tunnel: itself, and if it is that of a Cluster or of its
// apiservers, those of the networks of that Cluster.
func (r *Reconciler) tunnelsAfter(ctx context.Context, tunnel client.Object) ([]client.ObjectKey, error) {
	own := client.ObjectKeyFromObject(tunnel)
	if _, ok := networkOf(tunnel); ok {
		return []client.ObjectKey{own}, nil
	}
	var keys []client.ObjectKey
	var errs []error
	for _, name := range decision.ClustersOf(own.Name) {
		cluster := &clusterv1.Cluster{}
		cluster.Namespace, cluster.Name = own.Namespace, name
		if name != own.Name {
			keys = append([]client.ObjectKey{own}, keys...)
		}
		networks, err := r.networkTunnels(ctx, cluster)
		keys, errs = append(keys, networks...), append(errs, err)
	}
	return keys, errors.Join(errs...)
}

// networksAfter returns the RemoteNetworks whose status depends on a Tunnel.
func (r *Reconciler) networksAfter(ctx context.Context, tunnel client.Object) ([]client.ObjectKey, error) {
	if network, ok := networkOf(tunnel); ok {
		return []client.ObjectKey{network}, nil
	}
	name, ok := strings.CutSuffix(tunnel.GetName(), v1alpha1.EgressTunnelSuffix)
	if !ok {
		return nil, nil
	}
	cluster := &clusterv1.Cluster{}
	cluster.Namespace, cluster.Name = tunnel.GetNamespace(), name
	return r.networksOf(ctx, cluster)
}
