package envoy

import (
	"strings"
	"testing"

	listenerv3 "github.com/envoyproxy/go-control-plane/envoy/config/listener/v3"
	hcmv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/network/http_connection_manager/v3"

	"github.com/fairlead/fairlead/pkg/envoy/record"
	"github.com/fairlead/fairlead/pkg/envoy/typed"
	"github.com/fairlead/fairlead/pkg/model"
)

// publicOf returns the public listener of a gateway with all kinds of filter chains.
func publicOf(t *testing.T, denied model.Denied) *listenerv3.Listener {
	t.Helper()
	at := model.Endpoint{Host: "192.0.2.1", Port: 443}
	inst := model.Installation{
		Domain: "tunnels.example.com", Public: at, Control: at,
		Gateways: []model.Gateway{
			{Name: "gateway-0", Peer: at},
			{Name: "gateway-1", Peer: at},
			{Name: "gateway-2", Peer: at},
		},
	}
	l := GatewayListeners(inst, "gateway-0", GatewayBind{Public: at, APIServer: at, Connect: at}, denied)[0]
	if l.GetName() != publicListener || len(l.GetFilterChains()) != 4 {
		t.Fatalf("the first listener is %s with %d filter chains", l.GetName(), len(l.GetFilterChains()))
	}
	return l
}

func TestEachFilterChainOfThePublicListenerRecordsItsOwner(t *testing.T) {
	l := publicOf(t, model.Denied{})
	owners := map[string]int{}
	for _, chain := range l.GetFilterChains() {
		owner := record.Owner(chain)
		if owner == "" {
			t.Errorf("filter chain %s records no owner: a connection in it would be closed as unknown", chain.GetName())
		}
		owners[owner]++
	}
	if owners[record.OwnerTunnel] != 1 || owners[record.OwnerControl] != 1 || owners[record.OwnerRelay] != 2 {
		t.Errorf("owners: %v", owners)
	}
	if l.GetDefaultFilterChain() != nil || l.GetFilterChainMatcher() != nil {
		t.Error("the public listener has filter chains that this test does not see")
	}
	if err := RecordsOwners(typed.Pack(l)); err != nil {
		t.Error(err)
	}
}

// TestChainsOfNetworksRecordTheirOwner checks the listener as agents of this version get it.
func TestChainsOfNetworksRecordTheirOwner(t *testing.T) {
	at := model.Endpoint{Host: "192.0.2.1", Port: 443}
	inst := model.Installation{Domain: "tunnels.example.com", Public: at, Control: at}
	listener := func() *listenerv3.Listener {
		return GatewayListeners(
			inst, "gateway-0", GatewayBind{Public: at, APIServer: at, Connect: at, Version: Current}, model.Denied{},
		)[0]
	}
	owners := map[string]int{}
	for _, chain := range listener().GetFilterChains() {
		owners[record.Owner(chain)]++
	}
	err := RecordsOwners(typed.Pack(listener()))
	if owners[record.OwnerEgress] != 1 || owners[record.OwnerForward] != 1 || err != nil {
		t.Errorf("owners: %v, %v", owners, err)
	}
	for name, change := range map[string]func(*hcmv3.HttpConnectionManager){
		"no record":          func(m *hcmv3.HttpConnectionManager) { m.AccessLog = nil },
		"only when it ends":  func(m *hcmv3.HttpConnectionManager) { m.AccessLogOptions = nil },
		"records of no type": func(m *hcmv3.HttpConnectionManager) { m.AccessLog[0].Filter = nil },
		"records of all other": func(m *hcmv3.HttpConnectionManager) {
			m.AccessLog[0].Filter.GetLogTypeFilter().Exclude = true
		},
	} {
		l := listener()
		filters := l.GetFilterChains()[2].GetFilters()
		last, m := filters[len(filters)-1], &hcmv3.HttpConnectionManager{}
		if err := last.GetTypedConfig().UnmarshalTo(m); err != nil {
			t.Fatal(err)
		}
		change(m)
		last.ConfigType = &listenerv3.Filter_TypedConfig{TypedConfig: typed.Pack(m)}
		if RecordsOwners(typed.Pack(l)) == nil {
			t.Errorf("%s: it is not found", name)
		}
	}
}

func TestAFilterChainWithoutRecordIsDetected(t *testing.T) {
	for name, change := range map[string]func(l *listenerv3.Listener){
		"a chain that is added": func(l *listenerv3.Listener) {
			l.FilterChains = append(l.FilterChains, chainFor("new.example.com", tcpProxyFilter(tcpProxy("new", "new"))))
		},
		"a default chain": func(l *listenerv3.Listener) {
			l.DefaultFilterChain = chainFor("", tcpProxyFilter(tcpProxy("new", "new")))
		},
		"a chain without filters": func(l *listenerv3.Listener) {
			l.FilterChains = append(l.FilterChains, chainFor(
				"x.example.com"))
		},
		"no record of the start": func(l *listenerv3.Listener) {
			proxy := record.Connections(record.OwnerRelay, tcpProxy("new", "new"))
			proxy.AccessLogOptions = nil
			l.FilterChains = append(l.FilterChains, chainFor("y.example.com", tcpProxyFilter(proxy)))
		},
		"no record at all": func(l *listenerv3.Listener) {
			l.FilterChains = append(l.FilterChains, chainFor("z.example.com", tcpProxyFilter(tcpProxy("new", "new"))))
		},
	} {
		t.Run(name, func(t *testing.T) {
			l := publicOf(t, model.Denied{})
			change(l)
			if err := RecordsOwners(typed.Pack(l)); err == nil {
				t.Error("it is not found")
			}
		})
	}
}

// TestRecordsNameEachField keeps whole metadata, which contains an edge's headers, out of the records.
func TestRecordsNameEachField(t *testing.T) {
	b := GatewayBootstrap(BootstrapConfig{})
	text := b.String()
	if n := strings.Count(text, "%DYNAMIC_METADATA("); n != 5 {
		t.Errorf("%d fields are of metadata", n)
	}
	if strings.Contains(text, "%DYNAMIC_METADATA("+record.Lifecycle+")") {
		t.Error("a record has the whole metadata")
	}
	for _, field := range []string{"tenant", "initiator"} {
		if strings.Contains(text, record.Lifecycle+":"+field) {
			t.Errorf("a record has the field %s, which the edge writes", field)
		}
	}
}
