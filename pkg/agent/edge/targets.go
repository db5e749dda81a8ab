package edge

import (
	"fmt"
	"slices"
	"strings"

	clusterv3 "github.com/envoyproxy/go-control-plane/envoy/config/cluster/v3"
	"google.golang.org/protobuf/types/known/anypb"

	"github.com/fairlead/fairlead/pkg/model"
)

// targets says what the Envoy of an edge may dial, whatever its xds-server says: nothing but gateways and the apiservers that
// the machine's owner allows. Where those are not given it says nothing. An edge trusts its xds-server with the choice then.
type targets struct {
	apiservers []model.Endpoint // empty: no restriction
	gateways   []model.Endpoint
}

// check returns an error that names the address and the flag. It is for resources that the policy allows: they dial
// the addresses of their endpoints, over TCP, and nothing else.
func (t targets) check(resource *anypb.Any) error {
	c := &clusterv3.Cluster{}
	if len(t.apiservers) == 0 || resource.UnmarshalTo(c) != nil { // a listener dials Envoy clusters
		return nil
	}
	allowed, cure := t.apiservers, "allow it with --allow-target"
	if strings.HasPrefix(c.GetName(), "gateway-") {
		allowed, cure = t.gateways, "it is not a gateway of this edge: add it with --gateway"
	}
	for _, group := range c.GetLoadAssignment().GetEndpoints() {
		for _, e := range group.GetLbEndpoints() {
			at := e.GetEndpoint().GetAddress().GetSocketAddress()
			to := model.Endpoint{Host: at.GetAddress(), Port: uint16(at.GetPortValue())}
			if !slices.Contains(allowed, to) {
				return fmt.Errorf("the Envoy cluster %s dials %s, which this edge does not allow: %s", c.GetName(), to, cure)
			}
		}
	}
	return nil
}
