package kubernetes_test

import (
	"fmt"
	"strings"
	"testing"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/fairlead/fairlead/api/v1alpha1"
	"github.com/fairlead/fairlead/internal/kubetest"
)

// proxied returns a Tunnel with the user's own proxy; secret contains its credentials.
func proxied(namespace, name, address, secret string) *v1alpha1.Tunnel {
	tunnel := newTunnel(namespace, name, "")
	tunnel.Spec.Kubeconfig = v1alpha1.KubeconfigSpec{
		Mode: v1alpha1.KubeconfigModeHTTPProxy, Proxy: &v1alpha1.ProxySpec{Address: address, CredentialsSecret: secret},
	}
	return tunnel
}

// TestOnlyUsersThatCanReadCredentialsCanSendThemToAProxy: otherwise a user with write access to Tunnels could have any
// such Secret sent to their own server.
func TestOnlyUsersThatCanReadCredentialsCanSendThemToAProxy(t *testing.T) {
	admin := apiserver(t)
	ns := kubetest.NewNamespace(t, admin)
	user := tenant(t, admin, "proxier", ns, "get", "create", "update", "patch")
	refused := func(err error) bool {
		return apierrors.IsForbidden(err) && strings.Contains(err.Error(), "spec.kubeconfig.proxy")
	}
	// The apiserver takes a moment to apply a new policy and a new role.
	kubetest.Eventually(t, "sending credentials to a proxy", func() error {
		if err := user.Create(t.Context(), proxied(ns, "c1", "evil:3128", "mine"), client.DryRunAll); !refused(err) {
			return fmt.Errorf("it is not refused by the policy: %w", err)
		}
		return nil
	})
	if err := user.Create(t.Context(), proxied(ns, "c2", "proxy:3128", "")); err != nil {
		t.Errorf("a proxy without credentials was refused: %v", err)
	}
	theirs := proxied(ns, "c3", "proxy:3128", "theirs")
	if err := admin.Create(t.Context(), theirs); err != nil {
		t.Fatal(err)
	}
	changes := map[string]func(*v1alpha1.Tunnel){
		"another address": func(o *v1alpha1.Tunnel) { o.Spec.Kubeconfig.Proxy.Address = "evil:3128" },
		"another Secret":  func(o *v1alpha1.Tunnel) { o.Spec.Kubeconfig.Proxy.CredentialsSecret = "another" },
		"another mode":    func(o *v1alpha1.Tunnel) { o.Spec.Kubeconfig.Mode = v1alpha1.KubeconfigModeSOCKS5 },
	}
	for what, change := range changes {
		after := theirs.DeepCopy()
		change(after)
		if err := user.Patch(t.Context(), after, client.MergeFrom(theirs), client.DryRunAll); !refused(err) {
			t.Errorf("%s: %v", what, err)
		}
	}
	// A field that another user has set may stay while other fields change, and may be removed.
	theirs.Spec.ExtraNames = []string{"api.example.com"}
	if err := user.Update(t.Context(), theirs); err != nil {
		t.Errorf("a Tunnel with a proxy can't be edited: %v", err)
	}
	without := theirs.DeepCopy()
	without.Spec.Kubeconfig.Proxy.CredentialsSecret = ""
	if err := user.Update(t.Context(), without, client.DryRunAll); err != nil {
		t.Errorf("credentials can't be taken out: %v", err)
	}
	allow(t, admin, "proxier", ns, "credentials-reader", mayRead("mine"))
	kubetest.Eventually(
		t, "sending credentials that one may read",
		func() error { return user.Create(t.Context(), proxied(ns, "c1", "proxy:3128", "mine")) },
	)
	if err := user.Create(t.Context(), proxied(ns, "c4", "proxy:3128", "theirs")); !refused(err) {
		t.Errorf("the right is one for one Secret: %v", err)
	}
}
