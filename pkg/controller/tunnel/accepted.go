package tunnel

import (
	"fmt"
	"strings"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/fairlead/fairlead/api/v1alpha1"
	"github.com/fairlead/fairlead/pkg/decision"
	"github.com/fairlead/fairlead/pkg/model"
)

// accepted returns the condition that reports the decision about a Tunnel's names and addresses.
func accepted(r decision.Resolution) metav1.Condition {
	c := metav1.Condition{Type: v1alpha1.ConditionAccepted, Status: metav1.ConditionFalse}
	switch {
	case r.Fatal != nil:
		c.Reason, c.Message = fatalReason(r.Fatal), r.Fatal.Error()
	case len(r.Refused) > 0:
		var all []string
		for _, refused := range r.Refused {
			all = append(all, refused.Error())
		}
		c.Reason, c.Message = v1alpha1.ReasonInvalidExtraName, strings.Join(all, "; ")
	default:
		c.Status, c.Reason = metav1.ConditionTrue, v1alpha1.ReasonAccepted
		c.Message = "served as " + strings.Join(r.Cluster.Names(), ", ")
	}
	return c
}

// notTunnelled returns the condition of a Tunnel that is not served because of its mode, or because the installation
// makes no tunnels.
func notTunnelled(mode v1alpha1.KubeconfigMode) metav1.Condition {
	if mode.Tunnelled() {
		return metav1.Condition{
			Type: v1alpha1.ConditionAccepted, Status: metav1.ConditionFalse, Reason: v1alpha1.ReasonTunnelsOff,
			Message: fmt.Sprintf(
				"spec.kubeconfig.mode: %q: this installation makes no tunnels: choose http-proxy, https-proxy, socks5 or "+
					"address, or run the controller with gateways", mode,
			),
		}
	}
	return metav1.Condition{
		Type: v1alpha1.ConditionAccepted, Status: metav1.ConditionTrue, Reason: v1alpha1.ReasonNotTunnelled,
		Message: fmt.Sprintf("no tunnel is made: mode %s leads through a network of your own", mode),
	}
}

func fatalReason(e *model.FieldError) string {
	switch {
	case e.Kind == model.Taken:
		return v1alpha1.ReasonNameTaken
	case e.Field == "spec.apiServer":
		return v1alpha1.ReasonInvalidAPIServer
	}
	return v1alpha1.ReasonInvalidName
}

// controlledByOther returns the condition of a Tunnel that cannot be adopted.
func controlledByOther(owner metav1.OwnerReference) metav1.Condition {
	return metav1.Condition{
		Type: v1alpha1.ConditionAccepted, Status: metav1.ConditionFalse, Reason: v1alpha1.ReasonControlledByOther,
		Message: fmt.Sprintf(
			"metadata.ownerReferences: %q: controls this Tunnel: let it be controlled by its Cluster, or by nothing",
			owner.Kind+" "+owner.Name,
		),
	}
}

// nameTaken returns the condition of a Cluster whose name is that of a Tunnel for another use.
func nameTaken(tunnel *v1alpha1.Tunnel) metav1.Condition {
	of, cure := "the RemoteNetwork "+tunnel.Spec.Network, "rename that RemoteNetwork, or recreate this Cluster"
	if tunnel.Spec.EgressOf != "" {
		of, cure = "the apiservers of the Cluster "+tunnel.Spec.EgressOf, "recreate this Cluster"
	}
	return metav1.Condition{
		Status: metav1.ConditionFalse, Reason: v1alpha1.ReasonNameTaken, Message: fmt.Sprintf(
			"this Cluster gets no tunnel: the Tunnel %s belongs to %s; %s with a name that does not end in %s or %s",
			tunnel.Name, of, cure, v1alpha1.NetworkTunnelSuffix, v1alpha1.EgressTunnelSuffix,
		),
	}
}
