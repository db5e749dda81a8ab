package edge

import (
	"log/slog"
	"strings"
	"testing"

	clusterv3 "github.com/envoyproxy/go-control-plane/envoy/config/cluster/v3"
	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	endpointv3 "github.com/envoyproxy/go-control-plane/envoy/config/endpoint/v3"
	listenerv3 "github.com/envoyproxy/go-control-plane/envoy/config/listener/v3"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/anypb"

	"github.com/fairlead/fairlead/pkg/agent/status"
	"github.com/fairlead/fairlead/pkg/envoy"
	"github.com/fairlead/fairlead/pkg/model"
)

var (
	target  = model.Endpoint{Host: "10.0.0.10", Port: 6443}
	stray   = model.Endpoint{Host: "169.254.169.254", Port: 80}
	atFront = model.Endpoint{Host: "gw.example.com", Port: 443}
	onList  = targets{restricted: true, apiservers: []model.Endpoint{target}, gateways: []model.Endpoint{atFront}}
)

// checkOf returns the check of an edge.
func checkOf(t targets) func(string, *anypb.Any) error {
	e := &Role{Config: Config{Domain: domain}}
	e.targets, e.prober = t, newProber(status.New(status.Process), slog.New(slog.DiscardHandler))
	return e.Check(edgeSubject)
}

func TestAnEdgeAcceptsOnlyAllowedAddresses(t *testing.T) {
	tests := map[string]struct {
		in      *clusterv3.Cluster
		wantErr string // empty: it is accepted
		always  bool   // it is rejected without a list too
	}{
		"an apiserver on the list": {in: clusterOf("apiserver_edge-a", target)},
		"a gateway":                {in: clusterOf("gateway-0_edge-a", atFront)},
		"an apiserver that is not": {
			in:      clusterOf("apiserver_edge-a", stray),
			wantErr: "dials 169.254.169.254:80, which this edge does not allow: allow it with --allow-target",
		},
		"one of two that is not": {in: clusterOf("apiserver_edge-a", target, stray), wantErr: stray.String()},
		"another port": {
			in:      clusterOf("apiserver_edge-a", model.Endpoint{Host: target.Host, Port: 22}),
			wantErr: "10.0.0.10:22",
		},
		"a gateway that is none":         {in: clusterOf("gateway-0_edge-a", stray), wantErr: "add it with --gateway"},
		"a gateway that is an apiserver": {in: clusterOf("gateway-0_edge-a", target), wantErr: "add it with --gateway"},
		"an apiserver that is a gateway": {in: clusterOf("apiserver_edge-a", atFront), wantErr: "--allow-target"},
		"an Envoy cluster with odd names": {
			in:      clusterOf("metadata", stray),
			wantErr: "does not belong to this subject",
			always:  true,
		},
		"apiservers of another": {
			in:      clusterOf("apiserver_edge-b", target),
			wantErr: "does not belong to this subject",
			always:  true,
		},
		"a socket of the machine": {in: socketOfTheMachine(), wantErr: "pipe is set", always: true},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			packed := pack(t, tc.in)
			err := checkOf(onList)(packed.GetTypeUrl(), packed)
			if (err == nil) != (tc.wantErr == "") || (err != nil && !strings.Contains(err.Error(), tc.wantErr)) {
				t.Errorf("got %v, want an error with %q", err, tc.wantErr)
			}
			if err := checkOf(targets{})(packed.GetTypeUrl(), packed); (err != nil) != tc.always {
				t.Errorf("without a list: got %v", err)
			}
		})
	}
}

