package controller

import (
	"context"
	"fmt"
	"log/slog"
	"net"
	"strings"
	"time"

	"github.com/go-logr/logr"
	certificatesv1 "k8s.io/api/certificates/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/util/workqueue"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/builder"
	"sigs.k8s.io/controller-runtime/pkg/cache"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/controller"
	"sigs.k8s.io/controller-runtime/pkg/handler"
	"sigs.k8s.io/controller-runtime/pkg/predicate"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"
	"sigs.k8s.io/controller-runtime/pkg/source"

	"github.com/fairlead/fairlead/api/v1alpha1"
)

const (
	// Workers: a lookup of a hostname or a slow answer of the apiserver holds up one of them.
	tunnelWorkers = 16
	signerWorkers = 4
	// Retries of one object, which never wait for those of another.
	firstRetry, lastRetry = 200 * time.Millisecond, 5 * time.Minute
)

// NewScheme returns a scheme with every type that the controller reads or writes.
func NewScheme() (*runtime.Scheme, error) {
	scheme := runtime.NewScheme()
	for _, add := range []func(*runtime.Scheme) error{corev1.AddToScheme, certificatesv1.AddToScheme, clusterv1.AddToScheme, v1alpha1.AddToScheme} {
		if err := add(scheme); err != nil {
			return nil, fmt.Errorf("building scheme: %w", err)
		}
	}
	return scheme, nil
}

// Setup adds all controllers to a manager whose cache was made with CacheOptions. It starts nothing.
func Setup(mgr ctrl.Manager, config Config, log *slog.Logger) error {
	if err := config.Validate(); err != nil {
		return err
	}
	recorder := mgr.GetEventRecorder("fairlead.dev/controller")
	resolver := &resolver{mode: config.DNS, lookup: net.DefaultResolver.LookupHost, now: time.Now}
	live := mgr.GetAPIReader()
	t := &tunnels{config: config, client: mgr.GetClient(), live: live, recorder: recorder, log: log, now: time.Now, resolver: resolver}
	if err := t.setup(mgr); err != nil {
		return fmt.Errorf("setting up tunnels: %w", err)
	}
	s := &signer{config: config, client: mgr.GetClient(), live: live, log: log, now: time.Now}
	if err := s.setup(mgr); err != nil {
		return fmt.Errorf("setting up signer: %w", err)
	}
	i := &installation{config: config, client: mgr.GetClient(), live: live, log: log, now: time.Now}
	if err := i.setup(mgr); err != nil {
		return fmt.Errorf("setting up installation: %w", err)
	}
	return nil
}

func (r *tunnels) setup(mgr ctrl.Manager) error {
	bootstraps, err := bootstrapCache(mgr)
	if err != nil {
		return err
	}
	return ctrl.NewControllerManagedBy(mgr).
		Named("tunnel").
		// Cluster API writes the status of a Cluster often, and nothing here depends on it.
		For(&clusterv1.Cluster{}, builder.WithPredicates(predicate.Or[client.Object](
			predicate.GenerationChangedPredicate{}, predicate.LabelChangedPredicate{}, predicate.AnnotationChangedPredicate{}))).
		Watches(&v1alpha1.Tunnel{}, &handler.EnqueueRequestForObject{}).
		Watches(&corev1.Secret{}, byName(kubeconfigSuffix)).
		Watches(&corev1.ConfigMap{}, handler.EnqueueRequestsFromMapFunc(r.everyTunnel), builder.WithPredicates(named(r.config.Namespace, v1alpha1.InstallationConfigMapName))).
		WatchesRawSource(source.Kind[client.Object](bootstraps, secretMetadata(), byName(v1alpha1.BootstrapSecretSuffix))).
		WatchesRawSource(source.Func(func(_ context.Context, queue workqueue.TypedRateLimitingInterface[reconcile.Request]) error {
			r.queue = queue
			return nil
		})).
		WithOptions(options(tunnelWorkers, "cluster", r.log)).
		Complete(r)
}

