package tunnel

import (
	"context"
	"fmt"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/controller/controllerutil"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	"github.com/fairlead/fairlead/api/v1alpha1"
	"github.com/fairlead/fairlead/pkg/controller/objects"
	"github.com/fairlead/fairlead/pkg/decision"
)

// Waits reports whether a Tunnel waits for its Cluster, which will be moved here. When the Cluster arrives, clusterctl
// replaces the Tunnel's metadata and spec, including the annotation; the status, with the tokens and the edges, stays.
func Waits(tunnel *v1alpha1.Tunnel) bool {
	_, ok := tunnel.PreparedUntil()
	return ok && !objects.HasPause(tunnel)
}

// Prepare creates or keeps what the edges of a Tunnel require to enrol before its Cluster exists: it records the id,
// then creates a token and a bootstrap Secret. Nothing is served. A Tunnel that has waited too long ends, unless
// arrived reports that what it waits for exists. The Tunnel must be one that Waits.
func (r *Reconciler) Prepare(
	ctx context.Context, of *v1alpha1.Tunnel, arrived func(context.Context) (bool, error),
) (reconcile.Result, error) {
	until, _ := of.PreparedUntil()
	now := r.Now()
	if !now.Before(until) {
		return reconcile.Result{}, r.endPrepared(ctx, of, arrived)
	}
	tunnel := of.DeepCopy()
	if controllerutil.AddFinalizer(tunnel, v1alpha1.TunnelFinalizer) {
		if err := r.Client.Patch(ctx, tunnel, objects.LockedPatch(of)); err != nil {
			return reconcile.Result{}, objects.Wrap("completing Tunnel", err)
		}
	}
	candidate := decision.PreparedCandidate(tunnel)
	resolution, b, err := r.Decide(ctx, tunnel, Claim{Candidate: &candidate, Enrols: true, Condition: func(
		resolution decision.Resolution,
	) metav1.Condition {
		if resolution.Fatal != nil {
			return accepted(resolution)
		}
		return waitingForCluster(until)
	}})
	if err != nil {
		return reconcile.Result{}, err
	}
	if resolution.Fatal == nil {
		if err := r.revivePrepared(ctx, tunnel); err != nil {
			return reconcile.Result{}, err
		}
	}
	result, err := r.Deliver(ctx, nil, tunnel, b)
	if left := until.Sub(now); result.RequeueAfter == 0 || result.RequeueAfter > left {
		result.RequeueAfter = left
	}
	return result, err
}

// waitingForCluster returns the condition of a Tunnel that waits for its Cluster. It is Unknown and not False, because
// nothing is wrong.
func waitingForCluster(until time.Time) metav1.Condition {
	return metav1.Condition{
		Type: v1alpha1.ConditionAccepted, Status: metav1.ConditionUnknown, Reason: v1alpha1.ReasonWaitingForCluster,
		Message: fmt.Sprintf(
			"edges may enrol, and nothing is served until its Cluster is moved here; the deadline is %s",
			until.UTC().Format(time.RFC3339),
		),
	}
}

// clusterExists returns a function that reports whether a Cluster exists. It reads from the apiserver.
func (r *Reconciler) clusterExists(key client.ObjectKey) func(context.Context) (bool, error) {
	return func(ctx context.Context) (bool, error) {
		cluster, err := objects.Get(ctx, r.Live, key, &clusterv1.Cluster{})
		return cluster != nil, objects.Wrap("reading Cluster", err)
	}
}

// endPrepared ends a Tunnel whose Cluster has not arrived in time. Its edges are denied only here: the installation
// that serves them has its own record. If what it waits for exists, which may be in the middle of the move, the Tunnel
// stays.
func (r *Reconciler) endPrepared(
	ctx context.Context, tunnel *v1alpha1.Tunnel, arrived func(context.Context) (bool, error),
) error {
	if exists, err := arrived(ctx); err != nil || exists {
		return err
	}
	r.Log.Info(
		"tunnel ended: its Cluster was not moved here in time", "name", client.ObjectKeyFromObject(tunnel).String(),
		"tunnel", tunnel.ClaimedID(),
	)
	return r.Drop(ctx, tunnel, neverHeldID(tunnel))
}

// neverHeldID reports whether a Tunnel never had the right to its id, so that ending it must not end the tunnel of
// another one.
func neverHeldID(tunnel *v1alpha1.Tunnel) bool {
	_, prepared := tunnel.Annotations[v1alpha1.PreparedAnnotation]
	return prepared && tunnel.HeldID() == ""
}

// revivePrepared removes a tunnel from the record of ended tunnels here: it was moved away before, or an earlier
// preparation expired.
func (r *Reconciler) revivePrepared(ctx context.Context, tunnel *v1alpha1.Tunnel) error {
	id := tunnel.HeldID()
	if id == "" || !r.ended.Has(id) {
		return nil
	}
	return r.ended.Revive(ctx, id, func() (bool, error) {
		now, err := objects.Get(ctx, r.Live, client.ObjectKeyFromObject(tunnel), &v1alpha1.Tunnel{})
		if err != nil || now == nil {
			return false, objects.Wrap("reading Tunnel", err)
		}
		_, waits := now.PreparedUntil()
		return waits && now.HeldID() == id, nil
	})
}
