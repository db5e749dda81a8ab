// Package issuers records how the ServiceAccount tokens of workload clusters are verified. Its input is Tunnels that
// let Pods enrol, and the issuer and the public keys that each workload cluster publishes, which it reads through the
// tunnel; its output is status.serviceAccountIssuer. It verifies no token, and dials nothing but the gateways.
package issuers

import (
	"context"
	"math/rand/v2"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/builder"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/event"
	"sigs.k8s.io/controller-runtime/pkg/predicate"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	"github.com/fairlead/fairlead/api/v1alpha1"
	"github.com/fairlead/fairlead/internal/retry"
	"github.com/fairlead/fairlead/pkg/controller/condition"
	"github.com/fairlead/fairlead/pkg/controller/objects"
	"github.com/fairlead/fairlead/pkg/controller/reconciler"
	"github.com/fairlead/fairlead/pkg/decision"
	"github.com/fairlead/fairlead/pkg/kubeconfig"
)

const (
	// refresh is how often the keys are read again while an edge is connected. An issuer publishes a new key before it
	// signs with it; a key that it withdraws is accepted for at most this long, while the tunnel is up.
	refresh = 10 * time.Minute
	// leastPause is the least time between two readings of one Tunnel, however often its edges come and go.
	leastPause = 30 * time.Second
	// workers is how many Tunnels are read concurrently.
	workers = 8
)

// retries are the waits after failed readings.
var retries = retry.Backoff{Min: leastPause, Max: refresh}

// Reconciler keeps the record of one Tunnel.
type Reconciler struct {
	reconciler.Deps
	read func(ctx context.Context, endpoint kubeconfig.Endpoint, secret *corev1.Secret, cluster string) (discovered, error)

	mu       sync.Mutex
	readings map[client.ObjectKey]reading // of existing Tunnels that let Pods enrol, now or earlier
}

// reading is the last reading of a Tunnel.
type reading struct {
	at     time.Time
	failed int // consecutive failures
}

// New returns the reconciler of issuers.
func New(p reconciler.Deps) *Reconciler {
	return &Reconciler{Deps: p, read: read, readings: map[client.ObjectKey]reading{}}
}

// Reconcile reads the issuer of one workload cluster and records it, or removes the record of a Tunnel that lets no
// Pods enrol. While no edge is connected, the record stays as it is.
func (r *Reconciler) Reconcile(ctx context.Context, request reconcile.Request) (reconcile.Result, error) {
	o, err := objects.Load(ctx, r.Client, request.NamespacedName)
	if err != nil {
		return reconcile.Result{}, err
	}
	switch action := objects.Decide(o, r.Config.AllClusters); {
	case o.Tunnel == nil || o.TunnelDeleting():
		r.forget(o.Key)
		return reconcile.Result{}, nil
	case action == objects.Leave: // such as paused: those that verify tokens read from the spec what it withdraws
		return reconcile.Result{RequeueAfter: refresh}, nil
	case action != objects.Serve || !decision.PodsEnrol(o.Tunnel, o.Cluster.UID):
		// The last reading is kept: the owner of the Tunnel decides how often its spec changes.
		return reconciler.Retry(reconcile.Result{}, r.record(ctx, o.Tunnel, nil))
	}
	before := o.Tunnel.Status.ServiceAccountIssuer
	if before == nil || before.ClusterUID != o.Cluster.UID {
		before = &v1alpha1.ServiceAccountIssuerStatus{ClusterUID: o.Cluster.UID}
	}
	if o.Tunnel.Status.ConnectedEdges == 0 {
		return reconciler.Retry(reconcile.Result{}, r.record(ctx, o.Tunnel, before))
	}
	if wait := r.pause(o.Key); wait > 0 {
		return reconcile.Result{RequeueAfter: wait}, nil
	}
	after, readErr := r.readNow(ctx, o, *before)
	err = r.record(ctx, o.Tunnel, &after)
	return reconciler.Retry(reconcile.Result{RequeueAfter: r.done(o.Key, readErr)}, err)
}

