package e2e

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"slices"
	"testing"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/fairlead/fairlead/test/promise"
)

// configurationClaims proves that only the node that a certificate names gets its configuration.
func (w *world) configurationClaims(t *testing.T) {
	berlin, roots := identityOf(t, w.berlin.edge.StateDir)
	gateway, _ := identityOf(t, w.Gateways[0].StateDir)
	self, other := subjectOf(t, w.berlin.edge.StateDir), subjectOf(t, w.tokyo.edge.StateDir)
	foreign := foreignIdentity(t, self)

	promise.That(t, "an edge receives its own configuration", func(t *testing.T) {
		resources, err := w.fetch(t.Context(), roots, &berlin, self.NodeID())
		if err != nil || resources == 0 {
			t.Errorf("%d resources, error %v: the attacks below would prove nothing", resources, err)
		}
	})
	for name, attack := range map[string]struct {
		certificate *tls.Certificate
		node        string
	}{
		"an edge receives no configuration of another edge":            {&berlin, other.NodeID()},
		"an edge's certificate receives no configuration of a gateway": {&berlin, "CN=gateway-0"},
		"a gateway's certificate receives no configuration of an edge": {&gateway, self.NodeID()},
		"a certificate of another CA receives no configuration":        {&foreign, self.NodeID()},
		"an edge without a certificate receives no configuration":      {nil, self.NodeID()},
		"an edge that sends no node ID receives no configuration":      {&berlin, ""},
	} {
		promise.That(t, name, func(t *testing.T) { w.refusedConfiguration(t, roots, attack.certificate, attack.node) })
	}
}

// refusedConfiguration fails the test if a node gets any configuration.
func (w *world) refusedConfiguration(t *testing.T, roots *x509.CertPool, certificate *tls.Certificate, node string) {
	t.Helper()
	must(t, w.XDSServerReady(t.Context())) // an xds-server that is down would also reject the request
	resources, err := w.fetch(t.Context(), roots, certificate, node)
	refusals := []codes.Code{codes.PermissionDenied, codes.Unauthenticated, codes.Unavailable, codes.FailedPrecondition}
	if resources > 0 || !slices.Contains(refusals, status.Code(err)) {
		t.Errorf("%d resources, error %v, want a refusal", resources, err)
	}
}

// fetch requests the Envoy clusters of a node from the xds-server, and returns the number of resources.
func (w *world) fetch(
	ctx context.Context, roots *x509.CertPool, certificate *tls.Certificate, node string,
) (int, error) {
	names, err := w.outsider(roots, certificate).Fetch(ctx, node)
	return len(names), err
}
