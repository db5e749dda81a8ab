package controller

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"time"

	"github.com/go-logr/logr"
	admissionv1 "k8s.io/api/admissionregistration/v1"
	certificatesv1 "k8s.io/api/certificates/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/tools/events"
	"k8s.io/client-go/util/workqueue"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/builder"
	"sigs.k8s.io/controller-runtime/pkg/cache"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/controller"
	"sigs.k8s.io/controller-runtime/pkg/event"
	"sigs.k8s.io/controller-runtime/pkg/handler"
	"sigs.k8s.io/controller-runtime/pkg/predicate"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"
	"sigs.k8s.io/controller-runtime/pkg/source"

	"github.com/fairlead/fairlead/api/v1alpha1"
	"github.com/fairlead/fairlead/pkg/kubeconfig"
	"github.com/fairlead/fairlead/pkg/model"
)

const (
	// Workers: a lookup of a hostname or a slow answer of the apiserver holds up one of them.
	tunnelWorkers     = 16
	kubeconfigWorkers = 16
	liveWorkers       = 8
	signerWorkers     = 4
	// Retries of one object, which never wait for those of another.
	firstRetry, lastRetry = 200 * time.Millisecond, 5 * time.Minute
)

// NewScheme returns a scheme with every type that the controller reads or writes.
func NewScheme() (*runtime.Scheme, error) {
	scheme := runtime.NewScheme()
	for _, add := range []func(*runtime.Scheme) error{corev1.AddToScheme, certificatesv1.AddToScheme, admissionv1.AddToScheme, clusterv1.AddToScheme, v1alpha1.AddToScheme} {
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
	figures := newFigures(mgr, config)
	if config.Metrics != nil {
		if err := config.Metrics.Register(figures); err != nil {
			return fmt.Errorf("registering figures: %w", err)
		}
	}
	parts := parts{
		figures: figures,
		config:  config, client: counting{mgr.GetClient(), figures}, live: mgr.GetAPIReader(), recorder: mgr.GetEventRecorder("fairlead.dev/controller"), log: log, now: config.clock(), apiserver: mgr.GetConfig().Host,
	}
	ended := &endedTunnels{client: parts.client, live: parts.live, namespace: config.Namespace, now: parts.now}
	names := &registry{}
	tunnels, kubeconfigs := parts.tunnels(ended, names), parts.kubeconfigs(names)
	tunnels.wake = kubeconfigs.wake
	err := errors.Join(
		addIndexes(mgr),
		wrap("setting up tunnels", tunnels.setup(mgr)),
		wrap("setting up kubeconfigs", kubeconfigs.setup(mgr)),
		wrap("setting up live status", parts.setupLive(mgr, ended)),
		wrap("setting up webhook", parts.setupWebhook(mgr)),
		wrap("setting up copies", parts.setupCopies(mgr)),
		wrap("setting up the comparison of informers", parts.setupInformers(mgr)),
	)
	if config.NoTunnels || err != nil {
		return err
	}
	return errors.Join(
		wrap("setting up signer", (&signer{config: config, client: parts.client, live: parts.live, log: log, now: parts.now, recorder: parts.recorder}).setup(mgr)),
		wrap("setting up installation", parts.installation(ended).setup(mgr)),
	)
}

// parts are what the controllers are made of; apiserver is that of the management cluster, as the controller reaches it.
type parts struct {
	config    Config
	client    client.Client // reads come from the cache
	live      client.Reader // reads come from the apiserver
	recorder  events.EventRecorder
	log       *slog.Logger
	now       func() time.Time
	figures   *figures
	apiserver string
}

func (p parts) tunnels(ended *endedTunnels, names *registry) *tunnels {
	return &tunnels{
		config: p.config, client: p.client, live: p.live, recorder: p.recorder, log: p.log, now: p.now, ended: ended,
		clusterStatus: clusterStatus{p.client}, names: names,
	}
}

func (p parts) installation(ended *endedTunnels) *installation {
	return &installation{config: p.config, client: p.client, live: p.live, recorder: p.recorder, log: p.log, now: p.now, ended: ended}
}

func (p parts) liveStatus(view liveView, ended *endedTunnels) *liveStatus {
	writes := newStatusWrites(p.config.StatusWrites)
	p.figures.follow(writes)
	return &liveStatus{
		config: p.config, client: p.client, live: p.live, recorder: p.recorder, log: p.log, now: p.now, view: view, ended: ended,
		clusterStatus: clusterStatus{p.client}, writes: writes,
	}
}

// setupLive adds the controller of live state, and what it asks, if there is somebody to ask.
func (p parts) setupLive(mgr ctrl.Manager, ended *endedTunnels) error {
	changed := workqueue.NewTyped[string]()
	if p.config.NoTunnels {
		return p.liveStatus(nil, ended).setup(mgr, changed)
	}
	if p.config.XDSServer == (model.Endpoint{}) {
		p.log.Warn("no xds-server is named: nothing will be known of the state of tunnels")
		return p.liveStatus(nil, ended).setup(mgr, changed)
	}
	view := newView(p.config, p.client, p.live, p.log, changed)
	if err := mgr.Add(leading{view.Run}); err != nil {
		return fmt.Errorf("adding view of xds-servers: %w", err)
	}
	return errors.Join(p.liveStatus(view, ended).setup(mgr, changed), p.setupBoots(mgr, view), p.setupRollout(mgr, view))
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

func (r *liveStatus) setup(mgr ctrl.Manager, changed workqueue.TypedInterface[string]) error {
	return ctrl.NewControllerManagedBy(mgr).
		Named("live").
		For(&v1alpha1.Tunnel{}).
		Watches(&clusterv1.Cluster{}, &handler.EnqueueRequestForObject{}, builder.WithPredicates(predicate.Or[client.Object](
			predicate.GenerationChangedPredicate{}, predicate.AnnotationChangedPredicate{}, ourConditionChanged()))).
		WatchesRawSource(source.Func(func(ctx context.Context, queue workqueue.TypedRateLimitingInterface[reconcile.Request]) error {
			go wakeTunnels(ctx, r.client, r.log, changed, queue)
			go r.writes.run(ctx, func(key client.ObjectKey) { queue.Add(reconcile.Request{NamespacedName: key}) })
			return nil
		})).
		WithOptions(options(liveWorkers, "cluster", r.log)).
		Complete(traced{"live", r})
}

// moreThanLiveChanged says that something else of a Tunnel has changed than its live state, which changes often.
func moreThanLiveChanged() predicate.Predicate {
	return predicate.Funcs{UpdateFunc: func(e event.UpdateEvent) bool {
		before, okBefore := e.ObjectOld.(*v1alpha1.Tunnel)
		after, okAfter := e.ObjectNew.(*v1alpha1.Tunnel)
		return okBefore && okAfter && !equality.Semantic.DeepEqual(withoutLive(before), withoutLive(after))
	}}
}

func withoutLive(tunnel *v1alpha1.Tunnel) *v1alpha1.Tunnel {
	t := *tunnel // nothing that it shares with the original is changed
	t.ResourceVersion, t.Status.Edges = "", nil
	t.Status.Conditions = slices.DeleteFunc(slices.Clone(t.Status.Conditions), func(c metav1.Condition) bool { return isLive(c.Type) })
	return &t
}

// ourConditionChanged says that somebody has touched the condition that is ours on a Cluster: the cache keeps no other.
func ourConditionChanged() predicate.Predicate {
	return predicate.Funcs{UpdateFunc: func(e event.UpdateEvent) bool {
		before, okBefore := e.ObjectOld.(*clusterv1.Cluster)
		after, okAfter := e.ObjectNew.(*clusterv1.Cluster)
		return okBefore && okAfter && !equality.Semantic.DeepEqual(before.Status.Conditions, after.Status.Conditions)
	}}
}

func (r *signer) setup(mgr ctrl.Manager) error {
	return ctrl.NewControllerManagedBy(mgr).
		Named("signer").
		For(&certificatesv1.CertificateSigningRequest{}, builder.WithPredicates(predicate.NewPredicateFuncs(func(o client.Object) bool {
			csr, ok := o.(*certificatesv1.CertificateSigningRequest)
			return ok && open(csr)
		}))).
		WithOptions(options(signerWorkers, "request", r.log)).
		Complete(traced{"signer", r})
}

func (r *installation) setup(mgr ctrl.Manager) error {
	key := client.ObjectKey{Namespace: r.config.Namespace, Name: v1alpha1.InstallationConfigMapName}
	sources, err := secretCache(mgr, cache.ByObject{Namespaces: map[string]cache.Config{
		key.Namespace: {FieldSelector: fields.OneTermEqualSelector(metav1.ObjectNameField, v1alpha1.CASecretName)},
	}})
	if err != nil {
		return err
	}
	toInstallation := handler.EnqueueRequestsFromMapFunc(func(context.Context, client.Object) []reconcile.Request {
		return []reconcile.Request{{NamespacedName: key}}
	})
	return ctrl.NewControllerManagedBy(mgr).
		Named("installation").
		For(&corev1.ConfigMap{}, builder.WithPredicates(named(key.Namespace, key.Name))).
		WatchesRawSource(source.Kind[client.Object](sources, secretMetadata(), toInstallation)).
		// The first time there is no ConfigMap that could be seen.
		WatchesRawSource(source.Func(func(_ context.Context, queue workqueue.TypedRateLimitingInterface[reconcile.Request]) error {
			queue.Add(reconcile.Request{NamespacedName: key})
			return nil
		})).
		WithOptions(options(1, "configmap", r.log)).
		Complete(traced{"installation", r})
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
	return tunnelRequests(ctx, r.client, r.log)
}

func named(namespace, name string) predicate.Predicate {
	return predicate.NewPredicateFuncs(func(o client.Object) bool { return o.GetNamespace() == namespace && o.GetName() == name })
}
