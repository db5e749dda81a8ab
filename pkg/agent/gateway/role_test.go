package gateway

import (
	"testing"

	clusterv3 "github.com/envoyproxy/go-control-plane/envoy/config/cluster/v3"
	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	endpointv3 "github.com/envoyproxy/go-control-plane/envoy/config/endpoint/v3"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/anypb"

	"github.com/fairlead/fairlead/pkg/envoy"
	"github.com/fairlead/fairlead/pkg/model"
)

func TestAGatewayRejectsResourcesThatDialItsAgent(t *testing.T) {
	at := model.Endpoint{Host: "127.0.0.1", Port: 1}
	loopback := &corev3.Address{Address: &corev3.Address_SocketAddress{SocketAddress: &corev3.SocketAddress{
		Address: at.Host, PortSpecifier: &corev3.SocketAddress_PortValue{PortValue: uint32(at.Port)},
	}}}
	socket := &corev3.Address{Address: &corev3.Address_Pipe{Pipe: &corev3.Pipe{Path: "/run/docker.sock"}}}
	installation := model.Installation{Domain: domain, Control: at, Gateways: []model.Gateway{{Name: name}}}
	bind := envoy.GatewayBind{Public: at, APIServer: at, Connect: at}
	check := (&Role{Config: Config{Domain: domain, Name: name, Bind: bind}}).Check(
		model.Subject{Role: model.RoleGateway, Node: name},
	)
	var all []proto.Message
	for _, l := range envoy.GatewayListeners(installation, name, bind, model.Denied{}) {
		all = append(all, l)
	}
	for _, c := range envoy.GatewayClusters(installation) {
		all = append(all, c)
	}
	for _, m := range all {
		if err := check("", packed(t, m)); err != nil {
			t.Error(err)
		}
	}
	elsewhere := bind
	elsewhere.Public.Host = "192.0.2.1"
	for what, c := range map[string]proto.Message{
		"the agent": clusterAt("agent", loopback), "its socket": clusterAt("gateway-1", socket),
		"an address that it was not given": envoy.GatewayListeners(installation, name, elsewhere, model.Denied{})[0],
	} {
		if check("", packed(t, c)) == nil {
			t.Errorf("%s is taken", what)
		}
	}
}

func packed(t *testing.T, m proto.Message) *anypb.Any {
	t.Helper()
	packed, err := anypb.New(m)
	if err != nil {
		t.Fatal(err)
	}
	return packed
}

func clusterAt(name string, at *corev3.Address) *clusterv3.Cluster {
	return &clusterv3.Cluster{
		Name: name,
		LoadAssignment: &endpointv3.ClusterLoadAssignment{Endpoints: []*endpointv3.LocalityLbEndpoints{{
			LbEndpoints: []*endpointv3.LbEndpoint{
				{HostIdentifier: &endpointv3.LbEndpoint_Endpoint{Endpoint: &endpointv3.Endpoint{Address: at}}},
			},
		}}},
	}
}
