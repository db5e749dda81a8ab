package kubernetes_test

import (
	"context"
	"fmt"
	"strings"
	"testing"

	rbacv1 "k8s.io/api/rbac/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/fairlead/fairlead/api/v1alpha1"
	"github.com/fairlead/fairlead/internal/kubetest"
	"github.com/fairlead/fairlead/pkg/model"
)

// tenant returns a client of a user of one namespace, with these verbs on Tunnels there.
func tenant(t *testing.T, admin client.Client, name, namespace string, verbs ...string) client.Client {
	t.Helper()
	allow(
		t, admin, name, namespace, name,
		rbacv1.PolicyRule{APIGroups: []string{"fairlead.dev"}, Resources: []string{"tunnels"}, Verbs: verbs},
	)
	user, err := kubetest.NewClient(kubetest.Impersonate(server.Config(t), name))
	if err != nil {
		t.Fatal(err)
	}
	return user
}

// allow gives a user a role in a namespace.
func allow(t *testing.T, admin client.Client, user, namespace, role string, rule rbacv1.PolicyRule) {
	t.Helper()
	meta := metav1.ObjectMeta{Namespace: namespace, Name: role}
	for _, o := range []client.Object{
		&rbacv1.Role{ObjectMeta: meta, Rules: []rbacv1.PolicyRule{rule}},
		&rbacv1.RoleBinding{
			ObjectMeta: meta, RoleRef: rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "Role", Name: role},
			Subjects: []rbacv1.Subject{{APIGroup: rbacv1.GroupName, Kind: "User", Name: user}},
		},
	} {
		if err := admin.Create(t.Context(), o); err != nil {
			t.Fatal(err)
		}
	}
}

// mayRead returns a rule that permits reading one Secret.
func mayRead(secret string) rbacv1.PolicyRule {
	return rbacv1.PolicyRule{
		APIGroups:     []string{""},
		Resources:     []string{"secrets"},
		ResourceNames: []string{secret},
		Verbs:         []string{"get"},
	}
}

// installationUser returns a client of a user with a rule in all namespaces.
func installationUser(t *testing.T, admin client.Client, name string, rule rbacv1.PolicyRule) client.Client {
	t.Helper()
	meta := metav1.ObjectMeta{Name: "test-" + name}
	for _, o := range []client.Object{
		&rbacv1.ClusterRole{ObjectMeta: meta, Rules: []rbacv1.PolicyRule{rule}},
		&rbacv1.ClusterRoleBinding{
			ObjectMeta: meta, RoleRef: rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "ClusterRole", Name: meta.Name},
			Subjects: []rbacv1.Subject{{APIGroup: rbacv1.GroupName, Kind: "User", Name: name}},
		},
	} {
		if err := admin.Create(t.Context(), o); err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = admin.Delete(context.WithoutCancel(t.Context()), o) })
	}
	user, err := kubetest.NewClient(kubetest.Impersonate(server.Config(t), name))
	if err != nil {
		t.Fatal(err)
	}
	return user
}

func newTunnel(namespace, name, id string) *v1alpha1.Tunnel {
	return &v1alpha1.Tunnel{
		ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: name},
		Spec:       v1alpha1.TunnelSpec{ID: id},
	}
}

// checkRejected checks that the policy rejected the request, with an actionable message.
func checkRejected(err error) error {
	if !apierrors.IsForbidden(err) || !strings.Contains(err.Error(), "leave spec.id empty") ||
		!strings.Contains(err.Error(), "set-id") {
		return fmt.Errorf("not refused by the policy: %w", err)
	}
	return nil
}

