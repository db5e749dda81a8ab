package envoy_test

import (
	"testing"
	"time"

	clusterv3 "github.com/envoyproxy/go-control-plane/envoy/config/cluster/v3"
	listenerv3 "github.com/envoyproxy/go-control-plane/envoy/config/listener/v3"
	"github.com/envoyproxy/go-control-plane/pkg/cache/types"
	"github.com/google/go-cmp/cmp"
	"google.golang.org/protobuf/testing/protocmp"

	"github.com/fairlead/fairlead/internal/envoytest"
	"github.com/fairlead/fairlead/pkg/envoy"
	"github.com/fairlead/fairlead/pkg/model"
)

// TestANearEdgeBuffersMore changes only buffers. No request fails while its reverse tunnels are replaced.
func TestANearEdgeBuffersMore(t *testing.T) {
	workload := newAuthority(t)
	hostname := "c1.prod." + string(domain)
	c1 := cluster(t, "c1", endpoint(t, newAPIServer(t, "api", workload, hostname).Listener.Addr().String()))
	in := newInstallation(t, 1, c1)
	in.workload = workload
	s := model.Subject{Role: model.RoleEdge, Node: model.NewNodeName(), ID: c1.ID}
	resources := func(dial envoy.EdgeDial) ([]*listenerv3.Listener, []*clusterv3.Cluster) {
		return envoy.EdgeListeners(in.Installation, c1, s.Node, dial), envoy.EdgeClusters(in.Installation, c1, s.Node, dial)
	}
	listeners, clusters := resources(envoy.EdgeDial{})
	nearListeners, nearClusters := resources(envoy.EdgeDial{Near: true})
	for i, l := range listeners {
		if nearListeners[i].GetPerConnectionBufferLimitBytes().GetValue() <= l.GetPerConnectionBufferLimitBytes().GetValue() {
			t.Errorf("listener %s of a near edge has no larger buffer", l.GetName())
		}
	}
	but := []cmp.Option{
		protocmp.Transform(), protocmp.IgnoreFields(&listenerv3.Listener{}, "per_connection_buffer_limit_bytes"),
		protocmp.IgnoreFields(&clusterv3.Cluster{}, "per_connection_buffer_limit_bytes"),
	}
	if diff := cmp.Diff(listeners, nearListeners, but...) + cmp.Diff(clusters, nearClusters, but...); diff != "" {
		t.Error(diff)
	}

	dir := envoytest.Dir(t)
	agent := in.serveAgent(t, dir, clusters, s)
	agent.listen(t, listeners)
	envoytest.Start(
		t, dir, marshal(t, envoy.EdgeBootstrap(envoy.BootstrapConfig{})), "--component-log-level", envoy.ComponentLogLevel,
		"--drain-time-s", "3", "--drain-strategy", "immediate",
	)
	works(t, in.getBySNI, in.gateways[0], hostname, "api "+hostname)
	agent.clusters = nil
	for _, c := range nearClusters {
		agent.clusters = append(agent.clusters, types.Resource(c))
	}
	agent.listen(t, nearListeners)
	longest := time.Duration(0)
	for end := time.Now().Add(6 * time.Second); time.Now().Before(end); {
		began := time.Now()
		if _, err := in.getBySNI(t.Context(), in.gateways[0], hostname); err != nil {
			t.Fatalf("while tunnels are replaced: %v", err)
		}
		longest = max(longest, time.Since(began))
	}
	t.Logf("longest request while tunnels are replaced: %v", longest)
	if most := 3 * time.Second; longest > most {
		t.Errorf("a request took %v while tunnels were replaced, want at most %v", longest, most)
	}
}
