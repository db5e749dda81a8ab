package edge

import (
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"testing"

	clusterv3 "github.com/envoyproxy/go-control-plane/envoy/config/cluster/v3"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/anypb"

	"github.com/fairlead/fairlead/pkg/envoy"
	"github.com/fairlead/fairlead/pkg/model"
)

// offered are the Envoy clusters of an Envoy.
type offered []*anypb.Any

// Clusters implements clusters.
func (o offered) Clusters(f func(name, version string, resource *anypb.Any)) {
	for _, r := range o {
		c := &clusterv3.Cluster{}
		if r.UnmarshalTo(c) == nil {
			f(c.GetName(), "1", r)
		}
	}
}

// ReapplyAll implements clusters.
func (offered) ReapplyAll(func(string) bool) {}

// sharedGateways returns the Envoy cluster of all gateways of an Envoy beside an apiserver.
func sharedGateways(t *testing.T, hosts ...string) *anypb.Any {
	t.Helper()
	inst := model.Installation{Domain: "tunnels.example.com", Public: model.Endpoint{Host: "192.0.2.1", Port: 443}}
	inst.Gateways = []model.Gateway{{Name: "gateway-0"}}
	dial := envoy.EdgeDial{Version: envoy.Current, Socket: "/run/egress.sock"}
	for _, host := range hosts {
		dial.Gateways = append(dial.Gateways, model.Endpoint{Host: host, Port: 443})
	}
	c := envoy.EdgeClusters(inst, model.WorkloadCluster{ID: model.NewID(), Egress: true}, model.NewNodeName(), dial)[0]
	packed, err := anypb.New(c)
	if err != nil {
		t.Fatal(err)
	}
	return packed
}

// priorities returns the priority of each address.
func priorities(t *testing.T, resource *anypb.Any) map[string]uint32 {
	t.Helper()
	c := &clusterv3.Cluster{}
	if err := resource.UnmarshalTo(c); err != nil {
		t.Fatal(err)
	}
	all := map[string]uint32{}
	for _, group := range c.GetLoadAssignment().GetEndpoints() {
		for _, e := range group.GetLbEndpoints() {
			all[e.GetEndpoint().GetAddress().GetSocketAddress().GetAddress()] = group.GetPriority()
		}
	}
	several := len(all) > 1
	if several != (c.GetOutlierDetection() != nil) || several != (c.GetUpstreamBindConfig() != nil) {
		t.Error("hosts are ejected, and their silence is noticed, if and only if there are others to use")
	}
	return all
}

func TestTheNearestGatewaysComeFirst(t *testing.T) {
	dir := t.TempDir()
	path := func(name string) string { return filepath.Join(dir, name) }
	classes := `{"192.0.2.1:443":2,"192.0.2.2:443":0,"192.0.2.3:443":2}`
	if err := os.WriteFile(path(nearestFile), []byte(classes), 0o600); err != nil {
		t.Fatal(err)
	}
	n := NewNearest(path, slog.New(slog.DiscardHandler))
	resource := sharedGateways(t, "192.0.2.1", "192.0.2.2", "192.0.2.3", "192.0.2.4")
	name := "gateways_edge"
	if n.Form(name) != "" {
		t.Error("there is a preference before the addresses are known")
	}
	n.Restore(offered{resource})
	if hosts, changed := n.follow(offered{resource}); len(hosts) != 4 || changed {
		t.Errorf("the measured hosts are %v, changed: %t", hosts, changed)
	}
	got := priorities(t, n.Apply(name, n.Form(name), resource))
	want := map[string]uint32{"192.0.2.1": 1, "192.0.2.2": 0, "192.0.2.3": 1, "192.0.2.4": 2}
	if fmt.Sprint(got) != fmt.Sprint(want) {
		t.Errorf("got the priorities %v, want %v", got, want)
	}
	if ways := n.Ways(); len(ways) != 4 || ways[0].GetTo() != "192.0.2.2:443" || ways[3].GetTo() != "192.0.2.4:443" {
		t.Errorf("it reports %v", ways)
	}

	t.Run("a single address has no preference", func(t *testing.T) {
		single := sharedGateways(t, "192.0.2.1")
		hosts, changed := n.follow(offered{single})
		if !n.decide() || !changed || len(hosts) != 0 || n.Form(name) != "" {
			t.Errorf("it measures %v, with the form %q", hosts, n.Form(name))
		}
		if !proto.Equal(n.Apply(name, "", single), single) {
			t.Error("the Envoy cluster changes")
		}
	})
	t.Run("reverse tunnels have no preference", func(t *testing.T) {
		n.Restore(offered{resource})
		if n.Form("egress_edge") != "" || n.Form("gateway-0_edge") != "" || n.Form("tunnel_edge_gateway-0") != "" {
			t.Error("they have a form")
		}
	})
}
