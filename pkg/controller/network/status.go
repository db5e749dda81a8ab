package network

import (
	"context"
	"strings"

	"k8s.io/apimachinery/pkg/api/equality"
	apimeta "k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	"github.com/fairlead/fairlead/api/v1alpha1"
	"github.com/fairlead/fairlead/pkg/controller/condition"
	"github.com/fairlead/fairlead/pkg/controller/objects"
	"github.com/fairlead/fairlead/pkg/controller/reconciler"
	"github.com/fairlead/fairlead/pkg/decision"
)

// statusReconciler writes the status of one RemoteNetwork, which summarises its Tunnel and that of the apiservers. It
// grants nothing.
type statusReconciler struct{ reconciler.Deps }

// Reconcile writes what differs. A conflict repeats it.
func (r *statusReconciler) Reconcile(ctx context.Context, request reconcile.Request) (reconcile.Result, error) {
	network, err := objects.Get(ctx, r.Client, request.NamespacedName, &v1alpha1.RemoteNetwork{})
	if err != nil || network == nil {
		return reconcile.Result{}, objects.Wrap("reading RemoteNetwork", err)
	}
	key := client.ObjectKey{Namespace: network.Namespace, Name: decision.NetworkTunnel(network.Name)}
	g, err := load(ctx, r.Client, key)
	if err != nil {
		return reconcile.Result{}, err
	}
	key.Name = decision.EgressTunnel(network.Spec.ClusterName)
	egress, err := objects.Get(ctx, r.Client, key, &v1alpha1.Tunnel{})
	if err != nil {
		return reconcile.Result{}, objects.Wrap("reading Tunnel", err)
	}
	want := network.DeepCopy()
	want.Status = r.status(network, g, egress)
	if equality.Semantic.DeepEqual(want.Status, network.Status) {
		return reconcile.Result{}, nil
	}
	err = client.IgnoreNotFound(r.Client.Status().Patch(ctx, want, objects.LockedPatch(network)))
	return reconciler.Retry(reconcile.Result{}, objects.Wrap("writing status of RemoteNetwork", err))
}

// status returns the status as it must be.
func (r *statusReconciler) status(
	network *v1alpha1.RemoteNetwork, g group, egress *v1alpha1.Tunnel,
) v1alpha1.RemoteNetworkStatus {
	status := v1alpha1.RemoteNetworkStatus{Conditions: network.DeepCopy().Status.Conditions}
	own := metav1.Condition{Type: v1alpha1.ConditionAccepted}
	switch {
	case r.Config.NoTunnels:
		own = tunnelsOff()
	case g.cluster == nil:
		own = noCluster(network)
	case g.foreign() || g.tunnel != nil && controlledByOther(g.tunnel, network):
		own = foreignTunnel(g.key.Name)
	case g.tunnel == nil && !network.DeletionTimestamp.IsZero():
		own = condition.Unknown(own.Type, "it is being deleted, and its Tunnel has ended")
	case g.tunnel == nil:
		own = condition.Unknown(own.Type, "its Tunnel does not exist yet")
	default:
		status.Tunnel, status.ConnectedEdges = g.tunnel.Name, g.tunnel.Status.ConnectedEdges
		if served := g.tunnel.Status.Served; served != nil && served.Network != nil {
			for _, target := range served.Network.Targets {
				status.Targets = append(status.Targets, target.Name)
			}
		}
		own = mirrored(g.tunnel, v1alpha1.ConditionAccepted)
	}
	if status.Tunnel == "" {
		apimeta.RemoveStatusCondition(&status.Conditions, v1alpha1.ConditionTunnelReady)
		apimeta.RemoveStatusCondition(&status.Conditions, v1alpha1.ConditionEgressReady)
		set(&status, network, own, summary(own))
		return status
	}
	all := []metav1.Condition{own, mirrored(g.tunnel, v1alpha1.ConditionTunnelReady), egressReady(egress, network)}
	set(&status, network, append(all, summary(all...))...)
	return status
}

func set(status *v1alpha1.RemoteNetworkStatus, network *v1alpha1.RemoteNetwork, all ...metav1.Condition) {
	for _, c := range all {
		c.ObservedGeneration, c.Message = network.Generation, condition.Shorten(c.Message)
		apimeta.SetStatusCondition(&status.Conditions, c)
	}
}

// mirrored returns a condition of a Tunnel for the status of its network.
func mirrored(tunnel *v1alpha1.Tunnel, kind string) metav1.Condition {
	c := apimeta.FindStatusCondition(tunnel.Status.Conditions, kind)
	if c == nil {
		return condition.Unknown(kind, "unknown yet")
	}
	return metav1.Condition{Type: kind, Status: c.Status, Reason: c.Reason, Message: c.Message}
}

// egressReady returns the condition that reports whether an apiserver of the Cluster can use its networks.
func egressReady(egress *v1alpha1.Tunnel, network *v1alpha1.RemoteNetwork) metav1.Condition {
	c := metav1.Condition{
		Type: v1alpha1.ConditionEgressReady, Status: metav1.ConditionFalse, Reason: v1alpha1.ReasonNoEgress,
		Message: "the Tunnel " + decision.EgressTunnel(network.Spec.ClusterName) + " does not exist yet",
	}
	switch {
	case egress == nil:
		return c
	case egress.Spec.EgressOf != network.Spec.ClusterName:
		c.Message = foreignEgress(egress.Name)
		return c
	}
	c = mirrored(egress, v1alpha1.ConditionTunnelReady)
	if c.Status == metav1.ConditionFalse && c.Reason != v1alpha1.ReasonEgressLost {
		c.Reason = v1alpha1.ReasonNoEgress
	}
	c.Type = v1alpha1.ConditionEgressReady
	return c
}

// summary returns the condition that sums up the others. False takes precedence over Unknown.
func summary(all ...metav1.Condition) metav1.Condition {
	c := metav1.Condition{
		Type: v1alpha1.ConditionReady, Status: metav1.ConditionTrue, Reason: v1alpha1.ReasonReady,
		Message: "apiservers reach the network",
	}
	for _, one := range all {
		switch {
		case one.Status == metav1.ConditionFalse:
			c.Status, c.Reason, c.Message = metav1.ConditionFalse, v1alpha1.ReasonNotReady, one.Type+": "+one.Message
			return c
		case one.Status == metav1.ConditionUnknown && c.Status == metav1.ConditionTrue:
			c = condition.Unknown(c.Type, one.Type+": "+one.Message)
		}
	}
	return c
}

// networkOf returns the RemoteNetwork of a Tunnel; false: it belongs to none.
func networkOf(tunnel client.Object) (client.ObjectKey, bool) {
	name, ok := strings.CutSuffix(tunnel.GetName(), v1alpha1.NetworkTunnelSuffix)
	return client.ObjectKey{Namespace: tunnel.GetNamespace(), Name: name}, ok
}
