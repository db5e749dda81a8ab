package envoy_test

import (
	"fmt"
	"path/filepath"
	"testing"
	"time"

	clusterv3 "github.com/envoyproxy/go-control-plane/envoy/config/cluster/v3"

	"github.com/fairlead/fairlead/internal/envoytest"
	"github.com/fairlead/fairlead/pkg/envoy"
	"github.com/fairlead/fairlead/pkg/model"
)

// TestAnApiserverUsesTheNearestGateway has an Envoy beside an apiserver with two addresses of the gateways. The nearer
// one ends all connections for a while.
func TestAnApiserverUsesTheNearestGateway(t *testing.T) {
	if !insideNamespace(t, "10.1.0.5/32") {
		return
	}
	answerLines(t, "10.1.0.5:7000")
	egress := model.NewID()
	site := newSite("a1", "a", egress, []string{"10.1.0.0/16"})
	in := newInstallation(t, 1, site)
	g := in.gateways[0]
	g.bind.Version = envoy.Current
	g.agent.scopes = append(
		g.agent.scopes, envoy.NetworkScope(in.Installation, egress, []model.WorkloadCluster{site}),
	)
	g.deny(t, in, model.Denied{})
	in.startDialling(t, site, envoy.EdgeDial{Version: envoy.Current})

	near, far := newRelay(t), newRelay(t)
	for _, r := range []*relay{near, far} {
		r.lead(g.bind.Public.String())
	}
	wc := model.WorkloadCluster{ID: egress, Egress: true}
	subject := model.Subject{Role: model.RoleEgress, Node: model.NewNodeName(), ID: egress}
	socket := filepath.Join(envoytest.Dir(t), "egress.sock")
	bootstrap := edgeConfig(in.Installation, wc, subject.Node, envoy.EdgeDial{
		Version: envoy.Current, Socket: socket, Gateways: []model.Endpoint{far.endpoint(t), near.endpoint(t)},
	})
	for i, c := range bootstrap.GetStaticResources().GetClusters() {
		preferred := &clusterv3.Cluster{}
		if err := envoy.PreferNearest(packed(t, c), func(at model.Endpoint) int {
			if at == near.endpoint(t) {
				return 0
			}
			return 1
		}).UnmarshalTo(preferred); err != nil {
			t.Fatal(err)
		}
		bootstrap.StaticResources.Clusters[i] = preferred
	}
	dir := envoytest.Dir(t)
	in.serveAgent(t, dir, nil, subject)
	envoytest.Start(t, dir, marshal(t, bootstrap), "--component-log-level", envoy.ComponentLogLevel, "--drain-time-s", "3")

	// stream opens a stream, and reports whether the answer came through a relay.
	stream := func(through *relay) error {
		before := len(through.bytes())
		conn, err := openStream(socket, "10.1.0.5:7000")
		if err != nil {
			return err
		}
		defer conn.Close()
		if err := answers(conn); err != nil {
			return err
		}
		if len(through.bytes()) == before {
			return fmt.Errorf("nothing passes the address %s", through.endpoint(t))
		}
		return nil
	}
	envoytest.Eventually(t, "the nearer address is used", func() error { return stream(near) })
	near.cut("")
	begin := time.Now()
	envoytest.Eventually(t, "the other address is used", func() error { return stream(far) })
	t.Logf("the other one is used after %s", time.Since(begin))
	near.cut(g.bind.Public.String())
	begin = time.Now()
	envoytest.Eventually(t, "the nearer address is used again", func() error { return stream(near) })
	t.Logf("the nearer one is used again after %s", time.Since(begin))
}
