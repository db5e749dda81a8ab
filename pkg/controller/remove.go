package controller

import (
	"context"
	"errors"

	"k8s.io/apimachinery/pkg/api/equality"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/controller/controllerutil"

	"github.com/fairlead/fairlead/api/v1alpha1"
	"github.com/fairlead/fairlead/pkg/model"
)

// remove takes the tunnel away from a Cluster that lives on: first its clients, then what they used.
func (r *tunnels) remove(ctx context.Context, o objects) error {
	if err := r.giveBack(ctx, o); err != nil {
		return err
	}
	if o.tunnel == nil {
		return nil
	}
	return r.drop(ctx, o.tunnel)
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
	r.log.Info("tunnel ended: its Cluster is gone", "cluster", o.key.String(), "tunnel", o.tunnel.Spec.ID)
	return r.drop(ctx, o.tunnel)
}

// drop deletes a Tunnel with its bootstrap Secret and lets it go.
func (r *tunnels) drop(ctx context.Context, tunnel *v1alpha1.Tunnel) error {
	if err := r.deleteBootstrapSecret(ctx, tunnel); err != nil {
		return err
	}
	free := tunnel.DeepCopy()
	if controllerutil.RemoveFinalizer(free, v1alpha1.TunnelFinalizer) {
		if err := r.client.Patch(ctx, free, lockedPatch(tunnel)); err != nil {
			return client.IgnoreNotFound(wrap("releasing Tunnel", err))
		}
	}
	if !tunnel.DeletionTimestamp.IsZero() {
		return nil
	}
	err := r.client.Delete(ctx, free, client.Preconditions{UID: &free.UID})
	return client.IgnoreNotFound(wrap("deleting Tunnel", err))
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
