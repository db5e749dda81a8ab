package clusterclass_test

import (
	"errors"
	"fmt"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	apimeta "k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/fairlead/fairlead/api/v1alpha1"
	"github.com/fairlead/fairlead/internal/eventually"
	"github.com/fairlead/fairlead/internal/kubetest"
	"github.com/fairlead/fairlead/pkg/capi/hooks"
	"github.com/fairlead/fairlead/pkg/capi/inject"
)

// externalNamespaceLabel marks the test namespaces for whose Clusters the extension is called.
const externalNamespaceLabel = "external"

// externalPatch is the patch that a ClusterClass must name, as in docs/machines.md.
var externalPatch = clusterv1.ClusterClassPatch{Name: "fairlead", External: &clusterv1.ExternalPatchDefinition{
	GeneratePatchesExtension:   hooks.GeneratePatchesName + ".fairlead",
	ValidateTopologyExtension:  hooks.ValidateTopologyName + ".fairlead",
	DiscoverVariablesExtension: hooks.DiscoverVariablesName + ".fairlead",
}}

// register registers the extension with Cluster API, from the file in deploy with another address. It returns a
// namespace for whose Clusters the extension is called.
func register(t *testing.T, admin client.Client) string {
	t.Helper()
	namespace := kubetest.NewNamespace(t, admin)
	o := &unstructured.Unstructured{}
	o.SetAPIVersion("v1")
	o.SetKind("Namespace")
	o.SetName(namespace)
	if err := admin.Patch(t.Context(), o, client.RawPatch("application/merge-patch+json", []byte(
		`{"metadata":{"labels":{"`+externalNamespaceLabel+`":"yes"}}}`))); err != nil {
		t.Fatal(err)
	}
	data, err := os.ReadFile("../runtime-extension/extensionconfig.yaml")
	if err != nil {
		t.Fatal(err)
	}
	for _, field := range []string{
		externalPatch.External.GeneratePatchesExtension,
		externalPatch.External.ValidateTopologyExtension, externalPatch.External.DiscoverVariablesExtension,
	} {
		if !strings.Contains(string(data), ": "+field+"\n") {
			t.Errorf("extensionconfig.yaml does not tell of %s", field)
		}
	}
	objects, err := kubetest.Decode(data)
	if err != nil || len(objects) != 1 {
		t.Fatalf("%d objects, %v", len(objects), err)
	}
	config := objects[0]
	config.SetAnnotations(nil)
	spec := config.Object["spec"].(map[string]any)
	spec["clientConfig"] = map[string]any{"url": "https://127.0.0.1:" + world.extension, "caBundle": base64Of(world.caPEM)}
	spec["namespaceSelector"] = map[string]any{"matchLabels": map[string]any{externalNamespaceLabel: "yes"}}
	create(t, admin, config)
	eventually.True(t, patience, "the discovery of the hooks", func() error {
		if err := admin.Get(t.Context(), client.ObjectKeyFromObject(config), config); err != nil {
			return err
		}
		if handlers, _, _ := unstructured.NestedSlice(config.Object, "status", "handlers"); len(handlers) != 4 {
			return fmt.Errorf("%d handlers: %v", len(handlers), config.Object["status"])
		}
		return nil
	})
	return namespace
}

// TestRuntimeExtension lets Cluster API call the extension for a ClusterClass with every form of a template, and
// compares the control plane with the one from the inline patches.
func TestRuntimeExtension(t *testing.T) {
	admin := management(t)
	namespace := register(t, admin)
	for name, template := range templates {
		class := newClass(namespace, name)
		class.Spec.Patches = []clusterv1.ClusterClassPatch{externalPatch}
		create(t, admin, newTemplates(t, namespace, name, template.config)...)
		create(t, admin, class)
	}
	for name, template := range templates {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			requesting, not := newCluster(namespace, name+".asks", name), newCluster(namespace, name+"-does-not", name)
			not.Annotations = nil
			create(t, admin, requesting, not)
			if diff := cmp.Diff(fields(t, template.config), controlPlane(t, admin, client.ObjectKeyFromObject(
				not))); diff != "" {
				t.Errorf("a Cluster that does not ask for edges has another control plane: %s", diff)
			}
			blocked(t, admin, requesting, "waiting for the controller to create the Tunnel")
			enrol(t, admin, requesting)
			if diff := cmp.Diff(injected(t, template.config, namespace, requesting.Name), controlPlane(t, admin,
				client.ObjectKeyFromObject(requesting))); diff != "" {
				t.Error(diff)
			}
			// From now on the variable belongs to the Cluster: another default changes none of its machines.
			if err := admin.Get(t.Context(), client.ObjectKeyFromObject(requesting), requesting); err != nil {
				t.Fatal(err)
			}
			if v := requesting.Spec.Topology.Variables; len(v) != 1 || v[0].Name != inject.VariableName ||
				!strings.Contains(string(v[0].Value.Raw), defaults.Image) {
				t.Errorf("the Cluster has the variables %v", v)
			}
		})
	}
}

