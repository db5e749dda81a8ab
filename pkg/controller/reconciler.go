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
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/selection"
	"k8s.io/client-go/tools/events"
	"k8s.io/client-go/util/workqueue"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/cache"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/controller"
	"sigs.k8s.io/controller-runtime/pkg/event"
	"sigs.k8s.io/controller-runtime/pkg/handler"
	"sigs.k8s.io/controller-runtime/pkg/predicate"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	"github.com/fairlead/fairlead/api/v1alpha1"
)

// mustSelect selects the objects that have a label, whatever its value. The label is one of ours and always valid.
func mustSelect(label string) labels.Selector {
	requirement, err := labels.NewRequirement(label, selection.Exists, nil)
	if err != nil {
		panic(err)
	}
	return labels.NewSelector().Add(*requirement)
}

func secretMetadata() *metav1.PartialObjectMetadata {
	o := &metav1.PartialObjectMetadata{}
	o.SetGroupVersionKind(corev1.SchemeGroupVersion.WithKind("Secret"))
	return o
}

// secretCache is a cache of its own for some Secrets, because a cache has one selector for one kind. It holds their metadata
// alone: enough to see that somebody has changed one, and no key.
func secretCache(mgr ctrl.Manager, which cache.ByObject) (cache.Cache, error) {
	c, err := cache.New(mgr.GetConfig(), cache.Options{
		HTTPClient: mgr.GetHTTPClient(), Scheme: mgr.GetScheme(), Mapper: mgr.GetRESTMapper(),
		ByObject:         map[client.Object]cache.ByObject{secretMetadata(): which},
		DefaultTransform: cache.TransformStripManagedFields(),
	})
	if err != nil {
		return nil, fmt.Errorf("making cache of Secrets: %w", err)
	}
	return c, mgr.Add(c)
}

// tunnelRequests has all Tunnels of a list reconciled.
func tunnelRequests(ctx context.Context, from client.Reader, log *slog.Logger, which ...client.ListOption) []reconcile.Request {
	var list v1alpha1.TunnelList
	if err := from.List(ctx, &list, which...); err != nil {
		if ctx.Err() == nil {
			log.Error("Tunnels can't be listed", "error", err)
		}
		return nil
	}
	var requests []reconcile.Request
	for i := range list.Items {
		requests = append(requests, reconcile.Request{NamespacedName: client.ObjectKeyFromObject(&list.Items[i])})
	}
	return requests
}

// errLater ends a reconciliation that is to be repeated after wait. It is no fault.
type errLater struct{ wait time.Duration }

// Error implements error.
func (e errLater) Error() string { return fmt.Sprintf("retry in %s", e.wait) }

// retry returns what a reconciliation returns to controller-runtime. A conflict and errLater are no faults: the object is
// reconciled again after a moment, without the backoff of a fault.
func retry(result reconcile.Result, err error) (reconcile.Result, error) {
	var later errLater
	switch {
	case conflict(err):
		return reconcile.Result{RequeueAfter: conflictDelay}, nil
	case errors.As(err, &later):
		return reconcile.Result{RequeueAfter: later.wait}, nil
	case err != nil:
		return reconcile.Result{}, err
	}
	return result, nil
}

// deps are what every reconciler is made of.
type deps struct {
	config   Config
	client   client.Client // reads come from the cache
	live     client.Reader // reads come from the apiserver
	recorder events.EventRecorder
	log      *slog.Logger
	now      func() time.Time
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

// named selects the object with a namespace and a name.
func named(namespace, name string) predicate.Predicate {
	return predicate.NewPredicateFuncs(func(o client.Object) bool { return o.GetNamespace() == namespace && o.GetName() == name })
}

// conflictDelay is how long to wait after somebody else was faster: until the cache has seen it, as a rule.
const conflictDelay = 100 * time.Millisecond

// leading is a part of the manager that runs only while this process leads.
type leading struct{ run func(context.Context) error }

// Start implements manager.Runnable.
func (l leading) Start(ctx context.Context) error { return l.run(ctx) }

// NeedLeaderElection implements manager.LeaderElectionRunnable.
func (leading) NeedLeaderElection() bool { return true }

// wakeTunnels has the Tunnels with these ids reconciled until ctx ends. An empty id stands for all of them; one that no Tunnel has
// is dropped.
func wakeTunnels(ctx context.Context, from client.Reader, log *slog.Logger, ids workqueue.TypedInterface[string],
	queue workqueue.TypedRateLimitingInterface[reconcile.Request],
) {
	defer context.AfterFunc(ctx, ids.ShutDown)()
	for {
		id, end := ids.Get()
		if end {
			return
		}
		var which []client.ListOption
		if id != "" {
			which = []client.ListOption{client.MatchingFields{tunnelIDIndex: id}}
		}
		for _, request := range tunnelRequests(ctx, from, log.With("tunnel", id), which...) {
			queue.Add(request)
		}
		ids.Done(id)
	}
}

// everywhere is run by replicas that don't lead too.
type everywhere struct{ run func(context.Context) error }

func (e everywhere) Start(ctx context.Context) error { return e.run(ctx) }

func (everywhere) NeedLeaderElection() bool { return false }

// Retries of one object, which never wait for those of another.
const firstRetry, lastRetry = 200 * time.Millisecond, 5 * time.Minute