func (r *signer) setup(mgr ctrl.Manager) error {
	return ctrl.NewControllerManagedBy(mgr).
		Named("signer").
		For(&certificatesv1.CertificateSigningRequest{}, builder.WithPredicates(predicate.NewPredicateFuncs(func(o client.Object) bool {
			csr, ok := o.(*certificatesv1.CertificateSigningRequest)
			return ok && open(csr)
		}))).
		WithOptions(options(signerWorkers, "request", r.log)).
		Complete(r)
}

func (r *installation) setup(mgr ctrl.Manager) error {
	key := client.ObjectKey{Namespace: r.config.Namespace, Name: v1alpha1.InstallationConfigMapName}
	return ctrl.NewControllerManagedBy(mgr).
		Named("installation").
		For(&corev1.ConfigMap{}, builder.WithPredicates(named(key.Namespace, key.Name))).
		// The first time there is no ConfigMap that could be seen.
		WatchesRawSource(source.Func(func(_ context.Context, queue workqueue.TypedRateLimitingInterface[reconcile.Request]) error {
			queue.Add(reconcile.Request{NamespacedName: key})
			return nil
		})).
		WithOptions(options(1, "configmap", r.log)).
		Complete(r)
}

// options gives each object its own retries, so that one that fails never delays another.
func options(workers int, kind string, log *slog.Logger) controller.Options {
	logger := logr.FromSlogHandler(log.Handler())
	return controller.Options{
		MaxConcurrentReconciles: workers,
		RateLimiter:             workqueue.NewTypedItemExponentialFailureRateLimiter[reconcile.Request](firstRetry, lastRetry),
		LogConstructor: func(request *reconcile.Request) logr.Logger {
			if request == nil {
				return logger
			}
			return logger.WithValues(kind, strings.TrimPrefix(request.String(), "/"))
		},
	}
}

// byName leads from a Secret to the Cluster whose name it begins with.
func byName(suffix string) handler.EventHandler {
	return handler.EnqueueRequestsFromMapFunc(func(_ context.Context, o client.Object) []reconcile.Request {
		name, ok := strings.CutSuffix(o.GetName(), suffix)
		if !ok {
			return nil
		}
		return []reconcile.Request{{NamespacedName: client.ObjectKey{Namespace: o.GetNamespace(), Name: name}}}
	})
}

// everyTunnel leads from the trust bundle to all that deliver it.
func (r *tunnels) everyTunnel(ctx context.Context, _ client.Object) []reconcile.Request {
	var all v1alpha1.TunnelList
	if err := r.client.List(ctx, &all); err != nil {
		r.log.Error("Tunnels can't be listed", "error", err)
		return nil
	}
	var requests []reconcile.Request
	for i := range all.Items {
		requests = append(requests, reconcile.Request{NamespacedName: client.ObjectKeyFromObject(&all.Items[i])})
	}
	return requests
}

func named(namespace, name string) predicate.Predicate {
	return predicate.NewPredicateFuncs(func(o client.Object) bool { return o.GetNamespace() == namespace && o.GetName() == name })
}

func secretMetadata() *metav1.PartialObjectMetadata {
	o := &metav1.PartialObjectMetadata{}
	o.SetGroupVersionKind(corev1.SchemeGroupVersion.WithKind("Secret"))
	return o
}

// bootstrapCache is a cache of its own for bootstrap Secrets, because a cache has one selector for one kind. It holds their
// metadata alone: enough to see that somebody has changed one.
func bootstrapCache(mgr ctrl.Manager) (cache.Cache, error) {
	c, err := cache.New(mgr.GetConfig(), cache.Options{
		HTTPClient: mgr.GetHTTPClient(), Scheme: mgr.GetScheme(), Mapper: mgr.GetRESTMapper(),
		ByObject:         map[client.Object]cache.ByObject{secretMetadata(): {Label: mustSelect(v1alpha1.BootstrapLabel)}},
		DefaultTransform: cache.TransformStripManagedFields(),
	})
	if err != nil {
		return nil, fmt.Errorf("making cache of bootstrap Secrets: %w", err)
	}
	return c, mgr.Add(c)
}
