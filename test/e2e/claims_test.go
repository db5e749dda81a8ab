package e2e

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"net/http"
	"testing"

	"github.com/fairlead/fairlead/test/outsider"
	"github.com/fairlead/fairlead/test/promise"
)

// claim is the content of a tunnel handshake, and the certificate of its connection. The two need not match.
type claim struct {
	certificate *tls.Certificate
	node, id    string // node id and tunnel id
}

// tunnelClaims proves that only the node that a certificate names gets a tunnel.
func (w *world) tunnelClaims(t *testing.T) {
	berlin, roots := identityOf(t, w.berlin.edge.StateDir)
	gateway, _ := identityOf(t, w.Gateways[0].StateDir)
	self, other := subjectOf(t, w.berlin.edge.StateDir), subjectOf(t, w.tokyo.edge.StateDir)
	foreign := foreignIdentity(t, self)
	ownID, otherID := domain.TunnelID(self.ID), domain.TunnelID(other.ID)

	promise.That(t, "an edge whose claimed IDs match its certificate opens a reverse tunnel", func(t *testing.T) {
		if status, err := w.handshake(t.Context(), roots, claim{&berlin, self.NodeID(), ownID}); status != http.StatusOK {
			t.Errorf("status %d, error %v: the attacks below would prove nothing", status, err)
		}
	})
	for name, attack := range map[string]claim{
		"an edge that claims another tunnel ID opens no reverse tunnel":          {&berlin, self.NodeID(), otherID},
		"an edge that claims another edge's node ID opens no reverse tunnel":     {&berlin, other.NodeID(), ownID},
		"an edge that claims another edge's node ID as its tunnel ID opens none": {&berlin, self.NodeID(), other.NodeID()},
		"an edge that claims both IDs of another edge opens no reverse tunnel":   {&berlin, other.NodeID(), otherID},
		"a gateway's certificate with an edge's IDs opens no reverse tunnel":     {&gateway, self.NodeID(), ownID},
		"a gateway's certificate with its own names opens no reverse tunnel": {
			&gateway, "CN=gateway-0", domain.GatewayReplica("gateway-0"),
		},
		"a certificate of another CA with correct names opens no reverse tunnel": {&foreign, self.NodeID(), ownID},
		"an edge without a certificate opens no reverse tunnel":                  {nil, self.NodeID(), ownID},
	} {
		promise.That(t, name, func(t *testing.T) {
			if status, err := w.handshake(t.Context(), roots, attack); err == nil && status != http.StatusForbidden {
				t.Errorf("the gateway answered %d, want a refusal", status)
			}
		})
	}
	eventually(t, w.allWork)
}

// handshake requests a tunnel from the gateway, from the workload network.
func (w *world) handshake(ctx context.Context, roots *x509.CertPool, c claim) (int, error) {
	return w.outsider(roots, c.certificate).Handshake(ctx, "gateway-0", outsider.Claim{Node: c.node, ID: c.id})
}