// readNow returns the record after one reading. If it fails, the keys stay, and the record has the reason.
func (r *Reconciler) readNow(
	ctx context.Context, o objects.Group, before v1alpha1.ServiceAccountIssuerStatus,
) (after v1alpha1.ServiceAccountIssuerStatus, err error) {
	after = before
	if o.Kubeconfig == nil {
		after.Error = "there is no kubeconfig Secret of the Cluster yet"
		return after, kubeconfig.ErrInvalid
	}
	endpoint, ok := kubeconfig.EndpointTo(v1alpha1.KubeconfigModeConnect, o.Tunnel, o.Kubeconfig, r.Config.Gateways())
	if !ok {
		after.Error = "the tunnel is not served yet"
		return after, kubeconfig.ErrInvalid
	}
	found, err := r.read(ctx, endpoint, o.Kubeconfig, o.Key.Name)
	if err != nil {
		after.Error = condition.Shorten(err.Error())
		return after, err
	}
	after.Error, after.Issuer, after.Keys = "", found.issuer, nil
	for _, key := range found.keys {
		after.Keys = append(after.Keys, v1alpha1.ServiceAccountKey{ID: key.ID, PublicKey: key.PublicKey})
	}
	if after.Issuer != before.Issuer || !equality.Semantic.DeepEqual(after.Keys, before.Keys) {
		after.ChangedAt = objects.TimeOrNil(r.Now())
		r.Log.Info("issuer of ServiceAccount tokens recorded", "cluster", o.Key.String(), "keys", len(after.Keys))
	}
	return after, nil
}

// record writes the record of a Tunnel if it differs. Only this reconciler writes the field, so the patch needs no
// resourceVersion: a conflict would cost another reading.
func (r *Reconciler) record(
	ctx context.Context, tunnel *v1alpha1.Tunnel, issuer *v1alpha1.ServiceAccountIssuerStatus,
) error {
	if equality.Semantic.DeepEqual(tunnel.Status.ServiceAccountIssuer, issuer) {
		return nil
	}
	want := tunnel.DeepCopy()
	want.Status.ServiceAccountIssuer = issuer
	err := r.Client.Status().Patch(ctx, want, client.MergeFrom(tunnel))
	return client.IgnoreNotFound(objects.Wrap("recording ServiceAccount issuer", err))
}

// pause returns how long to wait until the Tunnel may be read again; 0: it may be read now.
func (r *Reconciler) pause(key client.ObjectKey) time.Duration {
	r.mu.Lock()
	defer r.mu.Unlock()
	last, ok := r.readings[key]
	if !ok {
		return 0
	}
	return reconciler.Remaining(last.at, leastPause, r.Now())
}

// done counts a reading, and returns how long to wait until the next one.
func (r *Reconciler) done(key client.ObjectKey, err error) time.Duration {
	r.mu.Lock()
	defer r.mu.Unlock()
	now := reading{at: r.Now()}
	wait := refresh - rand.N(refresh/10) // spread, so that Tunnels are not read together for ever
	if err != nil {
		failed := r.readings[key].failed
		now.failed, wait = failed+1, retries.Wait(failed)
	}
	r.readings[key] = now
	return wait
}

func (r *Reconciler) forget(key client.ObjectKey) {
	r.mu.Lock()
	defer r.mu.Unlock()
	delete(r.readings, key)
}

// Setup adds the reconciler to a manager. It starts nothing.
func (r *Reconciler) Setup(mgr ctrl.Manager) error {
	return ctrl.NewControllerManagedBy(mgr).
		Named("issuers").
		For(&v1alpha1.Tunnel{}, builder.WithPredicates(matters())).
		WithOptions(reconciler.Options(workers, "cluster", r.Log)).
		Complete(reconciler.Traced{Name: "issuers", Reconciler: r})
}

// matters passes the updates of a Tunnel after which its record may have to change. While the spec lets no Pods enrol,
// and there is no record, none does.
func matters() predicate.Predicate {
	of := func(o client.Object) any {
		tunnel, ok := o.(*v1alpha1.Tunnel)
		if !ok {
			return nil
		}
		return []any{
			tunnel.Generation, tunnel.OwnerReferences, tunnel.DeletionTimestamp, objects.HasPause(tunnel),
			tunnel.HeldID(), tunnel.Status.Served, tunnel.Status.Hostname, tunnel.Status.ConnectedEdges > 0,
		}
	}
	concerned := func(o client.Object) bool {
		tunnel, ok := o.(*v1alpha1.Tunnel)
		return ok && (tunnel.Spec.EdgeServiceAccount != nil || tunnel.Status.ServiceAccountIssuer != nil)
	}
	return predicate.Funcs{
		CreateFunc: func(e event.CreateEvent) bool { return concerned(e.Object) },
		UpdateFunc: func(e event.UpdateEvent) bool {
			return (concerned(e.ObjectOld) || concerned(e.ObjectNew)) &&
				!equality.Semantic.DeepEqual(of(e.ObjectOld), of(e.ObjectNew))
		},
	}
}
