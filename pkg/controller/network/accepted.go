package network

import (
	"strings"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/fairlead/fairlead/api/v1alpha1"
	"github.com/fairlead/fairlead/pkg/decision"
	"github.com/fairlead/fairlead/pkg/model"
)

// accepted returns the condition that reports the decision about a Tunnel. noForward is why machines of the network
// cannot reach the apiserver; that alone makes the condition not False, because a network may not need it.
func accepted(r decision.Resolution, noForward string) metav1.Condition {
	c := metav1.Condition{Type: v1alpha1.ConditionAccepted, Status: metav1.ConditionFalse}
	switch {
	case r.Fatal != nil:
		c.Reason, c.Message = v1alpha1.ReasonNameTaken, r.Fatal.Error()
		if !r.Fatal.Taken {
			c.Reason = v1alpha1.ReasonInvalidName
		}
	case len(r.Refused) > 0:
		var all []string
		for _, refused := range r.Refused {
			all = append(all, refused.Error())
		}
		c.Reason, c.Message = refusedReason(r.Refused), strings.Join(all, "; ")
	default:
		c.Status, c.Reason, c.Message = metav1.ConditionTrue, v1alpha1.ReasonAccepted, "everything is served"
		if noForward != "" {
			c.Message += ", but machines of the network cannot reach the apiserver through its edges: " + noForward
		}
	}
	return c
}

// refusedReason returns the reason of the condition: that of the parts which need another change than a correction, if
// there is one.
func refusedReason(refused []*model.FieldError) string {
	reason := v1alpha1.ReasonInvalidNetwork
	for _, e := range refused {
		switch {
		case e.Taken:
			return v1alpha1.ReasonAmbiguousNetwork
		case e.Overlap:
			reason = v1alpha1.ReasonNetworkOverlap
		}
	}
	return reason
}

// noCluster returns the condition of a network whose Cluster does not exist.
func noCluster(network *v1alpha1.RemoteNetwork) metav1.Condition {
	return metav1.Condition{
		Type: v1alpha1.ConditionAccepted, Status: metav1.ConditionFalse, Reason: v1alpha1.ReasonNoCluster,
		Message: "spec.clusterName: there is no Cluster " + network.Spec.ClusterName + " in this namespace: create it, or " +
			"delete this RemoteNetwork",
	}
}

// tunnelsOff returns the condition of a network in an installation without tunnels.
func tunnelsOff() metav1.Condition {
	return metav1.Condition{
		Type: v1alpha1.ConditionAccepted, Status: metav1.ConditionFalse, Reason: v1alpha1.ReasonTunnelsOff,
		Message: "this installation makes no tunnels: run the controller with gateways",
	}
}

// foreignTunnel returns the condition of a network whose Tunnel has another use.
func foreignTunnel(name string) metav1.Condition {
	return metav1.Condition{
		Type: v1alpha1.ConditionAccepted, Status: metav1.ConditionFalse, Reason: v1alpha1.ReasonControlledByOther,
		Message: "the Tunnel " + name + " was created for another use: delete it, or rename this RemoteNetwork",
	}
}
