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

// TestOnlyUsersThatCanReadTheKubeconfigCanRequestCopies: otherwise a user with write access to Tunnels could
// impersonate any user in a workload cluster.
func TestOnlyUsersThatCanReadTheKubeconfigCanRequestCopies(t *testing.T) {
	admin := apiserver(t)
	ns := kubetest.NewNamespace(t, admin)
	user := tenant(t, admin, "copier", ns, "get", "create", "update", "patch")
	ask := func(name string) *v1alpha1.Tunnel {
		tunnel := newTunnel(ns, name, "")
		tunnel.Spec.Kubeconfig.Copies = []v1alpha1.KubeconfigCopy{
			{Name: "mine", ClientCertificate: &v1alpha1.ClientCertificateAudience{CommonName: "alice"}},
		}
		return tunnel
	}
	refused := func(err error) bool {
		return apierrors.IsForbidden(err) && strings.Contains(err.Error(), "spec.kubeconfig.copies")
	}
	// The apiserver takes a moment to apply a new policy and a new role.
	kubetest.Eventually(t, "asking for a copy", func() error {
		if err := user.Create(t.Context(), ask("c1"), client.DryRunAll); !refused(err) {
			return fmt.Errorf("it is not refused by the policy: %w", err)
		}
		return nil
	})
	plain := newTunnel(ns, "c2", "")
	if err := user.Create(t.Context(), plain); err != nil {
		t.Fatalf("a Tunnel without copies was refused: %v", err)
	}
	plain.Spec.Kubeconfig.Copies = ask("c2").Spec.Kubeconfig.Copies
	if err := user.Update(t.Context(), plain); !refused(err) {
		t.Errorf("updating: %v", err)
	}
	// A copy that another user requested may stay while other fields change.
	theirs := ask("c3")
	if err := admin.Create(t.Context(), theirs); err != nil {
		t.Fatal(err)
	}
	theirs.Spec.ExtraNames = []string{"api.example.com"}
	if err := user.Update(t.Context(), theirs); err != nil {
		t.Errorf("a Tunnel with copies can't be edited: %v", err)
	}
	allow(t, admin, "copier", ns, "kubeconfig-reader", mayRead("c1-kubeconfig"))
	kubetest.Eventually(
		t, "asking for a copy of a kubeconfig that one may read", func() error { return user.Create(t.Context(), ask("c1")) },
	)
	if err := user.Create(t.Context(), ask("c4")); !refused(err) {
		t.Errorf("the right is one for one Cluster: %v", err)
	}
}
