package controller

import (
	"slices"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/utils/ptr"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/controller/controllerutil"

	"github.com/fairlead/fairlead/api/v1alpha1"
	"github.com/fairlead/fairlead/pkg/decision"
	"github.com/fairlead/fairlead/pkg/model"
)

// objects are all that one reconciliation looks at. Any of them may be nil.
type objects struct {
	key        client.ObjectKey
	cluster    *clusterv1.Cluster
	tunnel     *v1alpha1.Tunnel
	kubeconfig *corev1.Secret
}

// action is what a reconciliation does.
type action int

const (
	leave  action = iota // write nothing
	serve                // make or keep the Tunnel, its Secrets and its status
	remove               // restore the kubeconfig, then remove the Tunnel and what belongs to it
	end                  // remove a Tunnel whose Cluster is gone: there is no kubeconfig to restore
	refuse               // say that the Tunnel is somebody else's
)

// decide says what is to be done.
func decide(o objects, allClusters bool) action {
	switch owner := controllingCluster(o.tunnel); {
	case owner != nil && (o.cluster == nil || o.cluster.UID != owner.UID):
		return end
	case o.cluster == nil && o.tunnel != nil && !o.tunnel.DeletionTimestamp.IsZero():
		return end // it would wait for ever for a Cluster that nobody knows
	case o.cluster == nil || paused(o):
		return leave
	case !o.cluster.DeletionTimestamp.IsZero():
		// Cluster API still needs the apiserver. Nothing is begun, and nothing ends before the Cluster is gone.
		if owner == nil {
			return leave
		}
		return serve
	case !o.tunnelGoing() && optedIn(o.cluster, allClusters):
		if owner == nil && o.tunnel != nil && metav1.GetControllerOf(o.tunnel) != nil {
			return refuse
		}
		return serve
	case o.tunnel != nil && owner == nil && !o.tunnelGoing():
		return leave // a user's Tunnel that was never taken over
	}
	return remove
}

func (o objects) tunnelGoing() bool {
	return o.tunnel != nil && !o.tunnel.DeletionTimestamp.IsZero()
}

// optedIn says whether a Cluster wants a tunnel.
func optedIn(cluster *clusterv1.Cluster, allClusters bool) bool {
	switch cluster.Labels[v1alpha1.TunnelLabel] {
	case v1alpha1.TunnelEnabled:
		return true
	case v1alpha1.TunnelDisabled:
		return false
	}
	return allClusters
}

// paused says whether Cluster API's way to hold controllers off is in use on the Cluster or its Tunnel.
func paused(o objects) bool {
	if ptr.Deref(o.cluster.Spec.Paused, false) || hasPause(o.cluster) {
		return true
	}
	return o.tunnel != nil && hasPause(o.tunnel)
}

func hasPause(o client.Object) bool {
	_, ok := o.GetAnnotations()[clusterv1.PausedAnnotation]
	return ok
}

// controllingCluster is the Cluster that a Tunnel says it belongs to, or nil.
func controllingCluster(tunnel *v1alpha1.Tunnel) *metav1.OwnerReference {
	if tunnel == nil {
		return nil
	}
	owner := metav1.GetControllerOf(tunnel)
	if owner == nil || owner.Kind != "Cluster" || owner.Name != tunnel.Name {
		return nil
	}
	if gv, err := schema.ParseGroupVersion(owner.APIVersion); err != nil || gv.Group != clusterv1.GroupVersion.Group {
		return nil
	}
	return owner
}

// ownerRef makes an object the controller of another. It does not block the owner's deletion: in a foreground deletion the
// Cluster would wait for its Tunnel, and the Tunnel for its Cluster.
func ownerRef(kind schema.GroupVersionKind, owner client.Object) metav1.OwnerReference {
	return metav1.OwnerReference{APIVersion: kind.GroupVersion().String(), Kind: kind.Kind, Name: owner.GetName(), UID: owner.GetUID(), Controller: ptr.To(true)}
}

// fillTunnel completes a Tunnel: owner, finalizer, and every field of its spec that is empty and can be known.
func fillTunnel(tunnel *v1alpha1.Tunnel, cluster *clusterv1.Cluster) {
	if metav1.GetControllerOf(tunnel) == nil {
		// A plain reference to the same Cluster, as clusterctl or a user may have made, becomes the controlling one.
		others := slices.DeleteFunc(slices.Clone(tunnel.OwnerReferences), func(o metav1.OwnerReference) bool { return o.UID == cluster.UID })
		tunnel.OwnerReferences = append(others, ownerRef(clusterv1.GroupVersion.WithKind("Cluster"), cluster))
	}
	delete(tunnel.Annotations, v1alpha1.PreparedAnnotation) // what it waited for is there
	controllerutil.AddFinalizer(tunnel, v1alpha1.TunnelFinalizer)
	if tunnel.ClaimedID() == "" {
		tunnel.ClaimID(model.NewID())
	}
	if tunnel.Spec.Kubeconfig.Mode == "" {
		tunnel.Spec.Kubeconfig.Mode = v1alpha1.KubeconfigModeAuto
	}
	decision.FillAPIServer(&tunnel.Spec.APIServer, cluster)
}
