package agent

import (
	"errors"
	"fmt"
	"net/http"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/fairlead/fairlead/internal/envoytest"
	"github.com/fairlead/fairlead/internal/freeport"
	"github.com/fairlead/fairlead/pkg/certs"
	"github.com/fairlead/fairlead/pkg/dial"
	"github.com/fairlead/fairlead/pkg/model"
	reportv1 "github.com/fairlead/fairlead/pkg/report/v1"
)

// peer is another gateway, as reported to the xds-server.
type peer struct {
	t      *testing.T
	stream reportv1.Report_GatewayClient
}

// newPeer adds a gateway to the installation of a control channel, and makes it report.
func newPeer(c *control) *peer {
	c.t.Helper()
	subject := model.Subject{Role: model.RoleGateway, Node: "gateway-1"}
	c.peers = []model.Gateway{{Name: subject.Node, Peer: freeport.Endpoint(c.t)}}
	c.serve()
	conn, err := dial.Conn(way(c.address), domain, certs.Bundle(c.ca.CertPEM()), fixed{c.fresh(subject)})
	if err != nil {
		c.t.Fatal(err)
	}
	c.t.Cleanup(func() { _ = conn.Close() })
	stream, err := reportv1.NewReportClient(conn).Gateway(c.t.Context())
	if err != nil {
		c.t.Fatal(err)
	}
	return &peer{c.t, stream}
}

type fixed struct{ identity certs.Identity }

// Identity implements certs.Source.
func (f fixed) Identity() (certs.Identity, error) { return f.identity, nil }

// has reports the tunnels of some edges of edgeSubject's tunnel, and no others.
func (p *peer) has(ready bool, nodes ...string) {
	p.t.Helper()
	r := &reportv1.GatewayReport{Snapshot: true, Ready: ready}
	for i, node := range nodes {
		r.Tunnels = append(r.Tunnels, &reportv1.Tunnel{Key: fmt.Sprint(i), Node: node, TunnelId: edgeSubject.ID})
	}
	if err := p.stream.Send(r); err != nil {
		p.t.Fatal(err)
	}
}

func TestAGatewayWaitsForTheTunnelsThatOthersHave(t *testing.T) {
	gateway := newGateway(newWorld(t))
	gateway.child.Deadline = 10 * time.Minute
	other := newPeer(gateway.control)
	other.has(true, "edge-ghost")
	gateway.agent()
	envoytest.Eventually(t, "the gateway waits", func() error {
		if code, body := gateway.get("/readyz"); code == http.StatusOK || !strings.Contains(body, "such as edge-ghost") {
			return fmt.Errorf("%d: %s", code, body)
		}
		return nil
	})
	edge := newEdge(gateway.control)
	edge.agent()
	edge.ready()
	node := edge.state("the edge has a name", func(s state) error {
		if len(s.Memberships) != 1 || s.Memberships[0].Node == "" {
			return errors.New("it has none")
		}
		return nil
	}).Memberships[0].Node
	other.has(true, node)
	gateway.ready()
	other.has(true, node, "edge-late") // that edge connects here later
	if answer(gateway, "/readyz") != http.StatusOK {
		t.Error("a gateway that was ready is not any more")
	}
}

// outlivesDeadline waits until a gateway's Envoy has run for twice as long as the gateway may wait for tunnels.
func outlivesDeadline(t *testing.T, gateway *place) {
	t.Helper()
	envoytest.Eventually(t, "Envoy has run for longer", func() error {
		running, err := gateway.admin().Info(t.Context())
		if err == nil && running.Uptime < 2*gateway.child.Deadline {
			err = fmt.Errorf("for %s", running.Uptime)
		}
		return err
	})
}

// TestAGatewayWaitsAfterItHasReplacedItsEnvoy: the next agent has another bootstrap. While it drains the Envoy of the
// previous one, that has run for long and has tunnels. The new Envoy has none.
func TestAGatewayWaitsAfterItHasReplacedItsEnvoy(t *testing.T) {
	gateway := newGateway(newWorld(t))
	gateway.child.Deadline = 2 * time.Second
	newPeer(gateway.control).has(true, "edge-ghost")
	first := gateway.agent()
	old := gateway.ready()
	gateway.logged("the ready deadline has passed", 1)
	outlivesDeadline(t, gateway)
	first.end(t, syscall.SIGKILL)
	gateway.child.Memory = 1 << 30
	gateway.agent()
	gateway.ready(old)
	gateway.logged("the ready deadline has passed", 2)
	gateway.logged("as it did under the previous agent", 0)
}

func TestAGatewayDoesNotWait(t *testing.T) {
	t.Run("for a gateway without tunnels of its own", func(t *testing.T) {
		gateway := newGateway(newWorld(t))
		gateway.child.Deadline = 10 * time.Minute
		newPeer(gateway.control).has(false, "edge-ghost")
		gateway.agent()
		gateway.ready()
	})
	t.Run("for longer than it may, nor again with the same Envoy", func(t *testing.T) {
		gateway := newGateway(newWorld(t))
		gateway.child.Deadline = 3 * time.Second
		newPeer(gateway.control).has(true, "edge-ghost")
		first := gateway.agent()
		pid := gateway.ready()
		gateway.logged("the ready deadline has passed", 1)
		outlivesDeadline(t, gateway)
		first.end(t, syscall.SIGKILL)
		gateway.agent()
		if now := gateway.ready(); now != pid {
			t.Errorf("Envoy is %d, and was %d", now, pid)
		}
		gateway.logged("the ready deadline has passed", 1)
		gateway.logged("as it did under the previous agent", 1)
	})
}
