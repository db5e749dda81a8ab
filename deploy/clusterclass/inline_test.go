package clusterclass_test

import (
	"encoding/json"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/utils/ptr"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/fairlead/fairlead/api/v1alpha1"
	"github.com/fairlead/fairlead/internal/eventually"
	"github.com/fairlead/fairlead/internal/kubetest"
	"github.com/fairlead/fairlead/pkg/capi/inject"
)

// templates are the forms of a KubeadmControlPlaneTemplate, with the patches of lists.yaml that each needs.
var templates = map[string]struct {
	config string
	lists  []string
}{
	"has-all": {
		`{"files":[{"path":"/etc/motd","content":"hello"}],"preKubeadmCommands":["true"],"clusterConfiguration":{"apiServer":{"certSANs":["localhost"]}}}`, nil,
	},
	"has-none": {
		`{"joinConfiguration":{"nodeRegistration":{"name":"x"}}}`, []string{
			"fairlead-no-files",
			"fairlead-no-pre-kubeadm-commands", "fairlead-no-cluster-configuration",
		},
	},
	"no-api-server": {
		`{"files":[{"path":"/etc/motd","content":"hello"}],"clusterConfiguration":{"controllerManager":{"extraArgs":[{"name":"v","value":"2"}]}}}`,
		[]string{"fairlead-no-pre-kubeadm-commands", "fairlead-no-api-server"},
	},
	"no-cert-sans": {
		`{"preKubeadmCommands":["true"],"clusterConfiguration":{"apiServer":{"extraArgs":[{"name":"v","value":"2"}]}}}`,
		[]string{"fairlead-no-files", "fairlead-no-cert-sans"},
	},
}

// TestInlinePatches lets Cluster API apply the patches of this directory to every form of a template, and compares the
// control plane with the result of pkg/capi/inject for the template.
func TestInlinePatches(t *testing.T) {
	admin := management(t)
	namespace := kubetest.NewNamespace(t, admin)
	patches, lists := read(t, "patches.yaml"), read(t, "lists.yaml")
	for name, template := range templates {
		class := newClass(namespace, name)
		class.Spec.Variables = patches.Variables
		for _, p := range lists.Patches {
			if slices.Contains(template.lists, p.Name) {
				class.Spec.Patches = append(class.Spec.Patches, p)
			}
		}
		class.Spec.Patches = append(class.Spec.Patches, patches.Patches...)
		create(t, admin, newTemplates(t, namespace, name, template.config)...)
		create(t, admin, class)
	}
	// In parallel, so that the manager does not reconcile them one after the other.
	for name, template := range templates {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			requesting, not := newCluster(namespace, name+".asks", name), newCluster(namespace, name+"-does-not", name)
			not.Annotations = nil
			create(t, admin, requesting, not)
			if diff := cmp.Diff(injected(t, template.config, namespace, requesting.Name), controlPlane(t, admin,
				client.ObjectKeyFromObject(requesting))); diff != "" {
				t.Error(diff)
			}
			if diff := cmp.Diff(fields(t, template.config), controlPlane(t, admin, client.ObjectKeyFromObject(
				not))); diff != "" {
				t.Errorf("a Cluster that does not ask for edges has another control plane: %s", diff)
			}
		})
	}
}

// TestExample applies example.yaml unchanged.
func TestExample(t *testing.T) {
	admin := management(t)
	var cluster client.Object
	var config map[string]any
	for _, o := range example(t) {
		create(t, admin, o.DeepCopy())
		switch o.GetKind() {
		case "Cluster":
			cluster = o
		case "KubeadmControlPlaneTemplate":
			config, _, _ = unstructured.NestedMap(o.Object, "spec", "template", "spec", "kubeadmConfigSpec")
		}
	}
	if err := inject.Fields(config, options(cluster.GetNamespace(), cluster.GetName())); err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(config, controlPlane(t, admin, client.ObjectKeyFromObject(cluster))); diff != "" {
		t.Error(diff)
	}
}

