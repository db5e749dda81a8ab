package tunnel

import (
	corev1 "k8s.io/api/core/v1"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/builder"
	"sigs.k8s.io/controller-runtime/pkg/cache"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/handler"
	"sigs.k8s.io/controller-runtime/pkg/predicate"
	"sigs.k8s.io/controller-runtime/pkg/source"

	"github.com/fairlead/fairlead/api/v1alpha1"
	"github.com/fairlead/fairlead/pkg/controller/condition"
	"github.com/fairlead/fairlead/pkg/controller/reconciler"
	"github.com/fairlead/fairlead/pkg/controller/records"
	"github.com/fairlead/fairlead/pkg/kubeconfig"
)

// New returns the reconciler of Tunnels of Clusters. It calls notify for each Tunnel whose rights may have changed, and
// for each change of a Tunnel of a network or of apiservers and of its bootstrap Secret.
func New(p reconciler.Deps, ended *records.EndedTunnels, restorer Restorer, notify func(client.ObjectKey)) *Reconciler {
	return &Reconciler{
		Deps:          p,
		restorer:      restorer,
		notify:        notify,
		ended:         ended,
		clusterStatus: condition.ClusterWriter{Client: p.Client},
		names:         &registry{},
	}
}

// Complete sets what completes the first status of a Tunnel, in this order. It must be called before the start.
func (r *Reconciler) Complete(initial ...Initial) { r.initial = initial }

// Setup adds the reconciler to a manager. It starts nothing.
func (r *Reconciler) Setup(mgr ctrl.Manager) error {
	build := ctrl.NewControllerManagedBy(mgr).
		Named("tunnel").
		// Cluster API writes the status of a Cluster often, and nothing here depends on it.
		For(&clusterv1.Cluster{}, builder.WithPredicates(predicate.Or[client.Object](
			predicate.GenerationChangedPredicate{}, predicate.LabelChangedPredicate{}, predicate.AnnotationChangedPredicate{}))).
		Watches(&clusterv1.Cluster{}, unseenFirst(r.Config.AllClusters)).
		Watches(
			&v1alpha1.Tunnel{}, &handler.EnqueueRequestForObject{}, builder.WithPredicates(reconciler.LiveStateIgnored()),
		).
		Watches(&corev1.Secret{}, reconciler.ByName(kubeconfig.Suffix)).
		WatchesRawSource(source.Func(r.queue.Begin)).
		WithOptions(reconciler.Options(tunnelWorkers, "cluster", r.Log))
	if r.Config.NoTunnels { // no edge enrols
		return build.Complete(reconciler.Traced{Name: "tunnel", Reconciler: r})
	}
	bootstraps, err := reconciler.SecretCache(mgr, cache.ByObject{Label: reconciler.HasLabel(v1alpha1.BootstrapLabel)})
	if err != nil {
		return err
	}
	return build.
		Watches(
			&corev1.ConfigMap{}, r.OnTrustBundle((*v1alpha1.Tunnel).OfCluster),
			builder.WithPredicates(reconciler.Named(r.Config.Namespace, v1alpha1.InstallationConfigMapName)),
		).
		WatchesRawSource(source.Kind[client.Object](
			bootstraps, reconciler.SecretMetadata(), reconciler.ByName(v1alpha1.BootstrapSecretSuffix),
		)).
		WatchesRawSource(source.Kind[client.Object](
			bootstraps, reconciler.SecretMetadata(), reconciler.ByName(v1alpha1.BootReportSecretSuffix),
		)).
		WatchesRawSource(source.Kind[client.Object](
			bootstraps, reconciler.SecretMetadata(), reconciler.ByName(v1alpha1.EdgeResourcesSecretSuffix),
		)).
		Complete(reconciler.Traced{Name: "tunnel", Reconciler: r})
}

// tunnelWorkers is how many Clusters are reconciled concurrently.
const tunnelWorkers = 16
