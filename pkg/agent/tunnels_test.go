package agent

import (
	"errors"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/fairlead/fairlead/internal/envoytest"
	"github.com/fairlead/fairlead/pkg/model"
)

func TestARevokedEdgeEnrolsAgainWithoutEffectOnOthers(t *testing.T) {
	gateway, edge, a := newPair(t)
	other := model.NewID()
	token := gateway.tunnel("c2", other, a.Endpoint)
	b := newAPIServer(gateway.control, other, "c2")
	edge.add(other, token)
	gateway.serve()
	gateway.agent()
	edge.agent()
	edge.works(a)
	edge.works(b)
	pid := edge.ready()
	wait := edge.stream(b, 8*time.Second)

	first := edge.state("both are there", func(s state) error {
		if len(s.Memberships) != 2 || s.Memberships[0].TunnelID != edgeSubject.ID || s.Memberships[1].TunnelID != other {
			return errors.New("it has others")
		}
		return nil
	})
	revoked := first.Memberships[0].Node
	edge.revoke(edgeSubject.ID, revoked)
	edge.state("it has another node name", func(s state) error {
		if m := s.Memberships[0]; m.Node == revoked || m.Node == "" || !m.Connected {
			return errors.New("it has the old one")
		}
		return nil
	})
	edge.works(a)

	// The token becomes invalid, and the edge is revoked.
	edge.set(func() { clear(edge.tokens) })
	last := edge.state("it is connected", func(state) error { return nil })
	edge.revoke(edgeSubject.ID, revoked, last.Memberships[0].Node)
	edge.logged("used up", 1)
	edge.state("it says that", func(s state) error {
		if m := s.Memberships[0]; !strings.Contains(m.LastError, "used up") ||
			!strings.Contains(m.LastError, "bootstrap file") ||
			s.Ready {
			return errors.New("it does not say it")
		}
		return nil
	})
	envoytest.Eventually(t, "no request goes through", func() error {
		if edge.once(t.Context(), a) == nil {
			return errors.New("one does")
		}
		return nil
	})
	edge.works(b)
	if err := wait(); err != nil {
		t.Errorf("of the other tunnel: %v", err)
	}
	if now, err := edge.admin().PID(); err != nil || now != pid {
		t.Errorf("Envoy is %d, not %d: %v", now, pid, err)
	}

	// An operator provides a new token.
	edge.set(func() { edge.tokens[edge.token] = edgeSubject.ID })
	edge.works(a)
}

// revoke revokes edges.
func (c *control) revoke(id string, nodes ...string) {
	c.mu.Lock()
	wc := c.clusters[id]
	c.mu.Unlock()
	wc.Revoked = nodes
	c.publish(wc)
}

func TestAFurtherTunnelDoesNotRestartEnvoy(t *testing.T) {
	gateway, edge, a := newPair(t)
	other := model.NewID()
	token := gateway.tunnel("c2", other, a.Endpoint)
	b := newAPIServer(gateway.control, other, "c2")
	gateway.serve()
	gateway.agent()
	first := edge.agent()
	edge.works(a)
	pid := edge.ready()
	wait := edge.stream(a, 8*time.Second)
	first.end(t, syscall.SIGHUP)
	edge.add(other, token)
	edge.child.Edges[0], edge.child.Edges[1] = edge.child.Edges[1], edge.child.Edges[0] // the order does not matter
	edge.agent()
	edge.works(b)
	edge.works(a)
	if now := edge.ready(); now != pid {
		t.Errorf("Envoy is %d, not %d", now, pid)
	}
	if err := wait(); err != nil {
		t.Error(err)
	}
	if tokens, _ := edge.counts(); tokens != 3 { // one of the gateway and one of each tunnel
		t.Errorf("%d tokens were shown, want 3", tokens)
	}
}
