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

// Record creates an event for each transition on its Tunnel, and also on the Cluster if the transition concerns its
// users. client-go's recorder counts repetitions within minutes instead of writing new events.
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

// concernsCluster reports whether a transition also gets an event on the Cluster: if a person must act, if it is about
// whether the tunnel is up, and when either ends.
func concernsCluster(t Transition) bool {
	return t.Condition == "" || t.EventType == corev1.EventTypeWarning ||
		slices.Contains(
			[]string{v1alpha1.ConditionTunnelReady, v1alpha1.ConditionReady, v1alpha1.ConditionPaused}, t.Condition,
		)
}

// eventObject identifies a Tunnel in events. It has no resourceVersion, because client-go would treat the same event as
// another one.
func eventObject(tunnel *v1alpha1.Tunnel) *corev1.ObjectReference {
	return &corev1.ObjectReference{
		APIVersion: v1alpha1.GroupVersion.String(), Kind: "Tunnel", Namespace: tunnel.Namespace, Name: tunnel.Name,
		UID: tunnel.UID,
	}
}

// clusterOf returns the Cluster of a Tunnel as events name it; nil: it has none.
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
