package lane

import (
	"regexp"
	"strconv"
	"strings"

	clusterv3 "github.com/envoyproxy/go-control-plane/envoy/config/cluster/v3"
	endpointv3 "github.com/envoyproxy/go-control-plane/envoy/config/endpoint/v3"
	listenerv3 "github.com/envoyproxy/go-control-plane/envoy/config/listener/v3"
	"google.golang.org/protobuf/types/known/anypb"
	"google.golang.org/protobuf/types/known/wrapperspb"

	"github.com/fairlead/fairlead/pkg/envoy/typed"
)

// names matches the names of a lane's Envoy cluster and listener at an edge: see Gateway and Node.
var names = regexp.MustCompile(`^gateway-[0-9]+-lane-([0-9]+)_|_lane-([0-9]+)_gateway-[0-9]+$`)

// Is reports whether an Envoy cluster or listener of an edge belongs to a lane.
func Is(name string) bool { return Number(name) > 0 }

// Number returns to which lane an Envoy cluster or listener of an edge belongs, from 1; 0: to none.
func Number(name string) int {
	match := names.FindStringSubmatch(name)
	if match == nil {
		return 0
	}
	n, err := strconv.Atoi(match[1] + match[2]) // one of them is empty
	if err != nil {
		return 0
	}
	return n
}

// nowhere is added to the address of a closed listener, which must be another one than that of the open one: otherwise
// Envoy would keep its socket, which dials.
const nowhere = "-closed"

// Closed returns an Envoy cluster or listener of a lane in a form in which the edge dials nothing. Envoy closes the
// reverse tunnels of the lane when it gets this form, after the drain time. Other resources are returned as they are.
func Closed(resource *anypb.Any) *anypb.Any {
	c, l := &clusterv3.Cluster{}, &listenerv3.Listener{}
	switch {
	case resource.MessageIs(c) && resource.UnmarshalTo(c) == nil:
		c.ClusterDiscoveryType = &clusterv3.Cluster_Type{Type: clusterv3.Cluster_STATIC}
		c.LoadAssignment = &endpointv3.ClusterLoadAssignment{ClusterName: c.GetName()}
		return typed.Pack(c)
	case resource.MessageIs(l) && resource.UnmarshalTo(l) == nil:
		at := l.GetAddress().GetSocketAddress()
		at.Address = strings.Replace(at.GetAddress(), "@", nowhere+"@", 1)
		l.BindToPort = wrapperspb.Bool(false)
		return typed.Pack(l)
	}
	return resource
}
