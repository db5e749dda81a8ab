package envoy

import (
	"fmt"
	"strings"
	"testing"

	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/structpb"

	"github.com/fairlead/fairlead/pkg/model"
)

func TestRenderedVersion(t *testing.T) {
	for name, tc := range map[string]struct {
		received *structpb.Value
		want     Version
	}{
		"none":             {nil, Oldest},
		"the present one":  {structpb.NewStringValue(Current.String()), Current},
		"the oldest":       {structpb.NewStringValue(Oldest.String()), Oldest},
		"a newer one":      {structpb.NewStringValue("9.0"), Current},
		"a newer minor":    {structpb.NewStringValue(Version{Current.Major, Current.Minor + 1}.String()), Current},
		"no number":        {structpb.NewStringValue("new"), Oldest},
		"too many numbers": {structpb.NewStringValue("0.1.0"), Oldest},
		"a large number":   {structpb.NewStringValue("0.99999"), Oldest},
		"a sign":           {structpb.NewStringValue("0.-1"), Oldest},
		"no text":          {structpb.NewNumberValue(0.1), Oldest},
	} {
		t.Run(name, func(t *testing.T) {
			fields := GatewayBind{
				Public: model.Endpoint{
					Host: "::",
					Port: 1,
				}, APIServer: model.Endpoint{Host: "::", Port: 2}, Connect: model.Endpoint{Host: "::", Port: 3},
			}.Metadata().GetFields()
			if tc.received != nil {
				fields[metadataKey].GetStructValue().Fields[versionField] = tc.received
			}
			node := &corev3.Node{Metadata: &structpb.Struct{Fields: fields}}
			bind, err := ParseGatewayBind(node)
			if err != nil || bind.Version != tc.want {
				t.Errorf("a gateway: got %v (%v), want %v", bind.Version, err, tc.want)
			}
			dial, err := ParseEdgeDial(node)
			if err != nil || dial.Version != tc.want {
				t.Errorf("an edge: got %v (%v), want %v", dial.Version, err, tc.want)
			}
		})
	}
}

// TestVersionsThatNoAgentLacks finds versions that need not be distinguished any longer.
func TestVersionsThatNoAgentLacks(t *testing.T) {
	for name, since := range map[string]Version{
		"connectionLogged":      connectionLogged,
		"redialledAtNewAddress": redialledAtNewAddress,
	} {
		if Oldest.has(since) || !Current.has(since) {
			t.Errorf("%s came with %s, and versions %s to %s are rendered for", name, since, Oldest, Current)
		}
	}
	if Current.Major != Oldest.Major || Current.Minor-Oldest.Minor > 2 {
		t.Errorf("versions %s to %s are rendered for, and not two minor versions before the present one", Oldest, Current)
	}
}

// TestANewAddressChangesTheListener, and one for other gateways does not: a listener that changes loses its tunnels.
func TestANewAddressChangesTheListener(t *testing.T) {
	at := func(host string) model.Endpoint { return model.Endpoint{Host: host, Port: 443} }
	inst := model.Installation{Domain: "tunnels.example.com", Public: at("a"), Control: at("x"), Gateways: []model.Gateway{
		{Name: "gateway-0"}, {Name: "gateway-1", Public: at("c")},
	}}
	other := inst
	other.Public = at("b")
	wc := model.WorkloadCluster{ID: "aaaaaaaaaaaaaaaaaaaa", APIServer: at("y")}
	for version, want := range map[Version]bool{Oldest: false, Current: true} {
		dial := EdgeDial{Version: version, First: &inst}
		before, after := EdgeListeners(inst, wc, "edge-a", dial), EdgeListeners(other, wc, "edge-a", dial)
		if got := !proto.Equal(before[0], after[0]); got != want {
			t.Errorf("for %s: the listener changes with the address: %t", version, got)
		}
		if !proto.Equal(before[1], after[1]) {
			t.Errorf("for %s: the listener of a gateway with its own address changes", version)
		}
	}
	old := EdgeListeners(inst, wc, "edge-a", EdgeDial{Version: Oldest, First: &inst})
	if !proto.Equal(old[0], EdgeListeners(inst, wc, "edge-a", EdgeDial{Version: Current, First: &inst})[0]) {
		t.Error("an edge loses its tunnels when its agent is updated")
	}
	own := EdgeDial{Version: Current, First: &inst, Gateways: []model.Endpoint{at("z")}}
	if !proto.Equal(EdgeListeners(inst, wc, "edge-a", own)[0], EdgeListeners(other, wc, "edge-a", own)[0]) {
		t.Error("the listener of an edge that dials an address of its own changes")
	}
}

// TestResourcesAreRenderedForAVersion shows the differences between versions.
func TestResourcesAreRenderedForAVersion(t *testing.T) {
	at := model.Endpoint{Host: "192.0.2.1", Port: 443}
	inst := model.Installation{
		Domain:    "tunnels.example.com",
		Public:    at,
		Control:   at,
		Gateways:  []model.Gateway{{Name: "gateway-0"}},
		AccessLog: model.AccessLogAll,
	}
	wc := model.WorkloadCluster{ID: "aaaaaaaaaaaaaaaaaaaa", APIServer: at}
	for version, want := range map[Version]bool{Oldest: false, Current: true} {
		listeners := GatewayListeners(inst, "gateway-0", GatewayBind{
			Public: at, APIServer: at, Connect: at,
			Version: version,
		}, model.Denied{})[1:]
		listeners = append(listeners, EdgeListeners(inst, wc, "edge-a", EdgeDial{Version: version})...)
		for _, l := range listeners {
			if l.GetName() == connectListener {
				continue // it logs nothing: the listener behind it does
			}
			if got := strings.Contains(l.String(), "%CONNECTION_ID%"); got != want {
				t.Errorf("listener %s for %s: the number of the connection is logged: %t", l.GetName(), version, got)
			}
		}
	}
}

// TestAgentsWithoutLanesGetNone: they would reject what names lanes, with all other listeners.
func TestAgentsWithoutLanesGetNone(t *testing.T) {
	at := model.Endpoint{Host: "192.0.2.1", Port: 443}
	inst := model.Installation{
		Domain: "tunnels.example.com", Public: at, Control: at, Lanes: 2,
		Gateways: []model.Gateway{{Name: "gateway-0", Peer: at}, {Name: "gateway-1", Peer: at}},
	}
	wc := model.WorkloadCluster{ID: "aaaaaaaaaaaaaaaaaaaa", APIServer: at}
	for version, want := range map[Version]bool{Oldest: false, Current: true} {
		bind, dial := GatewayBind{Public: at, APIServer: at, Connect: at, Version: version}, EdgeDial{Version: version}
		var public, listeners, clusters strings.Builder
		fmt.Fprint(&public, GatewayListeners(inst, "gateway-0", bind, model.Denied{})[0])
		fmt.Fprint(&listeners, EdgeListeners(inst, wc, "edge-a", dial))
		fmt.Fprint(&clusters, EdgeClusters(inst, wc, "edge-a", dial))
		for what, text := range map[string]string{
			"accepts lanes": public.String(), "dials lanes": listeners.String(), "knows lanes": clusters.String(),
		} {
			if got := strings.Contains(text, "-lane-2"); got != want {
				t.Errorf("an agent of version %s %s: %t", version, what, got)
			}
		}
		if got := strings.Contains(public.String(), "gateway-1-lane-2"); got != want {
			t.Errorf("a gateway of version %s relays lanes: %t", version, got)
		}
	}
}
