package controller

import (
	"context"
	"errors"

	"k8s.io/apimachinery/pkg/api/equality"
	apimeta "k8s.io/apimachinery/pkg/api/meta"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/controller/controllerutil"

	"github.com/fairlead/fairlead/api/v1alpha1"
	"github.com/fairlead/fairlead/pkg/model"
)

// deleteForMoveAnnotation is what clusterctl puts on what it deletes because it has moved it.
const deleteForMoveAnnotation = "clusterctl.cluster.x-k8s.io/delete-for-move"

// remove takes the tunnel away from a Cluster that lives on: first its clients, then what they used.
func (r *tunnels) remove(ctx context.Context, o objects) error {
	if err := r.giveBack(ctx, o); err != nil {
		return err
	}
	if err := r.clusterStatus.remove(ctx, o.cluster); err != nil {
		return err
	}
	if o.tunnel == nil {
		return nil
	}
	r.log.Info("tunnel ended: it is not wanted any more", "cluster", o.key.String(), "tunnel", o.tunnel.Spec.ID)
	return r.drop(ctx, o.tunnel, false)
}

// giveBack restores the kubeconfig of a Cluster. One that can't be read must not keep a Tunnel for ever.
func (r *tunnels) giveBack(ctx context.Context, o objects) error {
	// Most Clusters without Tunnel never had one, and what looks like ours there, say a proxy, is their owner's.
	if o.tunnel == nil && !noted(o.kubeconfig) {
		return nil
	}
	// A lost answer of DNS changes nothing here, and a hostname that can't be built was never written.
	hostname, _ := r.config.Domain.Hostname(model.Key(o.key))
	_, err := r.writeKubeconfig(ctx, o, false, r.wayBack(o.cluster, hostname))
	if errors.Is(err, errInvalidKubeconfig) {
		return nil
	}
	return err
}

// end removes a Tunnel whose Cluster is gone. Its edges can't be let in again after that, so the apiserver is asked and
// not the cache, which may not have seen a new Cluster yet.
func (r *tunnels) end(ctx context.Context, o objects) error {
	cluster, err := get(ctx, r.live, o.key, &clusterv1.Cluster{})
	if err != nil {
		return wrap("reading Cluster", err)
	}
	if owner := controllingCluster(o.tunnel); cluster != nil && (owner == nil || owner.UID == cluster.UID) {
		return nil // the cache is late; its next event comes back here
	}
	moved := wasMoved(o.tunnel)
	r.log.Info("tunnel ended: its Cluster is gone", "cluster", o.key.String(), "tunnel", o.tunnel.Spec.ID, "moved", moved)
	return r.drop(ctx, o.tunnel, moved)
}

// wasMoved says whether a Tunnel whose Cluster is gone serves it elsewhere by now: it was paused, as clusterctl has it during
// a move, or clusterctl says so itself.
func wasMoved(tunnel *v1alpha1.Tunnel) bool {
	_, forMove := tunnel.Annotations[deleteForMoveAnnotation]
	return forMove || apimeta.IsStatusConditionTrue(tunnel.Status.Conditions, v1alpha1.ConditionPaused)
}

// drop deletes a Tunnel with its bootstrap Secret and lets it go. Unless it was moved its id is on record as ended before the
// last trace of it goes: so a crash in between only repeats something.
func (r *tunnels) drop(ctx context.Context, tunnel *v1alpha1.Tunnel, moved bool) error {
	if err := r.deleteBootstrapSecret(ctx, tunnel); err != nil {
		return err
	}
	// First, because a Tunnel that is not being deleted lives, and takes its id off the record. The finalizer keeps it.
	tunnel, err := r.startDeleting(ctx, tunnel)
	if err != nil || tunnel == nil {
		return err
	}
	if !moved && tunnel.Spec.ID != "" {
		if err := r.ended.add(ctx, tunnel.Spec.ID, r.config.validUntil(tunnel, r.now())); err != nil {
			return err
		}
	}
	free := tunnel.DeepCopy()
	if controllerutil.RemoveFinalizer(free, v1alpha1.TunnelFinalizer) {
		return client.IgnoreNotFound(wrap("releasing Tunnel", r.client.Patch(ctx, free, lockedPatch(tunnel))))
	}
	if !tunnel.DeletionTimestamp.IsZero() {
		return nil
	}
	err = r.client.Delete(ctx, free, client.Preconditions{UID: &free.UID})
	return client.IgnoreNotFound(wrap("deleting Tunnel", err))
}

// startDeleting deletes a Tunnel that has our finalizer, and returns it as it then is; nil if it is gone.
func (r *tunnels) startDeleting(ctx context.Context, tunnel *v1alpha1.Tunnel) (*v1alpha1.Tunnel, error) {
	if !tunnel.DeletionTimestamp.IsZero() || !controllerutil.ContainsFinalizer(tunnel, v1alpha1.TunnelFinalizer) {
		return tunnel, nil
	}
	if err := r.client.Delete(ctx, tunnel, client.Preconditions{UID: &tunnel.UID}); err != nil {
		return nil, client.IgnoreNotFound(wrap("deleting Tunnel", err))
	}
	now, err := get(ctx, r.live, client.ObjectKeyFromObject(tunnel), &v1alpha1.Tunnel{})
	if err != nil || now == nil || now.UID != tunnel.UID {
		return nil, wrap("reading Tunnel", err)
	}
	return now, nil
}

// writeKubeconfig makes the kubeconfig of a Cluster lead through the tunnel, or back to where its provider had it lead. It
// returns the server that clients then use. Without a Secret it does nothing.
func (r *tunnels) writeKubeconfig(ctx context.Context, o objects, through bool, way route) (server string, err error) {
	if o.kubeconfig == nil {
		return "", nil
	}
	want := o.kubeconfig.DeepCopy()
	if through {
		server, err = rewriteKubeconfig(want, o.key.Name, way)
	} else {
		err = restoreKubeconfig(want, o.key.Name, way)
	}
	if err != nil || equality.Semantic.DeepEqual(want, o.kubeconfig) {
		return server, err
	}
	if err := r.client.Patch(ctx, want, lockedPatch(o.kubeconfig)); err != nil {
		return server, wrap("writing kubeconfig Secret", err)
	}
	r.log.Info("kubeconfig written", "cluster", o.key.String(), "through_tunnel", through)
	return server, nil
}

// route is how clients of a Tunnel are to reach it.
func (r *tunnels) route(ctx context.Context, tunnel *v1alpha1.Tunnel, cluster *clusterv1.Cluster, hostname string) route {
	way := r.wayBack(cluster, hostname)
	way.mode, way.tlsServerName = tunnel.Spec.Kubeconfig.Mode, tunnel.Spec.Kubeconfig.TLSServerName
	if hostname != "" && way.mode != v1alpha1.KubeconfigModeConnect {
		way.resolves = r.resolver.resolves(ctx, hostname, r.config.APIServer.Host)
	}
	return way
}

// wayBack is what is needed to know a rewritten kubeconfig and to restore it.
func (r *tunnels) wayBack(cluster *clusterv1.Cluster, hostname string) route {
	way := route{hostname: hostname, apiServer: r.config.APIServer, connect: r.config.Connect}
	if endpoint := cluster.Spec.ControlPlaneEndpoint; endpoint.IsValid() {
		way.fallback = "https://" + endpoint.String()
	}
	return way
}
