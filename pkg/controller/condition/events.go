package condition

import (
	"log/slog"
	"slices"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/tools/events"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/fairlead/fairlead/api/v1alpha1"
)

// Record makes events of transitions: on the Tunnel of each, and on its Cluster of those that who looks at that needs
// to know. The same again within minutes is counted and not written anew: client-go's recorder does that.
func Record(recorder events.EventRecorder, log *slog.Logger, tunnel *v1alpha1.Tunnel, transitions []Transition) {
	cluster, self := clusterOf(tunnel), eventObject(tunnel)
	for _, t := range transitions {
		recorder.Eventf(self, nil, t.EventType, t.Reason, "Reconcile", "%s", t.Message)
		if cluster != nil && concernsCluster(t) {
			recorder.Eventf(cluster, self, t.EventType, t.Reason, "Reconcile", "%s", t.Message)
		}
		if t.Condition != "" {
			log.Info(
				"condition changed", "cluster", client.ObjectKeyFromObject(tunnel).String(), "condition", t.Condition, "reason",
				t.Reason, "message", t.Message,
			)
		}
	}
}

// concernsCluster says whether a transition is told of the Cluster too: what a person has to do something about, and
// whether its tunnel is up, with the end of either.
func concernsCluster(t Transition) bool {
	return t.Condition == "" || t.EventType == corev1.EventTypeWarning ||
		slices.Contains(
			[]string{v1alpha1.ConditionTunnelReady, v1alpha1.ConditionReady, v1alpha1.ConditionPaused}, t.Condition,
		)
}

// eventObject names a Tunnel in events: without its resourceVersion, by which client-go would take the same event for
// another.
func eventObject(tunnel *v1alpha1.Tunnel) *corev1.ObjectReference {
	return &corev1.ObjectReference{
		APIVersion: v1alpha1.GroupVersion.String(), Kind: "Tunnel", Namespace: tunnel.Namespace, Name: tunnel.Name,
		UID: tunnel.UID,
	}
}

// clusterOf is the Cluster that a Tunnel belongs to, as events name it; nil: it has none.
func clusterOf(tunnel *v1alpha1.Tunnel) *corev1.ObjectReference {
	owner := metav1.GetControllerOf(tunnel)
	if owner == nil || owner.Kind != "Cluster" {
		return nil
	}
	return &corev1.ObjectReference{
		APIVersion: clusterv1.GroupVersion.String(), Kind: owner.Kind, Namespace: tunnel.Namespace, Name: owner.Name,
		UID: owner.UID,
	}
}
