package tunnel

import (
	"context"

	apimeta "k8s.io/apimachinery/pkg/api/meta"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/controller/controllerutil"

	"github.com/fairlead/fairlead/api/v1alpha1"
	"github.com/fairlead/fairlead/pkg/controller/objects"
	"github.com/fairlead/fairlead/pkg/controller/records"
)

// deleteForMoveAnnotation is set by clusterctl on an object that it deletes because it has moved it.
const deleteForMoveAnnotation = "clusterctl.cluster.x-k8s.io/delete-for-move"

// remove removes the tunnel of a Cluster that continues to exist: first it redirects the clients, then it removes what
// they used.
func (r *Reconciler) remove(ctx context.Context, o objects.Group) error {
	tunnel, err := r.restorer.Restore(ctx, o)
	if err != nil {
		return err
	}
	if err := r.clusterStatus.Remove(ctx, o.Cluster); err != nil {
		return err
	}
	if tunnel == nil {
		return nil
	}
	r.Log.Info(
		"tunnel ended: its Cluster opted out, or its Tunnel is deleted", "cluster", o.Key.String(), "tunnel",
		tunnel.ClaimedID(),
	)
	return r.Drop(ctx, tunnel, false)
}

// end removes a Tunnel whose Cluster is gone. Its edges cannot return after that, so it reads from the apiserver: the
// cache may not have a new Cluster yet.
func (r *Reconciler) end(ctx context.Context, o objects.Group) error {
	cluster, err := objects.Get(ctx, r.Live, o.Key, &clusterv1.Cluster{})
	if err != nil {
		return objects.Wrap("reading Cluster", err)
	}
	if owner := objects.ControllingCluster(o.Tunnel); cluster != nil && (owner == nil || owner.UID == cluster.UID) {
		return nil // the cache is late; its next event comes back here
	}
	// The cache may not have the latest pause of the Cluster.
	tunnel, err := objects.Get(ctx, r.Live, o.Key, &v1alpha1.Tunnel{})
	if err != nil || tunnel == nil || tunnel.UID != o.Tunnel.UID {
		return objects.Wrap("reading Tunnel", err)
	}
	moved := WasMoved(tunnel)
	r.Log.Info("tunnel ended: its Cluster is gone",
		"cluster", o.Key.String(), "tunnel", tunnel.ClaimedID(), "moved", moved)
	return r.Drop(ctx, tunnel, moved || neverHeldID(tunnel))
}

// WasMoved reports whether a Tunnel whose Cluster is gone was moved to another installation: it was paused, as
// clusterctl does during a move, or has the annotation of clusterctl.
func WasMoved(tunnel *v1alpha1.Tunnel) bool {
	_, forMove := tunnel.Annotations[deleteForMoveAnnotation]
	return forMove || apimeta.IsStatusConditionTrue(tunnel.Status.Conditions, v1alpha1.ConditionPaused)
}

// Drop deletes a Tunnel with its bootstrap Secret and removes the finalizer. Unless the Tunnel was moved, its id is
// recorded as ended before the finalizer is removed, so a crash in between only repeats work. A Tunnel that was denied
// its id records nothing: the id is another one's.
func (r *Reconciler) Drop(ctx context.Context, tunnel *v1alpha1.Tunnel, moved bool) error {
	if !r.Config.NoTunnels {
		if err := r.deleteBootstrapSecret(ctx, tunnel); err != nil {
			return err
		}
	}
	// First, because a Tunnel that is not being deleted exists, and removes its id from the record. The finalizer keeps
	// it.
	tunnel, err := r.startDeleting(ctx, tunnel)
	if err != nil || tunnel == nil {
		return err
	}
	if id := tunnel.HeldID(); id != "" && !moved && !r.Config.NoTunnels {
		if err := r.ended.Add(ctx, id, records.ValidUntil(r.Config, tunnel, r.Now())); err != nil {
			return err
		}
	}
	free := tunnel.DeepCopy()
	if controllerutil.RemoveFinalizer(free, v1alpha1.TunnelFinalizer) {
		return client.IgnoreNotFound(objects.Wrap("releasing Tunnel", r.Client.Patch(ctx, free, objects.LockedPatch(tunnel))))
	}
	if !tunnel.DeletionTimestamp.IsZero() {
		return nil
	}
	err = r.Client.Delete(ctx, free, client.Preconditions{UID: &free.UID})
	return client.IgnoreNotFound(objects.Wrap("deleting Tunnel", err))
}

// startDeleting deletes a Tunnel that has our finalizer, and returns it as it is then; nil: it is gone.
func (r *Reconciler) startDeleting(ctx context.Context, tunnel *v1alpha1.Tunnel) (*v1alpha1.Tunnel, error) {
	if !tunnel.DeletionTimestamp.IsZero() || !controllerutil.ContainsFinalizer(tunnel, v1alpha1.TunnelFinalizer) {
		return tunnel, nil
	}
	if err := r.Client.Delete(ctx, tunnel, client.Preconditions{UID: &tunnel.UID}); err != nil {
		return nil, client.IgnoreNotFound(objects.Wrap("deleting Tunnel", err))
	}
	now, err := objects.Get(ctx, r.Live, client.ObjectKeyFromObject(tunnel), &v1alpha1.Tunnel{})
	if err != nil || now == nil || now.UID != tunnel.UID {
		return nil, objects.Wrap("reading Tunnel", err)
	}
	return now, nil
}
