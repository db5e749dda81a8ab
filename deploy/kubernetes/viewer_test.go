package kubernetes_test

import (
	"errors"
	"testing"
	"time"

	authorizationv1 "k8s.io/api/authorization/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/fairlead/fairlead/internal/eventually"
)

// TestViewersReadAndForwardNothingElse binds both roles of viewer.yaml to a ServiceAccount. The documented commands
// must work with them: fairlead status, check, config and ca status, and kubectl port-forward deployment/xds-server.
func TestViewersReadAndForwardNothingElse(t *testing.T) {
	const account = "viewer"
	admin := apiserver(t)
	subjects := []rbacv1.Subject{{Kind: rbacv1.ServiceAccountKind, Namespace: namespace, Name: account}}
	for _, binding := range []client.Object{
		&rbacv1.RoleBinding{
			ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: "viewer-test"}, Subjects: subjects,
			RoleRef: rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "Role", Name: "fairlead-viewer"},
		},
		&rbacv1.ClusterRoleBinding{
			ObjectMeta: metav1.ObjectMeta{Name: "viewer-test"}, Subjects: subjects,
			RoleRef: rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "ClusterRole", Name: "fairlead-viewer"},
		},
	} {
		if err := admin.Create(t.Context(), binding); err != nil {
			t.Fatal(err)
		}
	}
	type attributes = authorizationv1.ResourceAttributes
	forward := attributes{Verb: "create", Resource: "pods", Subresource: "portforward", Namespace: namespace}
	eventually.True(t, 10*time.Second, "the authorizer knows the bindings", func() error {
		if !allowed(t, admin, account, forward) {
			return errors.New("the viewer may not forward ports")
		}
		return nil
	})
	deployment := attributes{Verb: "get", Group: "apps", Resource: "deployments", Namespace: namespace}
	for _, tc := range []struct {
		name    string
		what    attributes
		allowed bool
	}{
		{"xds-server", deployment, true},
		{"controller", deployment, false},
		{"", attributes{
			Verb: "list", Resource: "pods",
			Namespace: namespace,
		}, true},
		{"", attributes{Verb: "list", Group: "fairlead.dev", Resource: "tunnels"}, true},
		{"", attributes{Verb: "list", Group: "cluster.x-k8s.io", Resource: "clusters"}, true},
		{"fairlead-installation", attributes{Verb: "get", Resource: "configmaps", Namespace: namespace}, true},
		{"fairlead-settings", attributes{Verb: "get", Resource: "configmaps", Namespace: namespace}, true},
		{"fairlead-rollout", attributes{Verb: "get", Resource: "configmaps", Namespace: namespace}, true},
		{"gateway-public", attributes{Verb: "get", Resource: "services", Namespace: namespace}, true},
		{"gateway", attributes{Verb: "get", Resource: "services", Namespace: namespace}, false},
		{"fairlead-ca", attributes{Verb: "get", Resource: "secrets", Namespace: namespace}, false},
		{"c1-kubeconfig", attributes{Verb: "get", Resource: "secrets", Namespace: "prod"}, false},
		{"", attributes{Verb: "create", Resource: "pods", Subresource: "exec", Namespace: namespace}, false},
		{"", attributes{Verb: "patch", Group: "fairlead.dev", Resource: "tunnels", Namespace: "prod"}, false},
	} {
		tc.what.Name = tc.name
		if got := allowed(t, admin, account, tc.what); got != tc.allowed {
			t.Errorf("%s %s %s: %v, want %v", tc.what.Verb, tc.what.Resource, tc.name, got, tc.allowed)
		}
	}
}
