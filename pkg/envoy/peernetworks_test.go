package envoy_test

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/fairlead/fairlead/internal/envoytest"
	"github.com/fairlead/fairlead/pkg/assignment"
	"github.com/fairlead/fairlead/pkg/envoy"
	"github.com/fairlead/fairlead/pkg/model"
)

// TestNetworksAreReachedThroughAGatewayThatForwards has three gateways and a network whose edge dials two of them, one
// nearer than the other. Apiservers and clients connect to the third one.
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

	in := newInstallation(t, 3, a1)
	in.AccessLog, in.GatewaysPerTunnel = model.AccessLogAll, 2
	for i, g := range in.Gateways {
		in.Gateways[i].Public = in.peers[g.Name].endpoint(t)
	}
	var owners []*gateway
	var other *gateway
	for _, g := range in.gateways {
		if slices.ContainsFunc(
			assignment.Of(a1.ID, 2, in.Gateways), func(of model.Gateway) bool { return of.Name == g.name },
		) {
			owners = append(owners, g)
		} else {
			other = g
		}
	}
	owner, far := owners[0], owners[1]
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
	far.forward(t, in, a1)
	other.prefer(t, in, a1, []string{owner.name}, []string{far.name})
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
	logged := func() int { return owner.forwardedTo(t) + far.forwardedTo(t) }
	arrived := logged()
	for to, want := range map[string]string{
		"10.1.0.5:7000":        "I am 10.1.0.5:7000",
		"169.254.169.254:7000": "403 refused by the edge",
		"10.1.0.5:7001":        "403 RBAC",
		"nowhere.example:443":  "403 refused by the gateway",
		"10.1.0.77:7000":       "503",
	} {
		if got, err := connect(api.dial, to); err != nil || !strings.HasPrefix(got, want) {
			t.Errorf("%s: got %q, %v; want %q", to, got, err, want)
		}
	}
	if got, err := connect(other.dialConnect, a1.Network.Targets[0].Name+":443"); got != "I am 10.9.0.1:7000" {
		t.Errorf("a target: got %q, %v", got, err)
	}
	envoytest.Eventually(t, "the gateways with the tunnel have logged each client", func() error {
		if n := logged() - arrived; n < 5 {
			return fmt.Errorf("they have %d, want 5", n)
		}
		return nil
	})
	if n := forbidden.count.Load(); n > 0 {
		t.Errorf("%s was dialled %d times, want never", forbidden.Addr(), n)
	}
}
