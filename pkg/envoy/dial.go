package envoy

import (
	"fmt"
	"net/netip"
	"path"
	"strings"
	"time"

	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	"google.golang.org/protobuf/types/known/structpb"

	"github.com/fairlead/fairlead/pkg/model"
)

// EdgeDial is what one edge dials in addition to its Tunnel, known only on its own machine. The zero value adds
// nothing.
type EdgeDial struct {
	// Gateways are all addresses at which this edge's Envoy reaches the public port of every gateway. If it is empty,
	// the installation's addresses are used.
	Gateways []model.Endpoint
	// APIServers are preferred, in this order, to the apiservers of the Tunnel.
	APIServers []model.Endpoint
	// Listen are the addresses at which an edge of a network accepts connections to the apiserver of its Cluster.
	Listen []model.Endpoint
	// Socket is the path of the Unix socket at which the Envoy beside an apiserver accepts its connections to networks.
	Socket string
	// Near is true if the round trip to the gateways is shorter than NearBelow, so that there is no slow uplink in
	// between.
	Near bool
	// First is the installation as it began, whose gateway addresses count; nil: the present one. It is never taken from
	// an edge.
	First *model.Installation
	// Version is the version that the agent reports. Before rendering it is lowered to the version of the profile.
	Version Version
}

// NearBelow is shorter than the round trip of any slow uplink, even an idle one: DSL, cable and radio take 5 ms and
// more.
const NearBelow = 2 * time.Millisecond

const (
	gatewaysField   = "gateways"
	apiserversField = "apiservers"
	listenField     = "listen"
	socketField     = "socket"
	nearField       = "near"
	// maxDialled is far above the number of addresses of a machine, and bounds the resources that an edge can request.
	maxDialled = 16
	// MaxSocketPath is the maximum length of EdgeDial.Socket: sun_path has 108 bytes with a final 0, see unix(7).
	MaxSocketPath = 107
)

// Metadata returns the metadata of the edge's Envoy node with these values, which sends them to the xds-server.
func (d EdgeDial) Metadata() *structpb.Struct {
	fields := map[string]*structpb.Value{}
	for name, endpoints := range map[string][]model.Endpoint{
		gatewaysField: d.Gateways, apiserversField: d.APIServers, listenField: d.Listen,
	} {
		if len(endpoints) == 0 {
			continue
		}
		list := &structpb.ListValue{}
		for _, e := range endpoints {
			list.Values = append(list.Values, structpb.NewStringValue(e.String()))
		}
		fields[name] = structpb.NewListValue(list)
	}
	if d.Socket != "" {
		fields[socketField] = structpb.NewStringValue(d.Socket)
	}
	if d.Near {
		fields[nearField] = structpb.NewBoolValue(true)
	}
	d.Version.addTo(fields)
	return ownMetadata(fields)
}

// ParseEdgeDial is the inverse of Metadata. For nil, or a node without such metadata, it returns the zero value. The
// error names the malformed field.
func ParseEdgeDial(node *corev3.Node) (EdgeDial, error) {
	fields := node.GetMetadata().GetFields()[metadataKey].GetStructValue().GetFields()
	d := EdgeDial{Near: fields[nearField].GetBoolValue(), Version: versionOf(fields)}
	for _, list := range []struct {
		name string
		into *[]model.Endpoint
	}{{gatewaysField, &d.Gateways}, {apiserversField, &d.APIServers}, {listenField, &d.Listen}} {
		values := fields[list.name].GetListValue().GetValues()
		if len(values) > maxDialled {
			return EdgeDial{}, fmt.Errorf(
				"reading %s from node metadata: there are %d addresses, at most %d are allowed", list.name, len(values), maxDialled,
			)
		}
		for _, v := range values {
			e, err := model.ParseEndpoint(v.GetStringValue())
			if err != nil {
				return EdgeDial{}, fmt.Errorf("reading %s from node metadata: %w", list.name, err)
			}
			*list.into = append(*list.into, e)
		}
	}
	for _, e := range d.Listen {
		if err := CheckListen(e); err != nil {
			return EdgeDial{}, fmt.Errorf("reading %s from node metadata: %w", listenField, err)
		}
	}
	if d.Socket = fields[socketField].GetStringValue(); d.Socket != "" {
		if err := CheckSocket(d.Socket); err != nil {
			return EdgeDial{}, fmt.Errorf("reading %s from node metadata: %w", socketField, err)
		}
	}
	return d, nil
}

// CheckListen returns an error for an address at which an Envoy cannot listen.
func CheckListen(e model.Endpoint) error {
	if _, err := netip.ParseAddr(e.Host); err != nil {
		return fmt.Errorf("%s does not begin with an IP address", e)
	}
	return nil
}

// CheckSocket returns an error for a path at which an Envoy cannot listen, or which depends on its working directory.
func CheckSocket(socket string) error {
	if !path.IsAbs(socket) || path.Clean(socket) != socket || len(socket) > MaxSocketPath ||
		strings.ContainsFunc(socket, func(r rune) bool { return r < ' ' || r > '~' }) {
		return fmt.Errorf("%.200q is not an absolute path of at most %d characters", socket, MaxSocketPath)
	}
	return nil
}

// gateways returns the addresses of a gateway's public port, without duplicates.
func (d EdgeDial) gateways(inst model.Installation, g model.Gateway) []model.Endpoint {
	if len(d.Gateways) == 0 {
		return []model.Endpoint{inst.GatewayPublic(g)}
	}
	return unique(d.Gateways)
}

// first returns the addresses of a gateway with which the installation began.
func (d EdgeDial) first(inst model.Installation, g model.Gateway) []model.Endpoint {
	if d.First == nil {
		return d.gateways(inst, g)
	}
	for _, began := range d.First.Gateways {
		if began.Name == g.Name {
			g = began
		}
	}
	return d.gateways(*d.First, g)
}

// apiservers returns the apiservers of a workload cluster, preferred ones first, without duplicates.
func (d EdgeDial) apiservers(wc model.WorkloadCluster) []model.Endpoint {
	return unique(d.APIServers, []model.Endpoint{wc.APIServer}, wc.Others)
}

// unique concatenates lists without duplicates.
func unique(lists ...[]model.Endpoint) []model.Endpoint {
	var all []model.Endpoint
	seen := map[model.Endpoint]bool{}
	for _, list := range lists {
		for _, e := range list {
			if !seen[e] {
				seen[e] = true
				all = append(all, e)
			}
		}
	}
	return all
}
