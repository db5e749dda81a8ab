package envoy_test

import (
	"net"
	"strings"
	"testing"

	clusterv3 "github.com/envoyproxy/go-control-plane/envoy/config/cluster/v3"
	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	"github.com/google/go-cmp/cmp"
	"google.golang.org/protobuf/types/known/structpb"

	"github.com/fairlead/fairlead/pkg/envoy"
	"github.com/fairlead/fairlead/pkg/model"
)

var (
	anyAddress = model.Endpoint{Host: "0.0.0.0", Port: 443}
	allBound   = envoy.GatewayBind{Public: anyAddress, APIServer: model.Endpoint{Host: "::", Port: 6443}, Connect: model.Endpoint{Host: "::1", Port: 3128}}
)

func TestGatewayBindGoesThroughTheNode(t *testing.T) {
	b := envoy.GatewayBootstrap(envoy.GatewayConfig{Domain: domain, Name: "gateway-0", XDSServer: anyAddress, Bind: allBound})
	got, err := envoy.ParseGatewayBind(b.GetNode())
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(allBound, got); diff != "" {
		t.Error(diff)
	}
}

func TestParseGatewayBindRefuses(t *testing.T) {
	with := func(key string, value any) *corev3.Node {
		fields := map[string]any{"public": "0.0.0.0:443", "apiserver": "0.0.0.0:6443", "connect": "0.0.0.0:3128"}
		fields[key] = value
		metadata, err := structpb.NewStruct(map[string]any{"fairlead": fields})
		if err != nil {
			t.Fatal(err)
		}
		return &corev3.Node{Metadata: metadata}
	}
	tests := map[string]struct {
		in      *corev3.Node
		wantErr string
	}{
		"no node":                     {wantErr: "reading address"},
		"no metadata":                 {in: &corev3.Node{}, wantErr: "reading address"},
		"an address that is a number": {in: with("connect", 3128), wantErr: "listener connect"},
		"an address that is a name":   {in: with("apiserver", "localhost:6443"), wantErr: "no IP address"},
		"an address without a port":   {in: with("public", "0.0.0.0"), wantErr: "listener public"},
		"a Unix socket":               {in: with("public", "/run/envoy.sock"), wantErr: "listener public"},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			_, err := envoy.ParseGatewayBind(tc.in)
			checkError(t, err, tc.wantErr)
		})
	}
}

func TestAListenerOnAllIPv6AddressesTakesIPv4(t *testing.T) {
	for i, want := range []bool{false, true, false} {
		l := envoy.GatewayListeners(model.Installation{Domain: domain}, "gateway-0", allBound)[i]
		if got := l.GetAddress().GetSocketAddress().GetIpv4Compat(); got != want {
			t.Errorf("%s: got %v, want %v", l.GetName(), got, want)
		}
	}
}

func TestConfigsAreChecked(t *testing.T) {
	id := model.NewID()
	gateway := envoy.GatewayConfig{Domain: domain, Name: "gateway-0", XDSServer: anyAddress, Bind: allBound}
	edge := envoy.EdgeConfig{Domain: domain, Node: "edge-a", ID: id, Gateway: anyAddress}
	tests := map[string]struct {
		in      interface{ Validate() error }
		wantErr string
	}{
		"a gateway":                       {in: gateway},
		"an edge":                         {in: edge},
		"a gateway without a domain":      {in: envoy.GatewayConfig{Name: "gateway-0", XDSServer: anyAddress, Bind: allBound}, wantErr: "tunnel domain"},
		"a gateway with an edge's name":   {in: envoy.GatewayConfig{Domain: domain, Name: "edge-a", XDSServer: anyAddress, Bind: allBound}, wantErr: "gateway name"},
		"a gateway without xds-server":    {in: envoy.GatewayConfig{Domain: domain, Name: "gateway-0", Bind: allBound}, wantErr: "xds-server"},
		"a gateway without listeners":     {in: envoy.GatewayConfig{Domain: domain, Name: "gateway-0", XDSServer: anyAddress}, wantErr: "listener"},
		"an edge without a domain":        {in: envoy.EdgeConfig{Node: "edge-a", ID: id, Gateway: anyAddress}, wantErr: "tunnel domain"},
		"an edge whose name breaks rc://": {in: envoy.EdgeConfig{Domain: domain, Node: "a:b", ID: id, Gateway: anyAddress}, wantErr: "node name"},
		"an edge without an id":           {in: envoy.EdgeConfig{Domain: domain, Node: "edge-a", Gateway: anyAddress}, wantErr: "tunnel id"},
		"an edge without gateways":        {in: envoy.EdgeConfig{Domain: domain, Node: "edge-a", ID: id}, wantErr: "address of the gateways"},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) { checkError(t, tc.in.Validate(), tc.wantErr) })
	}
}

func TestOnlyTunnelsHaveNamesThatClientsCanSend(t *testing.T) {
	inst := model.Installation{Domain: domain, Public: anyAddress, Control: anyAddress, Gateways: []model.Gateway{
		{Name: "gateway-0", Peer: anyAddress}, {Name: "gateway-1", Peer: anyAddress},
	}}
	clusters := envoy.GatewayBootstrap(envoy.GatewayConfig{Domain: domain, XDSServer: anyAddress}).GetStaticResources().GetClusters()
	for _, c := range append(clusters, envoy.GatewayClusters(inst)...) {
		if strings.Contains(c.GetName(), ".") || net.ParseIP(c.GetName()) != nil {
			t.Errorf("Envoy cluster %s has a name that a client may send", c.GetName())
		}
	}
	for _, c := range envoy.TunnelClusters(inst, model.WorkloadCluster{ID: model.NewID(), Hostname: "c1.prod." + string(domain), ExtraNames: []string{"a.b"}}) {
		if c.GetType() != clusterv3.Cluster_STATIC || c.GetClusterType().GetName() != "envoy.clusters.reverse_connection" {
			t.Errorf("Envoy cluster %s dials something", c.GetName())
		}
	}
}

func TestSecretsHoldWhatTheyAreGiven(t *testing.T) {
	identity := envoy.IdentitySecret([]byte("chain"), []byte("key")).GetTlsCertificate()
	trust := envoy.TrustSecret([]byte("bundle")).GetValidationContext()
	got := []string{
		string(identity.GetCertificateChain().GetInlineBytes()), string(identity.GetPrivateKey().GetInlineBytes()), string(trust.GetTrustedCa().GetInlineBytes()),
	}
	if diff := cmp.Diff([]string{"chain", "key", "bundle"}, got); diff != "" {
		t.Error(diff)
	}
}

func TestEqualMessagesGiveEqualYAML(t *testing.T) {
	config := envoy.GatewayConfig{Domain: domain, Name: "gateway-0", XDSServer: anyAddress, Bind: allBound}
	first := string(marshal(t, envoy.GatewayBootstrap(config)))
	for range 10 {
		if diff := cmp.Diff(first, string(marshal(t, envoy.GatewayBootstrap(config)))); diff != "" {
			t.Fatal(diff)
		}
	}
}
