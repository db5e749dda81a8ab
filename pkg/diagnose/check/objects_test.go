package check

import (
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"

	"github.com/fairlead/fairlead/api/v1alpha1"
	"github.com/fairlead/fairlead/pkg/diagnose/collect"
)

func TestConditionsOfTheControllerBecomeCauses(t *testing.T) {
	for sentence, tc := range map[string]struct {
		reason string
		status metav1.ConditionStatus
		want   expected
	}{
		"it is served": {v1alpha1.ReasonAccepted, metav1.ConditionTrue, expected{OK, "says so"}},
		"its mode needs no tunnel": {
			v1alpha1.ReasonNotTunnelled, metav1.ConditionTrue,
			expected{OK, "a network of your own"},
		},
		"its Cluster is still to be moved": {
			v1alpha1.ReasonWaitingForCluster, metav1.ConditionTrue,
			expected{Warning, "fairlead move"},
		},
		"another Tunnel has its name": {
			v1alpha1.ReasonNameTaken, metav1.ConditionFalse,
			expected{Broken, "rename or delete"},
		},
		"an extra name is not to be had": {
			v1alpha1.ReasonInvalidExtraName, metav1.ConditionFalse,
			expected{Warning, "spec.extraNames"},
		},
		"its names make no hostname": {
			v1alpha1.ReasonInvalidName, metav1.ConditionFalse,
			expected{Broken, "another name"},
		},
		"its apiserver is no address": {
			v1alpha1.ReasonInvalidAPIServer, metav1.ConditionFalse,
			expected{Broken, "spec.apiServer"},
		},
		"its owner is no Cluster": {
			v1alpha1.ReasonControlledByOther, metav1.ConditionFalse,
			expected{Broken, "remove that owner"},
		},
		"the installation makes no tunnels": {
			v1alpha1.ReasonTunnelsOff, metav1.ConditionFalse,
			expected{Broken, "with gateways"},
		},
		"a reason that is newer than check": {
			"SomethingNew", metav1.ConditionFalse,
			expected{Broken, "correct what the message names"},
		},
		"a reason that is newer, and served": {"SomethingNew", metav1.ConditionTrue, expected{OK, "says so"}},
	} {
		t.Run(sentence, func(t *testing.T) {
			v := visitOf(nil)
			v.cluster = &clusterv1.Cluster{}
			v.tunnel.Status.Conditions = []metav1.Condition{{
				Type: v1alpha1.ConditionAccepted, Status: tc.status, Reason: tc.reason, Message: "the controller says so",
			}}
			tc.want.compare(t, checkTunnel(t.Context(), v))
		})
	}
}

// TestUnobservedFactsAreNotFaults: what cannot be observed is not a fault.
func TestUnobservedFactsAreNotFaults(t *testing.T) {
	for sentence, tc := range map[string]struct {
		change func(*visit)
		want   expected
	}{
		"there is no Tunnel": {func(v *visit) { v.tunnel = nil }, expected{Skipped, "the Cluster has no Tunnel"}},
		"nothing is served":  {func(v *visit) { v.tunnel.Status.Names = nil }, expected{Skipped, "the Tunnel is not served"}},
		"the mode is a proxy of your own": {
			func(v *visit) { v.tunnel.Spec.Kubeconfig.Mode = v1alpha1.KubeconfigModeHTTPProxy },
			expected{Skipped, "a network of your own"},
		},
		"no server answers": {func(v *visit) { v.observed = nil }, expected{Unknown, "--xds-server"}},
		"no xds-server answers": {
			func(v *visit) { v.notObserved = "no xds-server answers: refused" }, expected{Unknown, "refused"},
		},
	} {
		t.Run(sentence, func(t *testing.T) {
			v := visitOf(&collect.Fleet{})
			tc.change(v)
			tc.want.compare(t, checkRoute(t.Context(), v))
		})
	}
}
