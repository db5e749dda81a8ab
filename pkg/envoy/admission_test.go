package envoy_test

import (
	"cmp"
	"slices"
	"strings"
	"testing"

	listenerv3 "github.com/envoyproxy/go-control-plane/envoy/config/listener/v3"
	extauthzv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/network/ext_authz/v3"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/anypb"

	"github.com/fairlead/fairlead/internal/envoytest"
	"github.com/fairlead/fairlead/pkg/envoy"
	"github.com/fairlead/fairlead/pkg/envoy/policy"
	"github.com/fairlead/fairlead/pkg/model"
)

var admissionBind = envoy.GatewayBind{
	Public:    model.Endpoint{Host: "127.0.0.1", Port: 1},
	APIServer: model.Endpoint{Host: "127.0.0.1", Port: 2},
	Connect:   model.Endpoint{Host: "127.0.0.1", Port: 3},
}

// admitted returns the public listener of a gateway with two peers, as its agent sends it to Envoy.
func admitted(t *testing.T, rate int) (all []*listenerv3.Listener, bare, with *anypb.Any) {
	t.Helper()
	peer := model.Endpoint{Host: "192.0.2.1", Port: 1}
	inst := model.Installation{
		Domain: domain, Public: peer, Control: peer, Handshakes: rate,
		Gateways: []model.Gateway{
			{Name: "gateway-0", Peer: peer},
			{Name: "gateway-1", Peer: peer},
			{Name: "gateway-2", Peer: peer},
		},
	}
	all = envoy.GatewayListeners(inst, "gateway-0", admissionBind, model.Denied{IDs: []string{"bbbbbbbbbbbbbbbbbbbb"}})
	for i, l := range all {
		packed, err := anypb.New(l)
		if err != nil {
			t.Fatal(err)
		}
		changed, ok := envoy.AddAdmission(packed)
		if ok != (l.GetName() == envoy.PublicListener) {
			t.Fatalf("listener %s: %t", l.GetName(), ok)
		}
		if !ok {
			continue
		}
		if got, _, _ := envoy.PublicLimits(packed); got != cmp.Or(rate, 1000) {
			t.Errorf("the rate is %d, want %d", got, cmp.Or(rate, 1000))
		}
		bare, with = packed, changed
		all[i] = &listenerv3.Listener{}
		if err := with.UnmarshalTo(all[i]); err != nil {
			t.Fatal(err)
		}
	}
	return all, bare, with
}

func TestEveryFilterChainCallsTheAgent(t *testing.T) {
	all, _, _ := admitted(t, 50)
	const ask, authorize, bucket = "envoy.filters.network.ratelimit", "envoy.filters.network.ext_authz",
		"envoy.filters.network.local_ratelimit"
	for _, chain := range all[0].GetFilterChains() {
		var names []string
		for _, f := range chain.GetFilters() {
			names = append(names, f.GetName())
		}
		want := []string{bucket, ask, bucket, "envoy.filters.network.tcp_proxy"}
		if chain.GetTransportSocket() != nil {
			want = []string{bucket, ask, bucket, "envoy.filters.network.rbac", authorize, "envoy.filters.network.reverse_tunnel"}
		}
		if !slices.Equal(names, want) {
			t.Errorf("filter chain %s has %q, want %q", chain.GetName(), names, want)
		}
	}
	if n := len(all[0].GetFilterChains()); n != 4 {
		t.Errorf("%d filter chains, want those of tunnels, the control channel and two gateways", n)
	}
}

// TestDenialsEndNoStreamsOfNetworks compares the filter chains of networks before and after a denial: Envoy drains a
// chain that changes, with all its streams. So the agent denies there, and without its answer nothing is admitted.
func TestDenialsEndNoStreamsOfNetworks(t *testing.T) {
	inst := model.Installation{
		Domain: domain, Public: admissionBind.Public, Control: admissionBind.Public,
		Gateways: []model.Gateway{{Name: "gateway-0", Peer: admissionBind.Public}},
	}
	bind := admissionBind
	bind.Version = envoy.Current
	chains := func(denied model.Denied) (managers []*listenerv3.FilterChain) {
		packed, err := anypb.New(envoy.GatewayListeners(inst, "gateway-0", bind, denied)[0])
		if err != nil {
			t.Fatal(err)
		}
		with, _ := envoy.AddAdmission(packed)
		l := &listenerv3.Listener{}
		if err := with.UnmarshalTo(l); err != nil {
			t.Fatal(err)
		}
		for _, chain := range l.GetFilterChains() {
			last := chain.GetFilters()[len(chain.GetFilters())-1]
			if strings.HasSuffix(last.GetName(), "http_connection_manager") {
				managers = append(managers, chain)
			}
		}
		return managers
	}
	id := model.NewID()
	before := chains(model.Denied{})
	after := chains(model.Denied{IDs: []string{id}, Edges: []model.EdgeRef{{Node: "edge-1", ID: id}}})
	if len(before) != 2 || len(after) != 2 {
		t.Fatalf("%d and %d filter chains, want those of apiservers and of machines", len(before), len(after))
	}
	for i, chain := range before {
		if !proto.Equal(chain, after[i]) {
			t.Errorf("a denial changes the filter chain %s", chain.GetName())
		}
		f := chain.GetFilters()[len(chain.GetFilters())-2]
		asks := &extauthzv3.ExtAuthz{}
		if err := f.GetTypedConfig().UnmarshalTo(asks); err != nil || asks.GetFailureModeAllow() {
			t.Errorf("filter chain %s: %s comes before the streams: %v, %v", chain.GetName(), f.GetName(), asks, err)
		}
	}
}

// TestAnXDSServerCannotCallTheAgent shows that only an agent adds these filters: it accepts none from an xds-server.
func TestAnXDSServerCannotCallTheAgent(t *testing.T) {
	_, bare, with := admitted(t, 0)
	allowed := policy.Of(
		policy.Scope{
			Domain:  domain,
			Subject: model.Subject{Role: model.RoleGateway, Node: "gateway-0"},
			Listens: admissionBind,
		},
	)
	if err := allowed.Check(bare); err != nil {
		t.Errorf("the usual listener is refused: %v", err)
	}
	if err := allowed.Check(with); err == nil || !strings.Contains(err.Error(), "does not accept from an xds-server") {
		t.Errorf("a listener that asks the agent gives %v", err)
	}
}

func TestEnvoyAcceptsTheFiltersOfAdmission(t *testing.T) {
	all, _, _ := admitted(t, 0)
	inst := model.Installation{Domain: domain, Control: model.Endpoint{Host: "192.0.2.1", Port: 1}}
	for i := range 3 {
		inst.Gateways = append(
			inst.Gateways, model.Gateway{Name: []string{"gateway-0", "gateway-1", "gateway-2"}[i], Peer: inst.Control},
		)
	}
	envoytest.Validate(
		t, marshal(t, envoy.Static(envoy.GatewayBootstrap(envoy.BootstrapConfig{}), all, envoy.GatewayClusters(inst))),
	)
}
