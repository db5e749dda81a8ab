package envoy_test

import (
	"fmt"
	"strings"
	"testing"

	"github.com/fairlead/fairlead/internal/envoytest"
	"github.com/fairlead/fairlead/pkg/assignment"
	"github.com/fairlead/fairlead/pkg/envoy"
	"github.com/fairlead/fairlead/pkg/model"
)

// TestNetworksAreReachedThroughAGatewayThatForwards has two gateways and a network whose edge dials only one of them.
// Apiservers and clients connect to the other one.
func TestNetworksAreReachedThroughAGatewayThatForwards(t *testing.T) {
	if !insideNamespace(t, "10.1.0.5/32", "10.9.0.1/32", "169.254.169.254/32") {
		return
	}
	for _, at := range []string{"10.1.0.5:7000", "10.9.0.1:7000"} {
		newEcho(t, at)
	}
	forbidden := newEcho(t, "169.254.169.254:7000")
	egressID := model.NewID()
	a1 := newSite("a1", "a", egressID, []string{"10.1.0.0/16"})
	a1.Network.Targets = []model.Target{{
		Name: "vcenter.a1.a.prod." + string(domain), Address: model.Endpoint{Host: "10.9.0.1", Port: networkPort},
	}}
	wide := newSite("a1", "a", egressID, []string{"0.0.0.0/0"}) // the edge has to refuse
	wide.ID = a1.ID

	in := newInstallationOf(t, envoy.BootstrapConfig{Forward: true}, 2, a1)
	in.AccessLog, in.GatewaysPerTunnel = model.AccessLogAll, 1
	for i, g := range in.Gateways {
		in.Gateways[i].Public = in.peers[g.Name].endpoint(t)
	}
	owner, other := in.gateways[0], in.gateways[1]
	if assignment.Of(a1.ID, 1, in.Gateways)[0].Name == other.name {
		owner, other = other, owner
	}
	for _, g := range in.gateways {
		g.bind.Version = envoy.Current
		for _, c := range envoy.PeerClusters(in.Installation) {
			g.agent.clusters = append(g.agent.clusters, c)
		}
		g.agent.scopes = append(
			g.agent.scopes, envoy.NetworkScope(in.Installation, egressID, []model.WorkloadCluster{wide}),
		)
	}
	owner.forward(t, in, a1)
	other.forward(t, in, a1, owner.name)
	in.startDialling(t, a1, envoy.EdgeDial{Version: envoy.Current})
	subject := model.Subject{Role: model.RoleEgress, Node: model.NewNodeName(), ID: egressID}
	api := in.apiserver(t, subject, domain.Egress())
	api.gateway = other.bind.Public

	envoytest.Eventually(t, "the network is reached", func() error {
		if got, err := connect(api.dial, "10.1.0.5:7000"); err != nil || got != "I am 10.1.0.5:7000" {
			return fmt.Errorf("%q: %w", got, err)
		}
		return nil
	})
	arrived := owner.forwardedTo(t)
	for to, want := range map[string]string{
		"10.1.0.5:7000":        "I am 10.1.0.5:7000",
		"169.254.169.254:7000": "403 refused by the edge",
		"10.1.0.5:7001":        "403 RBAC",
		"nowhere.example:443":  "403 refused by the gateway",
	} {
		if got, err := connect(api.dial, to); err != nil || !strings.HasPrefix(got, want) {
			t.Errorf("%s: got %q, %v; want %q", to, got, err, want)
		}
	}
	if got, err := connect(other.dialConnect, a1.Network.Targets[0].Name+":443"); got != "I am 10.9.0.1:7000" {
		t.Errorf("a target: got %q, %v", got, err)
	}
	envoytest.Eventually(t, "the gateway with the tunnel has logged each client", func() error {
		if n := owner.forwardedTo(t) - arrived; n < 4 {
			return fmt.Errorf("it has %d, want 4", n)
		}
		return nil
	})
	if n := forbidden.count.Load(); n > 0 {
		t.Errorf("%s was dialled %d times, want never", forbidden.Addr(), n)
	}
}
