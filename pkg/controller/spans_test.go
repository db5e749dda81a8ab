package controller

import (
	"errors"
	"fmt"
	"net/http"
	"strings"
	"testing"

	tracev1 "go.opentelemetry.io/proto/otlp/trace/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/fairlead/fairlead/internal/kubetest"
	"github.com/fairlead/fairlead/internal/traces"
	"github.com/fairlead/fairlead/internal/tracetest"
	"github.com/fairlead/fairlead/pkg/controller/controllertest"
	"github.com/fairlead/fairlead/pkg/controller/reconciler"
)

// TestASignatureIsTraced runs the manager with its permissions and a real kube-apiserver.
func TestASignatureIsTraced(t *testing.T) {
	m := apiserver(t)
	c := tracetest.Start(t)
	stop := controllertest.TraceTo(t, c)
	tunnel := pausedTunnel(t, m)
	csr := answered(t, m, controllertest.EdgeRequest(t, tunnel.Namespace+"/c1"))
	var sign *tracev1.Span
	controllertest.Eventually(t, func() error {
		for _, reconcile := range c.Find("reconcile", "fairlead.controller", "signer", "fairlead.name", csr.Name) {
			if below := c.Below(reconcile, "sign"); len(below) == 1 && len(c.Below(reconcile, "HTTP PUT")) == 1 &&
				len(c.Below(reconcile, "HTTP GET")) > 0 {
				sign = below[0]
				return nil
			}
		}
		return fmt.Errorf(
			"no reconciliation of %s has a signature below it: %d of the signer, %d signatures", csr.Name,
			len(c.Find("reconcile", "fairlead.controller", "signer")), len(c.Find("sign")),
		)
	})
	stop()
	if got := tracetest.Attribute(sign, "fairlead.node"); got != controllertest.TestNode ||
		tracetest.Attribute(sign, "fairlead.role") != "edge" {
		t.Errorf("the signature is of %v", sign)
	}
	if puts := c.Below(sign, "HTTP PUT"); len(puts) != 1 ||
		!strings.HasSuffix(tracetest.Attribute(puts[0], "url.full"), csr.Name+"/status") {
		t.Errorf("below it is asked %v", puts)
	}
	for _, secret := range []string{controllertest.TestToken, "PRIVATE KEY", "BEGIN CERTIFICATE"} {
		if c.Has(secret) {
			t.Errorf("%q was sent", secret)
		}
	}
}

// TestANetworkIsTraced from a new RemoteNetwork to its Tunnels, the one of its apiservers, and its status.
func TestANetworkIsTraced(t *testing.T) {
	m := apiserver(t)
	c := tracetest.Start(t)
	stop := controllertest.TraceTo(t, c)
	cluster := kubetest.Cluster(kubetest.NewNamespace(t, m), "c1")
	controllertest.Create(t, m, cluster)
	controllertest.Create(t, m, networkNamed(cluster, "site1", "10.2.0.0/16"))
	for _, want := range []struct{ controller, name, request string }{
		{"network", "site1.network", "HTTP POST"},
		{"network", "site1.network", "HTTP PATCH"},
		{"network", "c1.egress", "HTTP POST"},
		{"network-status", "site1", "HTTP PATCH"},
	} {
		controllertest.Eventually(t, func() error {
			all := c.Find(
				"reconcile", "fairlead.controller", want.controller, "fairlead.namespace", cluster.Namespace, "fairlead.name",
				want.name,
			)
			for _, reconcile := range all {
				if len(c.Below(reconcile, want.request)) > 0 {
					return nil
				}
			}
			return fmt.Errorf(
				"none of %d reconciliations of %s by the controller %s has %s below it", len(all), want.name, want.controller,
				want.request,
			)
		})
	}
	stop()
	if c.Has("PRIVATE KEY") || c.Has("BEGIN CERTIFICATE") {
		t.Error("a key or a certificate was sent")
	}
}

// A third-party webhook may reject a write with the words of the object, which may be a Secret.
func TestMessagesOfAnAPIServerAreNotTraced(t *testing.T) {
	c := tracetest.Start(t)
	stop := controllertest.TraceTo(t, c)
	for _, err := range []error{
		&apierrors.StatusError{
			ErrStatus: metav1.Status{
				Code: http.StatusForbidden, Reason: metav1.StatusReasonForbidden,
				Message: "admission denied: value c2VjcmV0LWJ5dGVz",
			},
		},
		errors.New("dialling 192.0.2.1:6443"),
	} {
		_, span := traces.Begin(t.Context(), "write kubeconfig")
		reconciler.EndSpan(span, fmt.Errorf("writing: %w", err))
	}
	stop()
	if c.Has("c2VjcmV0LWJ5dGVz") || !c.Has("the apiserver answered Forbidden") || !c.Has("dialling 192.0.2.1:6443") {
		t.Errorf("got %v", c.Find("write kubeconfig"))
	}
}
