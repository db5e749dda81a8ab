package envoy

import (
	"strings"
	"testing"

	listenerv3 "github.com/envoyproxy/go-control-plane/envoy/config/listener/v3"

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
		owner := ownerOf(chain)
		if owner == "" {
			t.Errorf("filter chain %s records no owner: a connection in it would be closed as unknown", chain.GetName())
		}
		owners[owner]++
	}
	if owners[OwnerTunnel] != 1 || owners[OwnerControl] != 1 || owners[OwnerRelay] != 2 {
		t.Errorf("owners: %v", owners)
	}
	if l.GetDefaultFilterChain() != nil || l.GetFilterChainMatcher() != nil {
		t.Error("the public listener has filter chains that this test does not see")
	}
	if err := RecordsOwners(pack(l)); err != nil {
		t.Error(err)
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
			proxy := recorded(OwnerRelay, tcpProxy("new", "new"))
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
			if err := RecordsOwners(pack(l)); err == nil {
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
	if strings.Contains(text, "%DYNAMIC_METADATA("+lifecycle+")") {
		t.Error("a record has the whole metadata")
	}
	for _, field := range []string{"tenant", "initiator"} {
		if strings.Contains(text, lifecycle+":"+field) {
			t.Errorf("a record has the field %s, which the edge writes", field)
		}
	}
}
