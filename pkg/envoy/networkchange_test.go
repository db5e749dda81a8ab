package envoy_test

import (
	"errors"
	"net"
	"net/netip"
	"testing"
	"time"

	"github.com/envoyproxy/go-control-plane/pkg/cache/types"

	"github.com/fairlead/fairlead/internal/envoytest"
	"github.com/fairlead/fairlead/pkg/envoy"
	"github.com/fairlead/fairlead/pkg/model"
)

// changing is a network with an edge whose resources change while it runs.
type changing struct {
	in      *installation
	wc      model.WorkloadCluster
	subject model.Subject
	agent   *agent
}

// send sends the edge what follows from the network as it is now.
func (c *changing) send(t *testing.T) {
	t.Helper()
	dial := envoy.EdgeDial{Version: envoy.Current}
	c.agent.clusters = nil
	for _, cluster := range envoy.EdgeClusters(c.in.Installation, c.wc, c.subject.Node, dial) {
		c.agent.clusters = append(c.agent.clusters, types.Resource(cluster))
	}
	c.agent.listen(t, envoy.EdgeListeners(c.in.Installation, c.wc, c.subject.Node, dial))
}

// TestStreamsContinueWhileTheirNetworkGrows adds a CIDR and a port to a network. When it takes them away again, streams
// to them end.
func TestStreamsContinueWhileTheirNetworkGrows(t *testing.T) {
	if !insideNamespace(t, "10.1.0.5/32", "10.2.0.5/32") {
		return
	}
	answerLines(t, "10.1.0.5:7000")
	answerLines(t, "10.2.0.5:7001")
	egress := model.NewID()
	site := newSite("a1", "a", egress, []string{"10.1.0.0/16"})
	wide := newSite("a1", "a", egress, []string{"10.0.0.0/8"})
	wide.Network.Ports[0].Last++
	wide.ID = site.ID
	in, socket := newEgress(t, egress, site, wide)
	dir := envoytest.Dir(t)
	edge := &changing{
		in: in, wc: site, subject: model.Subject{Role: model.RoleEdge, Node: model.NewNodeName(), ID: site.ID},
	}
	edge.agent = in.serveAgent(t, dir, nil, edge.subject)
	edge.send(t)
	envoytest.Start(
		t, dir, marshal(t, envoy.EdgeBootstrap(envoy.BootstrapConfig{})), "--component-log-level", envoy.ComponentLogLevel,
		"--drain-time-s", "3", "--drain-strategy", "immediate",
	)
	open := func(to string) (conn net.Conn) {
		t.Helper()
		envoytest.Eventually(t, to+" is reached", func() (err error) {
			conn, err = openStream(socket, to)
			return err
		})
		t.Cleanup(func() { _ = conn.Close() })
		return conn
	}
	stays := open("10.1.0.5:7000")
	begin := time.Now()
	edge.wc.Network.CIDRs = append(edge.wc.Network.CIDRs, netip.MustParsePrefix("10.2.0.0/16"))
	edge.wc.Network.Ports[0].Last++
	edge.send(t)
	goes := open("10.2.0.5:7001")
	if err := answers(goes); err != nil {
		t.Fatal(err)
	}
	for time.Since(begin) < 5*time.Second { // Envoy closes what it drains after 3 s
		if err := errors.Join(answers(stays), answers(goes)); err != nil {
			t.Fatalf("%s after the network has grown: %v", time.Since(begin), err)
		}
		time.Sleep(100 * time.Millisecond)
	}

	begin = time.Now()
	edge.wc.Network.CIDRs = edge.wc.Network.CIDRs[:1]
	edge.wc.Network.Ports[0].Last--
	edge.wc.Network.Narrowed++
	edge.send(t)
	envoytest.Eventually(t, "10.2.0.5 is refused", func() error {
		conn, err := openStream(socket, "10.2.0.5:7001")
		if err == nil {
			_ = conn.Close()
			return errors.New("it is reached")
		}
		return nil
	})
	if err := drained(goes, begin.Add(envoytest.Patience)); err != nil {
		t.Errorf("to a destination that was removed: %v", err)
	}
	t.Logf("streams ended %s after the change", time.Since(begin))
	if err := answers(open("10.1.0.5:7000")); err != nil {
		t.Error(err)
	}
}
