package networks

import (
	"fmt"
	"maps"
	"slices"
	"strings"

	apimeta "k8s.io/apimachinery/pkg/api/meta"

	"github.com/fairlead/fairlead/api/v1alpha1"
	"github.com/fairlead/fairlead/pkg/model"
	"github.com/fairlead/fairlead/pkg/observed"
)

// Forwards returns through which edges the machines of a network reach the apiserver, and the fault of the others. The
// input is what edges observe of the apiserver behind their own listeners, by node name.
func Forwards(n Network, behind map[string]*observed.APIServer) (reached string, fault *Fault) {
	var healthy []string
	for _, node := range slices.Sorted(maps.Keys(behind)) {
		switch a := behind[node]; {
		case a.Healthy:
			healthy = append(healthy, node+" at "+a.Address)
		case fault == nil:
			fault = n.noForward(node, a)
		}
	}
	reached = strings.Join(healthy, ", ")
	if fault != nil && reached != "" {
		fault.Warning = true
		fault.Detail += "; machines reach the apiserver through " + reached
	}
	return reached, fault
}

// noForward returns the fault of an edge whose listener does not lead to the apiserver, from the reason of its
// probe (pkg/probe).
func (n Network) noForward(node string, a *observed.APIServer) *Fault {
	detail := fmt.Sprintf("%s finds the apiserver behind its listener %s unhealthy: %s", node, a.Address, a.Message)
	switch a.Reason {
	case model.APIServerConnectionRefused, model.APIServerNoRoute, model.APIServerConnectionTimeout:
		return broken(
			detail, "the edge's Envoy does not listen at the address of --apiserver-listen: the machine lacks that "+
				"address, or Envoy rejects its configuration",
			"give an address of that machine in --apiserver-listen of edge-agent, and read its log",
		)
	case model.APIServerNotAPIServer:
		return broken(
			detail, "another program listens at the address of --apiserver-listen",
			"end that program, or choose another port in --apiserver-listen of edge-agent",
		)
	}
	served := n.served()
	if served == nil || len(served.APIServers) == 0 && served.APIServerTunnelID == "" {
		why := "see the condition Accepted of the RemoteNetwork"
		if c := apimeta.FindStatusCondition(n.Object.Status.Conditions, v1alpha1.ConditionAccepted); c != nil {
			if _, after, found := strings.Cut(c.Message, "through its edges: "); found {
				why = after
			}
		}
		return broken(
			detail+"; "+why, "gateways have no way to the apiserver of the Cluster for the machines of its networks",
			"give the Cluster a tunnel, or allow the address of its apiserver: --apiserver-cidrs of the controller",
		)
	}
	return broken(
		detail, "the gateways do not reach the apiserver, or it is not ready: its address changed, it is down, or a "+
			"NetworkPolicy denies them",
		"check the apiserver, and that gateways may dial "+strings.Join(append(served.APIServers, "its tunnel")[:1], ""),
	)
}
