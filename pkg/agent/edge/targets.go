package edge

import (
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"strconv"
	"strings"

	clusterv3 "github.com/envoyproxy/go-control-plane/envoy/config/cluster/v3"
	"google.golang.org/protobuf/types/known/anypb"

	"github.com/fairlead/fairlead/pkg/envoy"
	"github.com/fairlead/fairlead/pkg/envoy/network"
	"github.com/fairlead/fairlead/pkg/model"
)

// errPorts explains a restriction that Envoy sets.
var errPorts = errors.New(
	"all CIDRs must have the same ports: a name may have addresses in several CIDRs, and Envoy dials them with one port",
)

// ParseTargets parses what the owner of a machine allows. An entry is the host:port of an apiserver or of a named
// target of a network, or a CIDR of destinations in networks, such as 10.1.0.0/16, 10.1.0.0/16:10250 or
// fd00:1::/64:10250.
func ParseTargets(entries []string) (network.Allowed, error) {
	var targets []model.Endpoint
	ports := map[netip.Prefix][]uint16{}
	for _, entry := range entries {
		if !strings.Contains(entry, "/") {
			e, err := model.ParseEndpoint(entry)
			if err != nil {
				return network.Allowed{}, err
			}
			targets = append(targets, e)
			continue
		}
		cidr, port, err := parseCIDR(entry)
		if err != nil {
			return network.Allowed{}, err
		}
		ports[cidr] = append(ports[cidr], port)
	}
	allowed, err := allowedOf(ports)
	allowed.Targets = targets
	return allowed, err
}

// parseCIDR parses a CIDR with or without a port, which is 0 then.
func parseCIDR(entry string) (cidr netip.Prefix, port uint16, err error) {
	address, rest, _ := strings.Cut(entry, "/")
	bits, number, hasPort := strings.Cut(rest, ":")
	if cidr, err = model.ValidateCIDR(address + "/" + bits); err != nil || !hasPort {
		return cidr, 0, err
	}
	n, err := strconv.ParseUint(number, 10, 16)
	if err != nil || n == 0 {
		return netip.Prefix{}, 0, fmt.Errorf("%q has no port from 1 to 65535 after the CIDR", entry)
	}
	return cidr, uint16(n), nil
}

// allowedOf combines the ports of each CIDR; 0 is all ports.
func allowedOf(ports map[netip.Prefix][]uint16) (network.Allowed, error) {
	var all network.Allowed
	var first []uint16
	for cidr, own := range ports {
		slices.Sort(own)
		if own = slices.Compact(own); own[0] == 0 {
			own = []uint16{0}
		}
		if len(all.CIDRs) > 0 && !slices.Equal(own, first) {
			return network.Allowed{}, errPorts
		}
		all.CIDRs, first = append(all.CIDRs, cidr), own
	}
	slices.SortFunc(all.CIDRs, netip.Prefix.Compare)
	for _, port := range first {
		if port != 0 {
			all.Ports = append(all.Ports, model.PortRange{First: port, Last: port})
		}
	}
	return all, nil
}

// targets restricts what the Envoy of an edge may dial, regardless of its xds-server: only gateways, and the
// apiservers that the machine's owner allows. Destinations in networks are not in endpoints: a Narrowing restricts
// them. Without a restriction the edge trusts its xds-server.
type targets struct {
	restricted bool
	allowed    network.Allowed
	apiservers []model.Endpoint // allowed besides
	gateways   []model.Endpoint
}

// check returns an error that names the address and the flag. It is for resources that the policy allows: these dial
// only the addresses of their endpoints, over TCP, and destinations in networks.
func (t targets) check(resource *anypb.Any) error {
	c := &clusterv3.Cluster{}
	if !t.restricted || resource.UnmarshalTo(c) != nil { // listeners dial Envoy clusters
		return nil
	}
	may, cure := t.mayServe, "allow it with --allow-target"
	if envoy.DialsGateways(c.GetName()) {
		may, cure = t.isGateway, "it is not a gateway of this edge: add it with --gateway"
	}
	for _, group := range c.GetLoadAssignment().GetEndpoints() {
		for _, e := range group.GetLbEndpoints() {
			at := e.GetEndpoint().GetAddress().GetSocketAddress()
			to := model.Endpoint{Host: at.GetAddress(), Port: uint16(at.GetPortValue())}
			if !may(to) {
				return fmt.Errorf("the Envoy cluster %s dials %s, which this edge does not allow: %s", c.GetName(), to, cure)
			}
		}
	}
	return nil
}

func (t targets) isGateway(e model.Endpoint) bool { return slices.Contains(t.gateways, e) }

// mayServe reports whether an endpoint may be dialled as an apiserver.
func (t targets) mayServe(e model.Endpoint) bool {
	return slices.Contains(t.apiservers, e) || slices.Contains(t.allowed.Targets, e) || t.allowed.Contains(e)
}
