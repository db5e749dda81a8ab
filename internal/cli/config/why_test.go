package config

import (
	"testing"

	"github.com/fairlead/fairlead/api/v1alpha1"
	"github.com/fairlead/fairlead/pkg/diagnose/collect"
)

// TestAGatewayThatForwardsNeedsNoTunnel: by default an edge has reverse tunnels to three gateways, and others forward.
func TestAGatewayThatForwardsNeedsNoTunnel(t *testing.T) {
	gateway := func(tunnels int, forwards bool) gatewayWhy {
		return gatewayWhy{Name: "gateway-0", Status: string(collect.Synced), Tunnels: tunnels, Forwards: forwards}
	}
	for name, tc := range map[string]struct {
		gateways []gatewayWhy
		served   bool
	}{
		"every gateway has a tunnel":               {[]gatewayWhy{gateway(1, true), gateway(2, true)}, true},
		"one of them forwards":                     {[]gatewayWhy{gateway(1, true), gateway(0, true)}, true},
		"one has no tunnel and does not forward":   {[]gatewayWhy{gateway(1, false), gateway(0, false)}, false},
		"there is no tunnel to which they forward": {[]gatewayWhy{gateway(0, true), gateway(0, true)}, false},
	} {
		answer := &whyAnswer{Gateways: tc.gateways}
		answer.judge(nil, &claim{tunnel: &v1alpha1.Tunnel{}}, "tunnels.example.com")
		if answer.Served != tc.served || (answer.Cure == "") != tc.served {
			t.Errorf("%s: served is %t: %s: %s", name, answer.Served, answer.Verdict, answer.Cure)
		}
	}
}
