package networks

import (
	"strings"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// Lost returns the fault of edges, by name, that have no tunnel while others of their network have.
func Lost(edges []string) *Fault {
	return warning(
		strings.Join(edges, ", ")+" has no tunnel, and other edges have",
		"an edge of the network is down, and the others serve it: nothing replaces them",
		"restart edge-agent on that machine, and read its log; if it will not return: fairlead edge revoke",
	)
}

// EgressAway returns the fault of a Cluster whose enrolled nodes beside apiservers, by name, are all away.
func EgressAway(nodes []string) *Fault {
	return broken(
		strings.Join(nodes, ", ")+" is enrolled, but not connected",
		"the Envoy beside the apiserver, or its agent, does not run or does not reach the gateways' public port",
		"check that it runs beside the apiserver (crictl ps, or kubectl get pods), and read its log",
	)
}

// EgressOnRecord returns the same fault from the condition TunnelReady of their Tunnel; nil: one is connected, or that
// is not known.
func EgressOnRecord(ready *metav1.Condition) *Fault {
	if ready.Status != metav1.ConditionFalse {
		return nil
	}
	return broken(
		ready.Message+", according to the Tunnel's status",
		"no agent beside an apiserver is connected to the control channel",
		"check that it runs beside the apiserver, and read its log",
	)
}
