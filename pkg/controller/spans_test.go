package controller

import (
	"fmt"
	"strings"
	"testing"

	tracev1 "go.opentelemetry.io/proto/otlp/trace/v1"

	"github.com/fairlead/fairlead/internal/tracetest"
)

// TestASignatureIsTraced is about the manager, its permissions and a real kube-apiserver.
func TestASignatureIsTraced(t *testing.T) {
	m := apiserver(t)
	c := tracetest.Start(t)
	stop := traceTo(t, c)
	tunnel := pausedTunnel(t, m)
	csr := answered(t, m, edgeRequest(t, tunnel.Namespace+"/c1"))
	var sign *tracev1.Span
	eventually(t, func() error {
		for _, reconcile := range c.Find("reconcile", "fairlead.controller", "signer", "fairlead.name", csr.Name) {
			if below := c.Below(reconcile, "sign"); len(below) == 1 && len(c.Below(reconcile, "HTTP PUT")) == 1 && len(c.Below(reconcile, "HTTP GET")) > 0 {
				sign = below[0]
				return nil
			}
		}
		return fmt.Errorf("no reconciliation of %s has a signature below it: %d of the signer, %d signatures", csr.Name, len(c.Find("reconcile", "fairlead.controller", "signer")), len(c.Find("sign")))
	})
	stop()
	if got := tracetest.Attribute(sign, "fairlead.node"); got != testNode || tracetest.Attribute(sign, "fairlead.role") != "edge" {
		t.Errorf("the signature is of %v", sign)
	}
	if puts := c.Below(sign, "HTTP PUT"); len(puts) != 1 || !strings.HasSuffix(tracetest.Attribute(puts[0], "url.full"), csr.Name+"/status") {
		t.Errorf("below it is asked %v", puts)
	}
	for _, secret := range []string{testToken, "PRIVATE KEY", "BEGIN CERTIFICATE"} {
		if c.Has(secret) {
			t.Errorf("%q was sent", secret)
		}
	}
}
