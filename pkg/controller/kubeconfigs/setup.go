package kubeconfigs

import (
	"context"
	"net"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	apimeta "k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
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

// New returns the reconciler of kubeconfigs. names are the names that Tunnels hold; apiserver is the address of the
// management cluster's apiserver, which is never dialled as a proxy.
func New(p reconciler.Deps, names NameHolders, apiserver string) *Reconciler {
	// The resolver's pauses are measured on this machine alone.
	r := &Reconciler{
		Deps:     p,
		names:    names,
		resolver: &resolver{mode: p.Config.DNS, lookup: net.DefaultResolver.LookupHost, now: time.Now},
		rule:     newDialRule(p.Config, apiserver),
	}
	r.handshake = func(ctx context.Context, leg proxyLeg) error { return leg.handshake(ctx, r.rule.dialer(ctx, false)) }
	r.previous, r.checks = newPreviousEndpoints(p.Now, r.Notify, r.rule), newProxyChecks(p.Now)
	return r
}

// Notify enqueues a kubeconfig. It may be called before the queue exists: all kubeconfigs are reconciled soon after the
// start.
func (r *Reconciler) Notify(key client.ObjectKey) { r.queue.Add(key) }

// Setup adds the reconciler to a manager. It starts nothing.
func (r *Reconciler) Setup(mgr ctrl.Manager) error {
	credentials, err := reconciler.SecretCache(
		mgr, cache.ByObject{Field: fields.OneTermEqualSelector("type", string(corev1.SecretTypeBasicAuth))},
	)
	if err != nil {
		return err
	}
	return ctrl.NewControllerManagedBy(mgr).
		Named("kubeconfig").
		For(&v1alpha1.Tunnel{}, builder.WithPredicates(kubeconfigChanged())).
		Watches(&clusterv1.Cluster{}, &handler.EnqueueRequestForObject{}, builder.WithPredicates(predicate.Or[client.Object](
			predicate.GenerationChangedPredicate{}, predicate.LabelChangedPredicate{}, predicate.AnnotationChangedPredicate{}))).
		Watches(&corev1.Secret{}, reconciler.ByName(kubeconfig.Suffix)).
		WatchesRawSource(source.Kind[client.Object](
			credentials, reconciler.SecretMetadata(), handler.EnqueueRequestsFromMapFunc(r.usersOf),
		)).
		WatchesRawSource(source.Func(r.queue.Begin)).
		WithOptions(reconciler.Options(kubeconfigWorkers, "cluster", r.Log)).
		Complete(reconciler.Traced{Name: "kubeconfig", Reconciler: r})
}

// usersOf maps a Secret with credentials to the Tunnels that name it.
func (r *Reconciler) usersOf(ctx context.Context, secret client.Object) []reconcile.Request {
	return reconciler.TunnelRequests(
		ctx, r.Client, r.Log, client.InNamespace(secret.GetNamespace()),
		client.MatchingFields{reconciler.CredentialsIndex: secret.GetName()},
	)
}

// kubeconfigChanged passes updates of the Tunnel fields that a kubeconfig depends on. Most of the status, which changes
// often, is not among them.
func kubeconfigChanged() predicate.Predicate {
	return predicate.Funcs{UpdateFunc: func(e event.UpdateEvent) bool {
		before, okBefore := e.ObjectOld.(*v1alpha1.Tunnel)
		after, okAfter := e.ObjectNew.(*v1alpha1.Tunnel)
		return okBefore && okAfter && !equality.Semantic.DeepEqual(forKubeconfig(before), forKubeconfig(after))
	}}
}

// forKubeconfig returns the part of a Tunnel that a kubeconfig depends on.
func forKubeconfig(tunnel *v1alpha1.Tunnel) any {
	var conditions []metav1.Condition
	for _, kind := range append(
		[]string{v1alpha1.ConditionAccepted, v1alpha1.ConditionKubeconfigReady}, kubeconfigConditions...,
	) {
		if c := apimeta.FindStatusCondition(tunnel.Status.Conditions, kind); c != nil {
			conditions = append(conditions, *c)
		}
	}
	t := *tunnel // nothing that it shares with the original is changed
	t.ResourceVersion = ""
	t.Status = v1alpha1.TunnelStatus{
		Hostname: t.Status.Hostname, Names: t.Status.Names, Kubeconfig: t.Status.Kubeconfig, Conditions: conditions,
	}
	// A kubeconfig that leads through the tunnel does not depend on whether the tunnel is up: see keepsOriginal and
	// keepsMode.
	mode := tunnel.Status.Kubeconfig.Mode
	waiting := (mode == "" || !mode.Tunnelled()) && !usable(tunnel)
	return []any{t, records.CertificateNames(tunnel.Status.Edges, time.Time{}), waiting}
}

// kubeconfigWorkers is how many kubeconfigs are reconciled concurrently. A DNS lookup or a slow proxy delays one
// worker.
const kubeconfigWorkers = 16
