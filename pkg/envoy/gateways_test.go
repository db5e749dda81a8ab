package envoy_test

import (
	"fmt"
	"testing"
	"time"

	"github.com/fairlead/fairlead/internal/conntest"
	"github.com/fairlead/fairlead/internal/envoytest"
	"github.com/fairlead/fairlead/internal/freeport"
	"github.com/fairlead/fairlead/pkg/envoy"
	"github.com/fairlead/fairlead/pkg/model"
)

// TestSeveralGatewayAddresses has an edge that dials an address that refuses connections, one that never answers, and
// a name with an address of either family.
func TestSeveralGatewayAddresses(t *testing.T) {
	workload := newAuthority(t)
	hostname := "c1.prod." + string(domain)
	api := newFakeAPIServer(t, "api-0", workload, hostname)
	c1 := cluster(t, "c1", api.at)
	in := newInstallation(t, 1, c1)
	in.workload = workload
	sixth := newCountingListener(t, "tcp", fmt.Sprintf("[::1]:%d", in.Public.Port), in.public.pass)
	hole := freeport.Endpoint(t)
	conntest.BlackHole(t, hole.String())
	edge := in.startDialling(t, c1, envoy.EdgeDial{Gateways: []model.Endpoint{freeport.Endpoint(t), hole, in.Public}})

	envoytest.Eventually(t, "two tunnels come from each address that answers", func() error {
		if four, six := in.public.count.Load(), sixth.count.Load(); four < 2 || six < 2 {
			return fmt.Errorf("%d by IPv4 and %d by IPv6", four, six)
		}
		return nil
	})
	dialled := in.public.count.Load() + sixth.count.Load()
	l := in.load(t, hostname)
	begin := time.Now()
	l.more(t, 100)
	l.stop()
	c := l.count(begin, time.Now())
	t.Logf("with two of four addresses dead: %v", c)
	if c.failed > 0 {
		t.Error("want none failed")
	}
	envoytest.Eventually(t, "two tunnels are open to each address that answers", func() error {
		if open := edge.Sum(t, "^listener[.]tunnel_.*_gateway-0[.]downstream_cx_active$"); open != 4 {
			return fmt.Errorf("%d are open", open)
		}
		return nil
	})
	// On a busy machine, a handshake may time out and be repeated once.
	if again := in.public.count.Load() + sixth.count.Load() - dialled; again > 1 {
		t.Errorf("%d tunnels were dialled again during the requests: do they stay open?", again)
	}
}

// TestOneEnvoyServesSeveralWorkloadClusters runs the edges of two workload clusters in one Envoy.
func TestOneEnvoyServesSeveralWorkloadClusters(t *testing.T) {
	workload := newAuthority(t)
	var clusters []model.WorkloadCluster
	for _, name := range []string{"c1", "c2"} {
		api := newAPIServer(t, "api of "+name, workload, name+".prod."+string(domain))
		clusters = append(clusters, cluster(t, name, endpoint(t, api.Listener.Addr().String())))
	}
	in := newInstallation(t, 1, clusters...)
	in.workload = workload
	var subjects []model.Subject
	config := envoy.EdgeBootstrap(envoy.BootstrapConfig{})
	for _, wc := range clusters {
		s := model.Subject{Role: model.RoleEdge, Node: model.NewNodeName(), ID: wc.ID}
		subjects = append(subjects, s)
		config = envoy.Static(
			config, envoy.EdgeListeners(in.Installation, wc, s.Node, envoy.EdgeDial{}),
			envoy.EdgeClusters(in.Installation, wc, s.Node, envoy.EdgeDial{}),
		)
	}
	dir := envoytest.Dir(t)
	in.serveAgent(t, dir, nil, subjects...)
	envoytest.Start(t, dir, marshal(t, config))
	for _, wc := range clusters {
		works(t, in.getBySNI, in.gateways[0], wc.Hostname, "api of "+wc.Key.Name+" "+wc.Hostname)
		works(t, in.getByConnect, in.gateways[0], wc.Hostname, "api of "+wc.Key.Name+" "+wc.Hostname)
	}
}