// TestInvalidTopologiesAreRejected checks that they are rejected with actionable messages.
func TestInvalidTopologiesAreRejected(t *testing.T) {
	admin := management(t)
	namespace := register(t, admin)
	class := newClass(namespace, "class")
	class.Spec.Patches = []clusterv1.ClusterClassPatch{externalPatch}
	create(t, admin, newTemplates(t, namespace, "class", templates["has-all"].config)...)
	create(t, admin, class)
	tests := map[string]struct {
		change func(*clusterv1.Cluster)
		want   string
	}{
		"no-label": {func(c *clusterv1.Cluster) { c.Labels = nil }, "set it to enabled"},
		"other-edge": {
			func(c *clusterv1.Cluster) { c.Annotations[v1alpha1.EdgesAnnotation] = "worker" },
			"write control-plane",
		},
		"refused": {
			func(c *clusterv1.Cluster) { c.Annotations["refused"] = "yes" },
			"not accepted: another Tunnel has it",
		},
		strings.Repeat("long-", 12) + "a.b": {func(*clusterv1.Cluster) {}, "gives no usable tunnel hostname"},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			cluster := newCluster(namespace, name, "class")
			tc.change(cluster)
			create(t, admin, cluster)
			if cluster.Annotations["refused"] != "" {
				accept(
					t,
					admin,
					cluster,
					metav1.Condition{
						Status:  metav1.ConditionFalse,
						Reason:  v1alpha1.ReasonNameTaken,
						Message: "another Tunnel has it",
					},
					"",
				)
			}
			if strings.HasPrefix(name, "long") {
				enrol(t, admin, cluster)
			}
			blocked(t, admin, cluster, tc.want)
		})
	}
}

// blocked waits until a Cluster reports why it has no control plane.
func blocked(t *testing.T, admin client.Client, cluster *clusterv1.Cluster, want string) {
	t.Helper()
	eventually.True(t, patience, "a condition of "+cluster.Name, func() error {
		var c clusterv1.Cluster
		if err := admin.Get(t.Context(), client.ObjectKeyFromObject(cluster), &c); err != nil {
			return err
		}
		if c.Spec.ControlPlaneRef.Name != "" {
			t.Fatalf("%s has a control plane", c.Name)
		}
		condition := apimeta.FindStatusCondition(c.Status.Conditions, clusterv1.ClusterTopologyReconciledCondition)
		if condition == nil {
			return errors.New("there is no condition")
		}
		if condition.Status != metav1.ConditionFalse || !strings.Contains(condition.Message, want) {
			return fmt.Errorf("want %q: %s %s: %s", want, condition.Status, condition.Reason, condition.Message)
		}
		return nil
	})
}

// enrol simulates the controller: it creates what the extension reads when the edges of a Cluster can enrol.
func enrol(t *testing.T, admin client.Client, cluster *clusterv1.Cluster) {
	t.Helper()
	accept(
		t, admin, cluster, metav1.Condition{Status: metav1.ConditionTrue, Reason: v1alpha1.ReasonAccepted}, "x.example.com",
	)
}

func accept(
	t *testing.T, admin client.Client, cluster *clusterv1.Cluster, condition metav1.Condition, hostname string,
) {
	t.Helper()
	tunnel := &v1alpha1.Tunnel{ObjectMeta: metav1.ObjectMeta{Namespace: cluster.Namespace, Name: cluster.Name}}
	tunnel.OwnerReferences = []metav1.OwnerReference{
		*metav1.NewControllerRef(cluster, clusterv1.GroupVersion.WithKind("Cluster")),
	}
	tunnel.Spec.ID = "aaaaaaaaaaaaaaaaaaaaaaaa"
	create(t, admin, tunnel)
	condition.Type, condition.LastTransitionTime = v1alpha1.ConditionAccepted, metav1.Now()
	tunnel.Status.Conditions = []metav1.Condition{condition}
	tunnel.Status.Hostname = hostname
	if hostname != "" {
		tunnel.Status.Tokens = []v1alpha1.TokenStatus{
			{SHA256: strings.Repeat("0", 64), ExpiresAt: metav1.NewTime(time.Now().Add(time.Hour)), MaxUses: 1},
		}
	}
	if err := admin.Status().Update(t.Context(), tunnel); err != nil {
		t.Fatal(err)
	}
}
