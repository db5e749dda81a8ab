// Package reconciler has what the setup of every reconciler shares: its dependencies, workers and retries, trace spans,
// caches of the metadata of Secrets, indexes of the cache, and shared event handlers and predicates. It contains no
// reconciler, and does not know what one does.
package reconciler

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
	"github.com/fairlead/fairlead/internal/retry"
	"github.com/fairlead/fairlead/pkg/controller/condition"
	"github.com/fairlead/fairlead/pkg/controller/config"
	"github.com/fairlead/fairlead/pkg/controller/objects"
)

// HasLabel selects the objects that have a label with any value. The label is one of ours and always valid.
func HasLabel(label string) labels.Selector {
	requirement, err := labels.NewRequirement(label, selection.Exists, nil)
	if err != nil {
		panic(err)
	}
	return labels.NewSelector().Add(*requirement)
}

// SecretMetadata returns an empty object that stands for the metadata of a Secret.
func SecretMetadata() *metav1.PartialObjectMetadata {
	o := &metav1.PartialObjectMetadata{}
	o.SetGroupVersionKind(corev1.SchemeGroupVersion.WithKind("Secret"))
	return o
}

// SecretCache returns a separate cache for some Secrets, because a cache has one selector per kind. It holds only
// metadata, which is enough to notice a change and contains no key.
func SecretCache(mgr ctrl.Manager, which cache.ByObject) (cache.Cache, error) {
	c, err := cache.New(mgr.GetConfig(), cache.Options{
		HTTPClient: mgr.GetHTTPClient(), Scheme: mgr.GetScheme(), Mapper: mgr.GetRESTMapper(),
		ByObject:         map[client.Object]cache.ByObject{SecretMetadata(): which},
		DefaultTransform: cache.TransformStripManagedFields(),
	})
	if err != nil {
		return nil, fmt.Errorf("creating cache of Secrets: %w", err)
	}
	return c, mgr.Add(c)
}

// TunnelRequests enqueues all Tunnels of a list.
func TunnelRequests(
	ctx context.Context, from client.Reader, log *slog.Logger, which ...client.ListOption,
) []reconcile.Request {
	return someTunnels(ctx, from, log, func(*v1alpha1.Tunnel) bool { return true }, which...)
}

func someTunnels(
	ctx context.Context, from client.Reader, log *slog.Logger, are func(*v1alpha1.Tunnel) bool,
	which ...client.ListOption,
) []reconcile.Request {
	var list v1alpha1.TunnelList
	// Only the names are read. A copy of all Tunnels of a large fleet is 1 GB.
	which = append([]client.ListOption{client.UnsafeDisableDeepCopy}, which...)
	if err := from.List(ctx, &list, which...); err != nil {
		if ctx.Err() == nil {
			log.Error("cannot list Tunnels", "error", err)
		}
		return nil
	}
	var requests []reconcile.Request
	for i := range list.Items {
		if are(&list.Items[i]) {
			requests = append(requests, reconcile.Request{NamespacedName: client.ObjectKeyFromObject(&list.Items[i])})
		}
	}
	return requests
}

// Later is the error of a reconciliation that must be repeated after a wait. It is not a fault.
type Later struct{ Wait time.Duration }

// Error implements error.
func (e Later) Error() string { return fmt.Sprintf("retry in %s", e.Wait) }

// Retry converts an error of a reconciliation into its result for controller-runtime. A conflict and Later are not
// faults: the object is reconciled again after a moment, without the backoff of a fault.
func Retry(result reconcile.Result, err error) (reconcile.Result, error) {
	var later Later
	switch {
	case objects.Conflict(err):
		return reconcile.Result{RequeueAfter: afterConflict.Wait(0)}, nil
	case errors.As(err, &later):
		return reconcile.Result{RequeueAfter: later.Wait}, nil
	case err != nil:
		return reconcile.Result{}, err
	}
	return result, nil
}

// Deps are the dependencies of every reconciler.
type Deps struct {
	Config   config.Config
	Client   client.Client // reads from the cache
	Live     client.Reader // reads from the apiserver
	Recorder events.EventRecorder
	Log      *slog.Logger
	Now      func() time.Time
}

// Remaining returns how much of a period is left that began at a time; 0: it is over. Deps.Now can go back, so a period
// that seems to begin later counts as over: it would otherwise last for as long as the clock was wrong.
func Remaining(began time.Time, period time.Duration, now time.Time) time.Duration {
	age := now.Sub(began)
	if age < 0 {
		return 0
	}
	return max(0, period-age)
}

