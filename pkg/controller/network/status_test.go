package network

import (
	"strings"
	"testing"

	apimeta "k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/fairlead/fairlead/api/v1alpha1"
)

// tunnelWith returns a Tunnel with two conditions.
func tunnelWith(spec v1alpha1.TunnelSpec, accepted, ready metav1.ConditionStatus, reason string) *v1alpha1.Tunnel {
	t := &v1alpha1.Tunnel{Spec: spec}
	t.Name = "site1.network"
	t.Status.ConnectedEdges = 2
	t.Status.Conditions = []metav1.Condition{
		{Type: v1alpha1.ConditionAccepted, Status: accepted, Reason: "Reason", Message: "decided"},
		{Type: v1alpha1.ConditionTunnelReady, Status: ready, Reason: reason, Message: "reported"},
	}
	return t
}

// foreignEgressTunnel returns a Tunnel with the name of that of the apiservers of c1, and another use.
func foreignEgressTunnel(spec v1alpha1.TunnelSpec) *v1alpha1.Tunnel {
	t := tunnelWith(spec, "True", "True", v1alpha1.ReasonConnected)
	t.Name = "c1.egress"
	return t
}

// TestReadySumsUpTheOthers: it is True if the parts are served, an edge has a tunnel and an apiserver is connected.
func TestReadySumsUpTheOthers(t *testing.T) {
	own := v1alpha1.TunnelSpec{Network: "site1"}
	egressOf := v1alpha1.TunnelSpec{EgressOf: "c1"}
	served := tunnelWith(own, "True", "True", v1alpha1.ReasonConnected)
	up := tunnelWith(egressOf, "True", "True", v1alpha1.ReasonConnected)
	for name, tc := range map[string]struct {
		tunnel, egress      *v1alpha1.Tunnel
		ready, egressStatus metav1.ConditionStatus
		egressReason        string
		message             string // of Ready
	}{
		"everything is connected": {served, up, "True", "True", v1alpha1.ReasonConnected, "apiservers reach the network"},
		"there is no Tunnel of apiservers": {
			served, nil, "False", "False", v1alpha1.ReasonNoEgress, "EgressReady: the Tunnel c1.egress does not exist yet",
		},
		"the Tunnel of that name has another use": {
			served, foreignEgressTunnel(v1alpha1.TunnelSpec{EgressOf: "c2"}), "False", "False",
			v1alpha1.ReasonNoEgress, "EgressReady: the Tunnel c1.egress was created for another use: delete it",
		},
		"the Tunnel of that name is that of a Cluster": {
			served, foreignEgressTunnel(v1alpha1.TunnelSpec{}), "False", "False",
			v1alpha1.ReasonNoEgress, "EgressReady: the Tunnel c1.egress was created for another use: delete it",
		},
		"no apiserver is connected": {
			served, tunnelWith(egressOf, "True", "False", v1alpha1.ReasonNoEgress), "False", "False",
			v1alpha1.ReasonNoEgress, "EgressReady: reported",
		},
		"the apiservers that were connected are not": {
			served, tunnelWith(egressOf, "True", "False", v1alpha1.ReasonEgressLost), "False", "False",
			v1alpha1.ReasonEgressLost, "EgressReady: reported",
		},
		"it is not known whether an apiserver is connected": {
			served, tunnelWith(egressOf, "True", "Unknown", v1alpha1.ReasonUnknown), "Unknown", "Unknown",
			v1alpha1.ReasonUnknown, "EgressReady: reported",
		},
		"no live state has been recorded yet": {
			served, &v1alpha1.Tunnel{Spec: egressOf}, "Unknown", "Unknown", v1alpha1.ReasonUnknown, "EgressReady: unknown yet",
		},
		"no edge has a tunnel": {
			tunnelWith(own, "True", "False", v1alpha1.ReasonNoTunnel), up, "False", "True", v1alpha1.ReasonConnected,
			"TunnelReady: reported",
		},
		"a part is not served": {
			tunnelWith(own, "False", "True", v1alpha1.ReasonConnected), up, "False", "True", v1alpha1.ReasonConnected,
			"Accepted: decided",
		},
		"False takes precedence over Unknown": {
			tunnelWith(own, "True", "Unknown", v1alpha1.ReasonUnknown), nil, "False", "False", v1alpha1.ReasonNoEgress,
			"EgressReady: ",
		},
	} {
		t.Run(name, func(t *testing.T) {
			network := &v1alpha1.RemoteNetwork{}
			network.Name, network.Generation, network.Spec.ClusterName = "site1", 7, "c1"
			g := group{
				key: client.ObjectKey{Name: "site1.network"}, cluster: &clusterv1.Cluster{}, network: network, tunnel: tc.tunnel,
			}
			status := (&statusReconciler{}).status(network, g, tc.egress)
			ready := apimeta.FindStatusCondition(status.Conditions, v1alpha1.ConditionReady)
			egress := apimeta.FindStatusCondition(status.Conditions, v1alpha1.ConditionEgressReady)
			if ready.Status != tc.ready || !strings.HasPrefix(ready.Message, tc.message) || ready.ObservedGeneration != 7 {
				t.Errorf("Ready is %+v, want %s: %s", ready, tc.ready, tc.message)
			}
			if egress.Status != tc.egressStatus || egress.Reason != tc.egressReason {
				t.Errorf("EgressReady is %+v, want %s %s", egress, tc.egressStatus, tc.egressReason)
			}
			if status.Tunnel != tc.tunnel.Name || status.ConnectedEdges != 2 {
				t.Errorf("status %+v", status)
			}
		})
	}
}

// TestANetworkThatGetsNoTunnel has neither condition about connections, also if it had them.
func TestANetworkThatGetsNoTunnel(t *testing.T) {
	served := tunnelWith(v1alpha1.TunnelSpec{Network: "other"}, "True", "True", v1alpha1.ReasonConnected)
	for reason, g := range map[string]group{
		v1alpha1.ReasonNoCluster:         {},
		v1alpha1.ReasonControlledByOther: {cluster: &clusterv1.Cluster{}, tunnel: served},
		v1alpha1.ReasonUnknown:           {cluster: &clusterv1.Cluster{}},
	} {
		network := &v1alpha1.RemoteNetwork{}
		network.Name, network.Spec.ClusterName = "site1", "c1"
		for _, kind := range []string{v1alpha1.ConditionTunnelReady, v1alpha1.ConditionEgressReady} {
			apimeta.SetStatusCondition(&network.Status.Conditions, metav1.Condition{
				Type: kind, Status: metav1.ConditionTrue, Reason: v1alpha1.ReasonConnected,
			})
		}
		g.key, g.network = client.ObjectKey{Name: "site1.network"}, network
		status := (&statusReconciler{}).status(network, g, nil)
		accepted := apimeta.FindStatusCondition(status.Conditions, v1alpha1.ConditionAccepted)
		if accepted == nil || accepted.Reason != reason || len(status.Conditions) != 2 || status.Tunnel != "" {
			t.Errorf("%s: %+v", reason, status)
		}
		if apimeta.IsStatusConditionTrue(status.Conditions, v1alpha1.ConditionReady) {
			t.Errorf("%s: the network is ready", reason)
		}
	}
}
