package e2e

import (
	"testing"

	"github.com/fairlead/fairlead/test/promise"
)

// attacks proves that a client gets only what its certificate grants.
func (w *world) attacks(t *testing.T) {
	w.tunnelClaims(t)
	w.configurationClaims(t)
	w.forgedEnvoy(t)
	w.falseGateway(t)
	w.routesToNoTunnel(t)
	w.publicPort(t)
	promise.That(
		t, "all kubeconfigs still work after all attacks", func(t *testing.T) { must(t, w.worksFor(t.Context(), calm())) },
	)
}
