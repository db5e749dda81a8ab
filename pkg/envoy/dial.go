package envoy

import (
	"fmt"
	"time"

	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	"google.golang.org/protobuf/types/known/structpb"

	"github.com/fairlead/fairlead/pkg/model"
)

// EdgeDial is what one edge dials, as far as only its own machine knows. Its zero value says nothing.
type EdgeDial struct {
	// Gateways are all addresses at which this edge's Envoy reaches the public port of every gateway; none: where the installation
	// says.
	Gateways []model.Endpoint
	// APIServers are preferred, in this order, to those that the Tunnel names.
	APIServers []model.Endpoint
	// Near says that the round trip to the gateways is shorter than NearBelow, so that there is no slow uplink in between.
	Near bool
	// First is the installation as it began, of which the addresses of gateways count; nil: as it is. No edge says it.
	First *model.Installation
	// Version is what the edge's resources are rendered for.
	Version Version
}

// NearBelow is a round trip that no slow uplink has, not even an idle one: DSL, cable and radio take 5 ms and more.
const NearBelow = 2 * time.Millisecond

const (
	gatewaysField   = "gateways"
	apiserversField = "apiservers"
	nearField       = "near"
	// maxDialled is far more than a machine has addresses for, and keeps what an edge can ask for small.
	maxDialled = 16
)

// Metadata writes it into the metadata of the edge's Envoy node, which brings them to the xds-server.
func (d EdgeDial) Metadata() *structpb.Struct {
	fields := map[string]*structpb.Value{}
	for name, endpoints := range map[string][]model.Endpoint{gatewaysField: d.Gateways, apiserversField: d.APIServers} {
		if len(endpoints) == 0 {
			continue
		}
		list := &structpb.ListValue{}
		for _, e := range endpoints {
			list.Values = append(list.Values, structpb.NewStringValue(e.String()))
		}
		fields[name] = structpb.NewListValue(list)
	}
	if d.Near {
		fields[nearField] = structpb.NewBoolValue(true)
	}
	d.Version.say(fields)
	return ownMetadata(fields)
}

// ParseEdgeDial is the inverse of Metadata. A node without such metadata, or nil, has the zero value; the error names what is
// malformed.
func ParseEdgeDial(node *corev3.Node) (EdgeDial, error) {
	fields := node.GetMetadata().GetFields()[metadataKey].GetStructValue().GetFields()
	d := EdgeDial{Near: fields[nearField].GetBoolValue(), Version: versionOf(fields)}
	for _, list := range []struct {
		name string
		into *[]model.Endpoint
	}{{gatewaysField, &d.Gateways}, {apiserversField, &d.APIServers}} {
		values := fields[list.name].GetListValue().GetValues()
		if len(values) > maxDialled {
			return EdgeDial{}, fmt.Errorf("reading %s from node metadata: there are %d addresses, at most %d are allowed", list.name, len(values), maxDialled)
		}
		for _, v := range values {
			e, err := model.ParseEndpoint(v.GetStringValue())
			if err != nil {
				return EdgeDial{}, fmt.Errorf("reading %s from node metadata: %w", list.name, err)
			}
			*list.into = append(*list.into, e)
		}
	}
	return d, nil
}

// gateways are the addresses of a gateway's public port, without repetition.
func (d EdgeDial) gateways(inst model.Installation, g model.Gateway) []model.Endpoint {
	if len(d.Gateways) == 0 {
		return []model.Endpoint{inst.GatewayPublic(g)}
	}
	return unique(d.Gateways)
}

// first are the addresses of a gateway with which the installation began.
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

// apiservers are those of a workload cluster, those that are preferred first, without repetition.
func (d EdgeDial) apiservers(wc model.WorkloadCluster) []model.Endpoint {
	return unique(d.APIServers, []model.Endpoint{wc.APIServer}, wc.Others)
}

// unique joins lists, and leaves out what has been there before.
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
