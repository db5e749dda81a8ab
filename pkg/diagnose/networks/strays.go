package networks

import (
	"fmt"
	"net/netip"

	"github.com/fairlead/fairlead/pkg/observed"
)

// stray is an edge of a network whose machine is in another network of the Cluster.
type stray struct {
	observed.Edge
	of, in  int // indexes of the networks
	address netip.Addr
}

// strays returns the connected edges of a network that have an address of another network, and none of their own.
func strays(all []Network, of int) (found []stray) {
	for _, e := range all[of].Edges {
		one := stray{e, of, -1, netip.Addr{}}
		for _, address := range e.Addresses {
			in := Of(address, all)
			if in == of {
				one.in = -1
				break
			}
			if in >= 0 && one.in < 0 {
				one.in, one.address = in, address
			}
		}
		if one.in >= 0 && e.Connected {
			found = append(found, one)
		}
	}
	return found
}

// Misplaced returns the fault of a network that is not served because its edge runs with the bootstrap file of another
// one; nil: no edge does. It is a conclusion from addresses, so it is no fault of a network that is served: the edges
// of a network need not have addresses in it.
func Misplaced(all []Network, at int) *Fault {
	for of := range all {
		for _, s := range strays(all, of) {
			if s.in == at {
				return s.fault(all)
			}
		}
	}
	return nil
}

func (s stray) fault(all []Network) *Fault {
	wrong, right := all[s.of].Object, all[s.in].Object
	return broken(
		fmt.Sprintf(
			"%s is an edge of RemoteNetwork %s, and its machine has the address %s, which is in RemoteNetwork %s", s.Node,
			wrong.Name, s.address, right.Name,
		),
		"an edge in RemoteNetwork "+right.Name+" was started with the bootstrap file of RemoteNetwork "+wrong.Name,
		fmt.Sprintf(
			"revoke it: fairlead edge revoke -n %s %s; then start edge-agent there with an empty state folder and the "+
				"bootstrap file of its own network: fairlead network join -n %[1]s %[3]s", wrong.Namespace, s.Node, right.Name,
		),
	)
}
