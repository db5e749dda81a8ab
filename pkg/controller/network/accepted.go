package network

import (
	"slices"
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
		c.Reason, c.Message = v1alpha1.ReasonInvalidName, r.Fatal.Error()
		switch r.Fatal.Kind {
		case model.Taken:
			c.Reason = v1alpha1.ReasonNameTaken
		case model.TooMany:
			c.Reason = v1alpha1.ReasonTooManyNetworks
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

// reasons are the reasons of a network whose parts are refused, the most important one first: a value that is not valid
// is usually a mistake in typing, and the others need a decision.
var reasons = []struct {
	kind   model.FieldErrorKind
	reason string
}{
	{model.Taken, v1alpha1.ReasonAmbiguousNetwork},
	{model.HasGateway, v1alpha1.ReasonNetworkHasGateway},
	{model.Overlap, v1alpha1.ReasonNetworkOverlap},
	{model.NeverDial, v1alpha1.ReasonNeverDialled},
}

// refusedReason returns the reason of the condition.
func refusedReason(refused []*model.FieldError) string {
	for _, r := range reasons {
		if slices.ContainsFunc(refused, func(e *model.FieldError) bool { return e.Kind == r.kind }) {
			return r.reason
		}
	}
	return v1alpha1.ReasonInvalidNetwork
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

// foreignEgress returns the message of a condition about a Tunnel that has the name of that of the apiservers, and
// another use. It is usually that of a Cluster with this name.
func foreignEgress(name string) string {
	return "the Tunnel " + name + " was created for another use: delete it, and if a Cluster has this name too, set its " +
		"label " + v1alpha1.TunnelLabel + "=" + v1alpha1.TunnelDisabled + " or create it again with another name"
}
