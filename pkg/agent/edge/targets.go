package edge

import (
	"fmt"
	"slices"
	"strings"

	clusterv3 "github.com/envoyproxy/go-control-plane/envoy/config/cluster/v3"
	"google.golang.org/protobuf/types/known/anypb"

	"github.com/fairlead/fairlead/pkg/model"
)

// targets restricts what the Envoy of an edge may dial, regardless of its xds-server: only gateways, and the
// apiservers that the machine's owner allows. Without a list of apiservers there is no restriction, and the edge
// trusts its xds-server.
type targets struct {
	apiservers []model.Endpoint // empty: no restriction
	gateways   []model.Endpoint
}

// check returns an error that names the address and the flag. It is for resources that the policy allows: these dial
// only the addresses of their endpoints, over TCP.
func (t targets) check(resource *anypb.Any) error {
	c := &clusterv3.Cluster{}
	if len(t.apiservers) == 0 || resource.UnmarshalTo(c) != nil { // listeners dial Envoy clusters
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