// TestVariableRejectsInjections: a value of the variable must not change the meaning of a manifest.
func TestVariableRejectsInjections(t *testing.T) {
	admin := management(t)
	namespace := kubetest.NewNamespace(t, admin)
	class := newClass(namespace, "tricks")
	patches := read(t, "patches.yaml")
	class.Spec.Variables, class.Spec.Patches = patches.Variables, patches.Patches
	create(t, admin, newTemplates(t, namespace, "tricks", templates["has-all"].config)...)
	create(t, admin, class)
	for _, value := range []string{
		`{"tunnelDomain":"t.example.com","image":"a\n      command: [sh]"}`,
		`{"tunnelDomain":"t.example.com\"","image":"a"}`, `{"image":"a"}`,
		`{"tunnelDomain":"t.example.com","image":"a","apiServerPort":0}`,
	} {
		cluster := newCluster(namespace, "tricks", "tricks")
		cluster.Spec.Topology.Variables = []clusterv1.ClusterVariable{{Name: inject.VariableName}}
		cluster.Spec.Topology.Variables[0].Value.Raw = []byte(value)
		eventually.True(t, patience, "a refusal of "+value, func() error {
			err := admin.Create(t.Context(), cluster.DeepCopy(), client.DryRunAll)
			if err == nil {
				t.Fatalf("%s was taken", value)
			}
			if !strings.Contains(err.Error(), inject.VariableName) {
				return err // the class is not ready
			}
			return nil
		})
	}
}

func fields(t *testing.T, text string) map[string]any {
	t.Helper()
	var all map[string]any
	if err := json.Unmarshal([]byte(text), &all); err != nil {
		t.Fatal(err)
	}
	return all
}

// injected returns the expected result for the configuration of a template.
func injected(t *testing.T, config, namespace, name string) map[string]any {
	t.Helper()
	want := fields(t, config)
	if err := inject.Fields(want, options(namespace, name)); err != nil {
		t.Fatal(err)
	}
	return want
}

func newTemplates(t *testing.T, namespace, name, config string) []client.Object {
	t.Helper()
	var objects []client.Object
	for kind, spec := range map[string]map[string]any{
		"controlplane.cluster.x-k8s.io/v1beta2 KubeadmControlPlaneTemplate": {"kubeadmConfigSpec": fields(t, config)},
		"infrastructure.cluster.x-k8s.io/v1beta2 DockerClusterTemplate":     {},
		"infrastructure.cluster.x-k8s.io/v1beta2 DockerMachineTemplate":     {},
	} {
		version, kind, _ := strings.Cut(kind, " ")
		objects = append(objects, &unstructured.Unstructured{Object: map[string]any{
			"apiVersion": version, "kind": kind, "metadata": map[string]any{"namespace": namespace, "name": name},
			"spec": map[string]any{"template": map[string]any{"spec": spec}},
		}})
	}
	return objects
}

func newClass(namespace, name string) *clusterv1.ClusterClass {
	class := &clusterv1.ClusterClass{}
	class.Namespace, class.Name = namespace, name
	class.Spec.Infrastructure.TemplateRef = clusterv1.ClusterClassTemplateReference{
		APIVersion: "infrastructure.cluster.x-k8s.io/v1beta2",
		Kind:       "DockerClusterTemplate",
		Name:       name,
	}
	class.Spec.ControlPlane.TemplateRef = clusterv1.ClusterClassTemplateReference{
		APIVersion: "controlplane.cluster.x-k8s.io/v1beta2",
		Kind:       "KubeadmControlPlaneTemplate",
		Name:       name,
	}
	class.Spec.ControlPlane.MachineInfrastructure.TemplateRef = clusterv1.ClusterClassTemplateReference{
		APIVersion: "infrastructure.cluster.x-k8s.io/v1beta2",
		Kind:       "DockerMachineTemplate",
		Name:       name,
	}
	return class
}

// newCluster returns a Cluster that requests edges on its control plane.
func newCluster(namespace, name, class string) *clusterv1.Cluster {
	cluster := &clusterv1.Cluster{}
	cluster.Namespace, cluster.Name = namespace, name
	cluster.Labels = map[string]string{v1alpha1.TunnelLabel: v1alpha1.TunnelEnabled}
	cluster.Annotations = map[string]string{v1alpha1.EdgesAnnotation: v1alpha1.EdgesOnControlPlane}
	cluster.Spec.Topology = clusterv1.Topology{ClassRef: clusterv1.ClusterClassRef{Name: class}, Version: "v1.36.1"}
	cluster.Spec.Topology.ControlPlane.Replicas = ptr.To[int32](1)
	return cluster
}
