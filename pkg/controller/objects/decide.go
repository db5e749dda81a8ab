package objects

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

// Group holds the objects that one reconciliation reads. Any of them may be nil.
type Group struct {
	Key        client.ObjectKey
	Cluster    *clusterv1.Cluster
	Tunnel     *v1alpha1.Tunnel
	Kubeconfig *corev1.Secret
}

// Action is what a reconciliation does.
type Action int

// The actions.
const (
	Leave  Action = iota // write nothing
	Serve                // create or keep the Tunnel, its Secrets and its status
	Remove               // restore the kubeconfig, then remove the Tunnel and what belongs to it
	End                  // remove a Tunnel whose Cluster is gone: there is no kubeconfig to restore
	Refuse               // report that the Tunnel has another controlling owner
)

// Decide returns the action for a Group.
func Decide(o Group, allClusters bool) Action {
	switch owner := ControllingCluster(o.Tunnel); {
	case owner != nil && (o.Cluster == nil || o.Cluster.UID != owner.UID):
		return End
	case o.Cluster == nil && o.Tunnel != nil && !o.Tunnel.DeletionTimestamp.IsZero():
		return End // it would wait for ever for a Cluster that does not exist
	case o.Cluster == nil || Paused(o):
		return Leave
	case !o.Cluster.DeletionTimestamp.IsZero():
		// Cluster API still needs the apiserver. Nothing begins, and nothing ends before the Cluster is gone.
		if owner == nil {
			return Leave
		}
		return Serve
	case !o.TunnelDeleting() && OptedIn(o.Cluster, allClusters):
		if owner == nil && o.Tunnel != nil && metav1.GetControllerOf(o.Tunnel) != nil {
			return Refuse
		}
		return Serve
	case o.Tunnel != nil && owner == nil && !o.TunnelDeleting():
		return Leave // a user's Tunnel that was never adopted
	}
	return Remove
}

// TunnelDeleting reports whether there is a Tunnel and it is being deleted.
func (o Group) TunnelDeleting() bool {
	return o.Tunnel != nil && !o.Tunnel.DeletionTimestamp.IsZero()
}

// OptedIn reports whether a Cluster requests a tunnel.
func OptedIn(cluster *clusterv1.Cluster, allClusters bool) bool {
	switch cluster.Labels[v1alpha1.TunnelLabel] {
	case v1alpha1.TunnelEnabled:
		return true
	case v1alpha1.TunnelDisabled:
		return false
	}
	return allClusters
}

// Paused reports whether Cluster API's pause is set on the Cluster or its Tunnel.
func Paused(o Group) bool {
	if ptr.Deref(o.Cluster.Spec.Paused, false) || HasPause(o.Cluster) {
		return true
	}
	return o.Tunnel != nil && HasPause(o.Tunnel)
}

// HasPause reports whether an object has Cluster API's annotation for a pause.
func HasPause(o client.Object) bool {
	_, ok := o.GetAnnotations()[clusterv1.PausedAnnotation]
	return ok
}

// ControllingCluster returns the Cluster that controls a Tunnel by its owner reference, or nil.
func ControllingCluster(tunnel *v1alpha1.Tunnel) *metav1.OwnerReference {
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

// OwnerRef returns a controlling owner reference. It does not block the owner's deletion: in a foreground deletion the
// Cluster would wait for its Tunnel, and the Tunnel for its Cluster.
func OwnerRef(kind schema.GroupVersionKind, owner client.Object) metav1.OwnerReference {
	return metav1.OwnerReference{
		APIVersion: kind.GroupVersion().String(), Kind: kind.Kind, Name: owner.GetName(), UID: owner.GetUID(),
		Controller: ptr.To(true),
	}
}

// Adopt gives a Tunnel its owner, the finalizer and an id, as far as it has none.
func Adopt(tunnel *v1alpha1.Tunnel, kind schema.GroupVersionKind, owner client.Object) {
	delete(tunnel.Annotations, v1alpha1.PreparedAnnotation) // what it waited for exists
	if metav1.GetControllerOf(tunnel) == nil {
		// An existing non-controlling reference to the owner, from clusterctl or a user, becomes the controlling one.
		others := slices.DeleteFunc(
			slices.Clone(tunnel.OwnerReferences), func(o metav1.OwnerReference) bool { return o.UID == owner.GetUID() },
		)
		tunnel.OwnerReferences = append(others, OwnerRef(kind, owner))
	}
	controllerutil.AddFinalizer(tunnel, v1alpha1.TunnelFinalizer)
	if tunnel.ClaimedID() == "" {
		tunnel.ClaimID(model.NewID())
	}
}

// CompleteTunnel completes the Tunnel of a Cluster: it adopts it, and sets every empty field of its spec that can be
// derived.
func CompleteTunnel(tunnel *v1alpha1.Tunnel, cluster *clusterv1.Cluster) {
	Adopt(tunnel, clusterv1.GroupVersion.WithKind("Cluster"), cluster)
	if tunnel.Spec.Kubeconfig.Mode == "" {
		tunnel.Spec.Kubeconfig.Mode = v1alpha1.KubeconfigModeAuto
	}
	decision.FillAPIServer(&tunnel.Spec.APIServer, cluster)
}