// LiveStateIgnored passes updates of a Tunnel unless only its live state, which changes often, differs.
func LiveStateIgnored() predicate.Predicate {
	return predicate.Funcs{UpdateFunc: func(e event.UpdateEvent) bool {
		before, okBefore := e.ObjectOld.(*v1alpha1.Tunnel)
		after, okAfter := e.ObjectNew.(*v1alpha1.Tunnel)
		return okBefore && okAfter && !equality.Semantic.DeepEqual(withoutLive(before), withoutLive(after))
	}}
}

func withoutLive(tunnel *v1alpha1.Tunnel) *v1alpha1.Tunnel {
	t := *tunnel // nothing that it shares with the original is changed
	t.ResourceVersion, t.Status.Edges = "", nil
	t.Status.Conditions = slices.DeleteFunc(
		slices.Clone(t.Status.Conditions), func(c metav1.Condition) bool { return condition.IsLive(c.Type) },
	)
	return &t
}

// Options gives each object its own retries, so that a failing object does not delay others.
func Options(workers int, kind string, log *slog.Logger) controller.Options {
	logger := logr.FromSlogHandler(log.Handler())
	return controller.Options{
		MaxConcurrentReconciles: workers,
		RateLimiter: workqueue.NewTypedItemExponentialFailureRateLimiter[reconcile.Request](
			firstRetry, lastRetry,
		),
		LogConstructor: func(request *reconcile.Request) logr.Logger {
			if request == nil {
				return logger
			}
			return logger.WithValues(kind, strings.TrimPrefix(request.String(), "/"))
		},
	}
}

// ByName maps a Secret to the Cluster that its name begins with.
func ByName(suffix string) handler.EventHandler {
	return handler.EnqueueRequestsFromMapFunc(func(_ context.Context, o client.Object) []reconcile.Request {
		name, ok := strings.CutSuffix(o.GetName(), suffix)
		if !ok {
			return nil
		}
		return []reconcile.Request{{NamespacedName: client.ObjectKey{Namespace: o.GetNamespace(), Name: name}}}
	})
}

// Named selects the object with a namespace and a name.
func Named(namespace, name string) predicate.Predicate {
	return predicate.NewPredicateFuncs(func(o client.Object) bool {
		return o.GetNamespace() == namespace &&
			o.GetName() == name
	})
}

// ConflictDelay is the longest wait after a conflict. Usually the cache has the other write by then.
const ConflictDelay = 100 * time.Millisecond

var afterConflict = retry.Backoff{Min: ConflictDelay, Max: ConflictDelay}

// Leading is a part of the manager that runs only while this process leads.
type Leading struct{ Run func(context.Context) error }

// Start implements manager.Runnable.
func (l Leading) Start(ctx context.Context) error { return l.Run(ctx) }

// NeedLeaderElection implements manager.LeaderElectionRunnable.
func (Leading) NeedLeaderElection() bool { return true }

// EnqueueTunnels enqueues the Tunnels with the ids of a queue until ctx ends. An empty id stands for all Tunnels, which
// get low priority, so that no other event waits for them. An id that no Tunnel has is dropped.
func EnqueueTunnels(ctx context.Context, from client.Reader, log *slog.Logger, ids workqueue.TypedInterface[string],
	queue workqueue.TypedRateLimitingInterface[reconcile.Request],
) {
	defer context.AfterFunc(ctx, ids.ShutDown)()
	for {
		id, end := ids.Get()
		if end {
			return
		}
		var which []client.ListOption
		priority := handler.LowPriority
		if id != "" {
			which, priority = []client.ListOption{client.MatchingFields{TunnelIDIndex: id}}, 0
		}
		Enqueue(queue, priority, TunnelRequests(ctx, from, log.With("tunnel", id), which...)...)
		ids.Done(id)
	}
}

// EveryReplica also runs in replicas that do not lead.
type EveryReplica struct{ Run func(context.Context) error }

// Start implements manager.Runnable.
func (e EveryReplica) Start(ctx context.Context) error { return e.Run(ctx) }

// NeedLeaderElection implements manager.LeaderElectionRunnable.
func (EveryReplica) NeedLeaderElection() bool { return false }

// The retries of one object never delay those of another.
const firstRetry, lastRetry = 200 * time.Millisecond, 5 * time.Minute
