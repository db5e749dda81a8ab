package kubernetes_test

import (
	"fmt"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/fairlead/fairlead/api/v1alpha1"
	"github.com/fairlead/fairlead/internal/kubetest"
)

// TestTheControllerMaySetOwners of all objects to which it adds one after their creation, also where the admission
// plugin OwnerReferencesPermissionEnforcement requires the permission to delete them.
func TestTheControllerMaySetOwners(t *testing.T) {
	admin := apiserver(t)
	controller, err := kubetest.NewClient(kubetest.Impersonate(server.Config(t), userOf("controller")))
	if err != nil {
		t.Fatal(err)
	}
	ns := kubetest.NewNamespace(t, admin)
	meta := metav1.ObjectMeta{Namespace: ns, Name: "site1"}
	service := &corev1.Service{
		ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: v1alpha1.PublicServiceName},
		Spec:       corev1.ServiceSpec{Ports: []corev1.ServicePort{{Port: 443}}},
	}
	for _, o := range []client.Object{
		&v1alpha1.RemoteNetwork{ObjectMeta: meta, Spec: v1alpha1.RemoteNetworkSpec{ClusterName: "c1"}},
		newTunnel(ns, "site1", ""), &corev1.Secret{ObjectMeta: meta}, service,
	} {
		if err := admin.Create(t.Context(), o); err != nil {
			t.Fatalf("%T: %v", o, err)
		}
		if err := setOwner(t, controller, o); err != nil {
			t.Errorf("%T: %v", o, err)
		}
	}
	if err := admin.Delete(t.Context(), service); err != nil {
		t.Fatal(err)
	}
	// The plugin is enabled.
	user, tunnel := tenant(t, admin, "patcher", ns, "get", "patch"), newTunnel(ns, "site2", "")
	if err := admin.Create(t.Context(), tunnel); err != nil {
		t.Fatal(err)
	}
	kubetest.Eventually(t, "setting an owner without the permission to delete", func() error {
		const want = "cannot set an ownerRef on a resource you can't delete"
		if err := setOwner(t, user, tunnel); !apierrors.IsForbidden(err) || !strings.Contains(err.Error(), want) {
			return fmt.Errorf("it is not rejected by the plugin: %w", err)
		}
		return nil
	})
}

func setOwner(t *testing.T, c client.Client, o client.Object) error {
	t.Helper()
	return c.Patch(t.Context(), o, client.RawPatch(types.MergePatchType, []byte(
		`{"metadata": {"ownerReferences": [{"apiVersion": "v1", "kind": "Service", "name": "gateway", "uid": "1"}]}}`)))
}
