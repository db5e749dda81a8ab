package kubernetes_test

import (
	"errors"
	"os"
	"testing"
	"time"

	authorizationv1 "k8s.io/api/authorization/v1"
	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/yaml"

	"github.com/fairlead/fairlead/api/v1alpha1"
	"github.com/fairlead/fairlead/internal/eventually"
)

// TestTheOperatorOfANetworkMayChangeNothingElse queries the authorizer of a real apiserver with the Role as deployed.
func TestTheOperatorOfANetworkMayChangeNothingElse(t *testing.T) {
	const account = "site1-operator"
	admin := apiserver(t)
	data, err := os.ReadFile("../site-operator/role.yaml")
	if err != nil {
		t.Fatal(err)
	}
	role := &rbacv1.Role{}
	if err := yaml.UnmarshalStrict(data, role); err != nil {
		t.Fatal(err)
	}
	err = admin.Create(t.Context(), &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: role.Namespace}})
	if client.IgnoreAlreadyExists(err) != nil {
		t.Fatal(err)
	}
	binding := &rbacv1.RoleBinding{
		ObjectMeta: metav1.ObjectMeta{Namespace: role.Namespace, Name: role.Name},
		Subjects:   []rbacv1.Subject{{Kind: rbacv1.ServiceAccountKind, Namespace: namespace, Name: account}},
		RoleRef:    rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "Role", Name: role.Name},
	}
	for _, o := range []client.Object{role, binding} {
		if err := admin.Create(t.Context(), o); err != nil {
			t.Fatal(err)
		}
	}
	of := func(verb, resource, name string) authorizationv1.ResourceAttributes {
		group := v1alpha1.GroupVersion.Group
		if resource == "secrets" {
			group = ""
		}
		return authorizationv1.ResourceAttributes{
			Verb: verb, Group: group, Resource: resource, Namespace: role.Namespace, Name: name,
		}
	}
	eventually.True(t, 10*time.Second, "the authorizer knows the binding", func() error {
		if !allowed(t, admin, account, of("get", "remotenetworks", "site1")) {
			return errors.New("the operator may not read the network")
		}
		return nil
	})
	status := of("patch", "tunnels", "site1.network")
	status.Subresource = "status"
	for what, want := range map[authorizationv1.ResourceAttributes]bool{
		of("patch", "remotenetworks", "site1"):               true,
		of("patch", "tunnels", "site1.network"):              true,
		of("get", "secrets", "site1.network-edge-bootstrap"): true,
		of("patch", "remotenetworks", "site2"):               false,
		of("delete", "remotenetworks", "site1"):              false,
		of("patch", "tunnels", "site2.network"):              false,
		of("get", "secrets", "site2.network-edge-bootstrap"): false,
		of("get", "tunnels", "c1"):                           false,
		of("patch", "tunnels", "c1"):                         false,
		of("patch", "tunnels", "c1.egress"):                  false,
		of("create", "tunnels", ""):                          false,
		of("get", "secrets", "c1-kubeconfig"):                false,
		of("get", "secrets", "c1-edge-bootstrap"):            false,
		of("get", "secrets", "c1.egress-edge-bootstrap"):     false,
		of("list", "secrets", ""):                            false,
		status:                                               false,
	} {
		if got := allowed(t, admin, account, what); got != want {
			t.Errorf("%s %s/%s %s: %t, want %t", what.Verb, what.Resource, what.Subresource, what.Name, got, want)
		}
	}
}