func TestOnlyUsersWithTheVerbSetAnID(t *testing.T) {
	admin := apiserver(t)
	ns, other := kubetest.NewNamespace(t, admin), kubetest.NewNamespace(t, admin)
	user := tenant(t, admin, "tenant", ns, "get", "create", "update", "patch")
	owner := tenant(t, admin, "owner", ns, "*")
	mover := installationUser(
		t,
		admin,
		"mover",
		rbacv1.PolicyRule{
			APIGroups: []string{"fairlead.dev"},
			Resources: []string{"tunnels"},
			Verbs:     []string{"create", "set-id"},
		},
	)
	controller, err := kubetest.NewClient(kubetest.Impersonate(server.Config(t), userOf("controller")))
	if err != nil {
		t.Fatal(err)
	}
	// The apiserver takes a moment to apply a new policy and a new role.
	kubetest.Eventually(t, "creating a Tunnel with an id", func() error {
		return checkRejected(user.Create(t.Context(), newTunnel(ns, "chosen", model.NewID()), client.DryRunAll))
	})
	tunnel := newTunnel(ns, "c1", "")
	tunnel.Spec.ExtraNames = []string{"api.example.com"}
	if err := user.Create(t.Context(), tunnel); err != nil {
		t.Fatalf("a Tunnel without an id was refused: %v", err)
	}
	set := tunnel.DeepCopy()
	set.Spec.ID = model.NewID()
	for name, write := range map[string]func() error{
		"updating": func() error { return user.Update(t.Context(), set.DeepCopy()) },
		"patching": func() error { return user.Patch(t.Context(), set.DeepCopy(), client.MergeFrom(tunnel)) },
		"creating": func() error { return user.Create(t.Context(), newTunnel(ns, "c2", model.NewID())) },
	} {
		if err := checkRejected(write()); err != nil {
			t.Errorf("%s: %v", name, err)
		}
	}

	if err := controller.Patch(t.Context(), set, client.MergeFrom(tunnel)); err != nil {
		t.Fatalf("the controller may not choose the id: %v", err)
	}
	set.Spec.ExtraNames = nil
	if err := user.Update(t.Context(), set); err != nil {
		t.Errorf("a Tunnel that has an id can't be edited: %v", err)
	}
	for name, writer := range map[string]client.Client{"controller": controller, "mover": mover, "admin": admin} {
		if err := writer.Create(t.Context(), newTunnel(ns, name, model.NewID())); err != nil {
			t.Errorf("%s: %v", name, err)
		}
	}
	// The permission is for the whole installation: neither every verb in a namespace nor the verb itself there is
	// enough.
	kubetest.Eventually(t, "creating by a namespace owner", func() error {
		if err := owner.Create(t.Context(), newTunnel(ns, "owned", ""), client.DryRunAll); err != nil {
			return err
		}
		return checkRejected(owner.Create(t.Context(), newTunnel(ns, "owned", model.NewID()), client.DryRunAll))
	})
	named := tenant(t, admin, "named", other, "create", "set-id")
	kubetest.Eventually(t, "creating with set-id in the namespace alone", func() error {
		return checkRejected(named.Create(t.Context(), newTunnel(other, "c1", model.NewID()), client.DryRunAll))
	})
}

// TestOnlyTheControllerWritesTheRecord tries to forge the status of a Tunnel as the owner of its namespace, with every
// verb on every resource there.
func TestOnlyTheControllerWritesTheRecord(t *testing.T) {
	admin := apiserver(t)
	ns := kubetest.NewNamespace(t, admin)
	allow(
		t, admin, "lord", ns, "lord",
		rbacv1.PolicyRule{APIGroups: []string{"*"}, Resources: []string{"*"}, Verbs: []string{"*"}},
	)
	owner, err := kubetest.NewClient(kubetest.Impersonate(server.Config(t), "lord"))
	if err != nil {
		t.Fatal(err)
	}
	tunnel := newTunnel(ns, "c1", "")
	kubetest.Eventually(
		t, "creating a Tunnel by its namespace's owner", func() error { return owner.Create(t.Context(), tunnel) },
	)
	forged := tunnel.DeepCopy()
	forged.Status.ID = model.NewID()
	refused := func(err error) error {
		if !apierrors.IsForbidden(err) || !strings.Contains(err.Error(), "only the controller writes the status") {
			return fmt.Errorf("not refused by the policy: %w", err)
		}
		return nil
	}
	kubetest.Eventually(t, "patching the status", func() error {
		return refused(
			owner.Status().
				Patch(t.Context(), forged.DeepCopy(), client.MergeFrom(tunnel),
					&client.SubResourcePatchOptions{PatchOptions: client.PatchOptions{DryRun: []string{metav1.DryRunAll}}}),
		)
	})
	apply := forged.DeepCopy()
	apply.TypeMeta, apply.ManagedFields = metav1.TypeMeta{APIVersion: v1alpha1.GroupVersion.String(), Kind: "Tunnel"}, nil
	for name, write := range map[string]func() error{
		"updating": func() error { return owner.Status().Update(t.Context(), forged.DeepCopy()) },
		"patching": func() error { return owner.Status().Patch(t.Context(), forged.DeepCopy(), client.MergeFrom(tunnel)) },
		"applying": func() error {
			force := client.ForceOwnership
			return owner.Status().Patch(
				t.Context(), apply, client.Apply, client.FieldOwner("lord"), force, //nolint:staticcheck // of the status
			)
		},
	} {
		if err := refused(write()); err != nil {
			t.Errorf("%s: %v", name, err)
		}
	}
	// The apiserver drops a status in the object itself.
	created := newTunnel(ns, "c2", "")
	created.Status.ID = model.NewID()
	if err := owner.Create(t.Context(), created); err != nil || created.Status.ID != "" {
		t.Errorf("a Tunnel that is created with a status has the id %q: %v", created.Status.ID, err)
	}
	controller, err := kubetest.NewClient(kubetest.Impersonate(server.Config(t), userOf("controller")))
	if err != nil {
		t.Fatal(err)
	}
	if err := controller.Status().Patch(t.Context(), forged, client.MergeFrom(tunnel)); err != nil {
		t.Errorf("the controller can't write the status: %v", err)
	}
}
