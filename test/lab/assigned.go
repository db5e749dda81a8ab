package lab

import (
	"slices"

	"github.com/fairlead/fairlead/pkg/assignment"
	"github.com/fairlead/fairlead/pkg/model"
	"github.com/fairlead/fairlead/test/lab/netns"
)

// Assigned returns the numbers of the gateways to which the edges of a tunnel keep reverse tunnels: perTunnel of all
// gateways; 0: all.
func Assigned(id string, perTunnel, gateways int) (numbers []int) {
	all := make([]model.Gateway, gateways)
	for i := range all {
		all[i].Name = netns.GatewayReplica(i)
	}
	for _, g := range assignment.Of(id, perTunnel, all) {
		numbers = append(numbers, slices.Index(all, g))
	}
	return numbers
}