func TestNoListenerOfAnEdgeLeadsToItsAgent(t *testing.T) {
	wc := model.WorkloadCluster{ID: edgeSubject.ID, APIServer: target}
	installation := model.Installation{Domain: domain, Public: atFront, Gateways: []model.Gateway{{Name: name}}}
	for what, change := range map[string]func(*listenerv3.Listener){
		"dials it": func(l *listenerv3.Listener) {
			l.Address.GetSocketAddress().Address = "rc://CN=edge-a:b:c@agent:2"
		},
		"is for another tunnel": func(l *listenerv3.Listener) { l.Name = "tunnel_edge-b_gateway-0" },
		"listens":               func(l *listenerv3.Listener) { l.Address = addressOf(stray) },
	} {
		l := envoy.EdgeListeners(installation, wc, edgeSubject.Node, envoy.EdgeDial{})[0]
		change(l)
		packed := pack(t, l)
		for _, list := range []targets{{}, onList} {
			if err := checkOf(list)(packed.GetTypeUrl(), packed); err == nil {
				t.Errorf("one that %s is taken", what)
			}
		}
	}
}

func TestRenderedResourcesFitAnAllowList(t *testing.T) {
	installation := model.Installation{Domain: domain, Public: atFront, Gateways: []model.Gateway{{Name: name}}}
	wc := model.WorkloadCluster{ID: edgeSubject.ID, Hostname: "c1.prod.tunnels.example.com", APIServer: target}
	var all []proto.Message
	for _, cluster := range envoy.EdgeClusters(installation, wc, edgeSubject.Node, envoy.EdgeDial{}) {
		all = append(all, cluster)
	}
	for _, listener := range envoy.EdgeListeners(installation, wc, edgeSubject.Node, envoy.EdgeDial{}) {
		all = append(all, listener)
	}
	if len(all) < 3 {
		t.Fatalf("there are only %v", all)
	}
	for _, m := range all {
		packed := pack(t, m)
		if err := checkOf(onList)(packed.GetTypeUrl(), packed); err != nil {
			t.Error(err)
		}
	}
}

func pack(t *testing.T, m proto.Message) *anypb.Any {
	t.Helper()
	packed, err := anypb.New(m)
	if err != nil {
		t.Fatal(err)
	}
	return packed
}

// clusterOf returns an Envoy cluster as an xds-server makes it for an edge's gateway or apiservers, with another name
// and other endpoints.
func clusterOf(name string, to ...model.Endpoint) *clusterv3.Cluster {
	installation := model.Installation{Domain: domain, Public: atFront, Gateways: []model.Gateway{{Name: "gateway-0"}}}
	made := envoy.EdgeClusters(
		installation, model.WorkloadCluster{ID: edgeSubject.ID, APIServer: target}, edgeSubject.Node, envoy.EdgeDial{},
	)
	c := made[0]
	if strings.HasPrefix(name, "gateway-") {
		c = made[1]
	}
	c.Name, c.LoadAssignment, c.ClusterDiscoveryType = name, &endpointv3.ClusterLoadAssignment{}, &clusterv3.Cluster_Type{
		Type: clusterv3.Cluster_STATIC,
	}
	for i, e := range to {
		c.LoadAssignment.Endpoints = append(c.LoadAssignment.Endpoints, &endpointv3.LocalityLbEndpoints{
			Priority: uint32(i), LbEndpoints: []*endpointv3.LbEndpoint{{
				HostIdentifier: &endpointv3.LbEndpoint_Endpoint{Endpoint: &endpointv3.Endpoint{Address: addressOf(e)}},
			}},
		})
	}
	return c
}

func addressOf(e model.Endpoint) *corev3.Address {
	return &corev3.Address{Address: &corev3.Address_SocketAddress{SocketAddress: &corev3.SocketAddress{
		Address: e.Host, PortSpecifier: &corev3.SocketAddress_PortValue{PortValue: uint32(e.Port)},
	}}}
}

func socketOfTheMachine() *clusterv3.Cluster {
	c := clusterOf("apiserver_edge-a", target)
	c.LoadAssignment.Endpoints[0].LbEndpoints[0].GetEndpoint().Address = &corev3.Address{
		Address: &corev3.Address_Pipe{Pipe: &corev3.Pipe{Path: "/run/docker.sock"}},
	}
	return c
}
