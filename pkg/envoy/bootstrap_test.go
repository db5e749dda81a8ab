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
	"github.com/fairlead/fairlead/pkg/envoy/sds"
	"github.com/fairlead/fairlead/pkg/model"
)

var (
	anyAddress = model.Endpoint{Host: "0.0.0.0", Port: 443}
	allBound   = envoy.GatewayBind{
		Public:    anyAddress,
		APIServer: model.Endpoint{Host: "::", Port: 6443},
		Connect:   model.Endpoint{Host: "::1", Port: 3128},
	}
)

func TestGatewayBindGoesThroughTheNode(t *testing.T) {
	got, err := envoy.ParseGatewayBind(&corev3.Node{Metadata: allBound.Metadata()})
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(allBound, got); diff != "" {
		t.Error(diff)
	}
}

func TestParseGatewayBindRejects(t *testing.T) {
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
		"an address that is a name":   {in: with("apiserver", "localhost:6443"), wantErr: "not an IP address"},
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

func TestAListenerOnAllIPv6AddressesAcceptsIPv4(t *testing.T) {
	bound := allBound
	bound.Public.Host = "0:0:0:0:0:0:0:0" // the same address in another form
	for i, want := range []bool{true, true, false} {
		l := envoy.GatewayListeners(model.Installation{Domain: domain}, "gateway-0", bound, model.Denied{})[i]
		if got := l.GetAddress().GetSocketAddress().GetIpv4Compat(); got != want {
			t.Errorf("%s: got %v, want %v", l.GetName(), got, want)
		}
	}
}

func TestParseListen(t *testing.T) {
	for name, tc := range map[string]struct {
		in      string
		ipv6    bool
		want    string
		wantErr string
	}{
		"all addresses":                     {in: ":443", ipv6: true, want: "[::]:443"},
		"all addresses, without IPv6":       {in: ":443", want: "0.0.0.0:443"},
		"all IPv4 addresses":                {in: "0.0.0.0:443", ipv6: true, want: "0.0.0.0:443"},
		"an IPv6 address":                   {in: "[2001:db8::1]:443", want: "[2001:db8::1]:443"},
		"an IPv6 address, without brackets": {in: "2001:db8::1:443", ipv6: true, wantErr: "not host:port"},
		"all addresses, written without ::": {in: "::443", ipv6: true, wantErr: "not host:port"},
		"no port":                           {in: ":", ipv6: true, wantErr: "port"},
	} {
		t.Run(name, func(t *testing.T) {
			got, err := envoy.ParseListen(tc.in, tc.ipv6)
			checkError(t, err, tc.wantErr)
			if err == nil && got.String() != tc.want {
				t.Errorf("got %s, want %s", got, tc.want)
			}
		})
	}
}

func TestOnlyTunnelsHaveNamesThatClientsCanSend(t *testing.T) {
	inst := model.Installation{Domain: domain, Public: anyAddress, Control: anyAddress, Gateways: []model.Gateway{
		{Name: "gateway-0", Peer: anyAddress}, {Name: "gateway-1", Peer: anyAddress},
	}}
	clusters := envoy.GatewayBootstrap(envoy.BootstrapConfig{}).GetStaticResources().GetClusters()
	for _, c := range append(clusters, envoy.GatewayClusters(inst)...) {
		if strings.Contains(c.GetName(), ".") || net.ParseIP(c.GetName()) != nil {
			t.Errorf("Envoy cluster %s has a name that a client may send", c.GetName())
		}
	}
	for _, c := range envoy.TunnelClusters(inst, model.WorkloadCluster{ID: model.NewID(), Hostname: "c1.prod." + string(
		domain), ExtraNames: []string{"a.b"}}) {
		if c.GetType() != clusterv3.Cluster_STATIC || c.GetClusterType().GetName() != "envoy.clusters.reverse_connection" {
			t.Errorf("Envoy cluster %s dials something", c.GetName())
		}
	}
}

func TestSecretsContainTheirInput(t *testing.T) {
	identity, trust := sds.Identity("a", []byte("chain"), []byte("key")), sds.Trust("b", []byte("bundle"))
	got := []string{
		identity.GetName(), string(identity.GetTlsCertificate().GetCertificateChain().GetInlineBytes()),
		string(identity.GetTlsCertificate().GetPrivateKey().GetInlineBytes()),
		trust.GetName(), string(trust.GetValidationContext().GetTrustedCa().GetInlineBytes()),
	}
	if diff := cmp.Diff([]string{"a", "chain", "key", "b", "bundle"}, got); diff != "" {
		t.Error(diff)
	}
}

func TestEqualMessagesGiveEqualYAML(t *testing.T) {
	b := envoy.GatewayBootstrap(envoy.BootstrapConfig{})
	first := string(marshal(t, b))
	for range 10 {
		if diff := cmp.Diff(first, string(marshal(t, b))); diff != "" {
			t.Fatal(diff)
		}
	}
}
