package agent

import (
	"errors"
	"fmt"
	"path/filepath"
	"slices"
	"syscall"
	"testing"
	"time"

	"github.com/fairlead/fairlead/internal/envoytest"
	"github.com/fairlead/fairlead/pkg/agent/identity"
	"github.com/fairlead/fairlead/pkg/model"
)

// TestAnAgentIsAnEdgeAndBesideAnApiserver runs both memberships with one Envoy. The egress enrols with its own role,
// renews by its key while the edge carries requests, and keeps its identity over a restart of the agent.
func TestAnAgentIsAnEdgeAndBesideAnApiserver(t *testing.T) {
	gateway, edge, a := newPair(t)
	gateway.serve()
	gateway.agent()
	id := model.NewID()
	edge.add(id, edge.egress("c1", id))
	egress := &edge.child.Edges[1]
	egress.Role, egress.Socket = model.RoleEgress, filepath.Join(edge.child.StateDir, "..", "sockets", "egress.sock")
	egress.Socket = filepath.Clean(egress.Socket)
	edge.set(func() { edge.life = 4 * time.Second })
	first := edge.agent()
	edge.works(a)
	folder := filepath.Join(edge.child.StateDir, tunnelsFolder, id)
	serials := map[string]bool{}
	nodes := map[string]bool{}
	renewed := func(n int) func() error {
		return func() error {
			leaf, err := identity.ReadLeaf(folder)
			if err != nil {
				return err
			}
			if !slices.Equal(leaf.DNSNames, []string{domain.EgressID(id)}) {
				return fmt.Errorf("its certificate has the names %v", leaf.DNSNames)
			}
			serials[leaf.SerialNumber.String()], nodes[leaf.Subject.CommonName] = true, true
			if len(serials) < n {
				return fmt.Errorf("it has had %d certificates", len(serials))
			}
			return nil
		}
	}
	envoytest.Eventually(t, "the egress enrols and renews", renewed(3))
	edge.works(a)
	edge.ready() // Envoy listens at the socket
	first.end(t, syscall.SIGTERM)
	edge.agent()
	envoytest.Eventually(t, "the next agent renews it", renewed(5))
	edge.works(a)
	if len(nodes) != 1 {
		t.Errorf("it enrolled as %v", nodes)
	}
	edge.state("the status has both", func(s state) error {
		if len(s.Memberships) != 2 || s.Memberships[0].TunnelID == s.Memberships[1].TunnelID {
			return errors.New("it does not")
		}
		return nil
	})
}
