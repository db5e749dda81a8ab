package controller

import (
	"context"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/client-go/util/workqueue"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/builder"
	"sigs.k8s.io/controller-runtime/pkg/cache"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/handler"
	"sigs.k8s.io/controller-runtime/pkg/predicate"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"
	"sigs.k8s.io/controller-runtime/pkg/source"

	"github.com/fairlead/fairlead/api/v1alpha1"
	"github.com/fairlead/fairlead/pkg/kubeconfig"
)

// newTunnels returns the reconciler of Tunnels. It enqueues the kubeconfigs of Clusters whose names have changed by notify.
func newTunnels(p deps, ended *endedTunnels, restorer kubeconfigRestorer, notify func(client.ObjectKey)) *tunnels {
	return &tunnels{
		deps:          p,
		restorer:      restorer,
		notify:        notify,
		ended:         ended,
		clusterStatus: clusterStatus{p.client},
		names:         &registry{},
	}
}

func (r *tunnels) setup(mgr ctrl.Manager) error {
	build := ctrl.NewControllerManagedBy(mgr).
		Named("tunnel").
		// Cluster API writes the status of a Cluster often, and nothing here depends on it.
		For(&clusterv1.Cluster{}, builder.WithPredicates(predicate.Or[client.Object](
			predicate.GenerationChangedPredicate{}, predicate.LabelChangedPredicate{}, predicate.AnnotationChangedPredicate{}))).
		Watches(&clusterv1.Cluster{}, unseenFirst(r.config.AllClusters)).
		Watches(&v1alpha1.Tunnel{}, &handler.EnqueueRequestForObject{}, builder.WithPredicates(moreThanLiveChanged())).
		Watches(&corev1.Secret{}, byName(kubeconfig.Suffix)).
		WatchesRawSource(source.Func(func(_ context.Context, queue workqueue.TypedRateLimitingInterface[reconcile.Request]) error {
			r.queue = queue
			return nil
		})).
		WithOptions(options(tunnelWorkers, "cluster", r.log))
	if r.config.NoTunnels { // nobody enrols
		return build.Complete(traced{"tunnel", r})
	}
	bootstraps, err := secretCache(mgr, cache.ByObject{Label: mustSelect(v1alpha1.BootstrapLabel)})
	if err != nil {
		return err
	}
	return build.
		Watches(&corev1.ConfigMap{}, handler.EnqueueRequestsFromMapFunc(r.everyTunnel), builder.WithPredicates(named(r.config.Namespace, v1alpha1.InstallationConfigMapName))).
		WatchesRawSource(source.Kind[client.Object](bootstraps, secretMetadata(), byName(v1alpha1.BootstrapSecretSuffix))).
		WatchesRawSource(source.Kind[client.Object](bootstraps, secretMetadata(), byName(v1alpha1.BootReportSecretSuffix))).
		Complete(traced{"tunnel", r})
}

// everyTunnel leads from the trust bundle to all that deliver it.
func (r *tunnels) everyTunnel(ctx context.Context, _ client.Object) []reconcile.Request {
	return tunnelRequests(ctx, r.client, r.log)
}

// tunnelWorkers is how many Clusters are reconciled at a time.
const tunnelWorkers = 16
