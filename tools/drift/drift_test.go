// Package drift_test checks the snippet in deploy/clusterclass with Cluster API's own code: clusterctl's templates, the
// webhook of KubeadmControlPlane, and the comparison by which its controller decides to replace machines. It is a
// separate module, so that the product does not depend on Cluster API's controllers.
package drift_test

import (
	"encoding/json"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/utils/ptr"
	bootstrapv1 "sigs.k8s.io/cluster-api/api/bootstrap/kubeadm/v1beta2"
	controlplanev1 "sigs.k8s.io/cluster-api/api/controlplane/kubeadm/v1beta2"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"
	"sigs.k8s.io/cluster-api/cmd/clusterctl/client/yamlprocessor"
	kcppkg "sigs.k8s.io/cluster-api/controlplane/kubeadm/pkg"
	"sigs.k8s.io/cluster-api/controlplane/kubeadm/pkg/desiredstate"
	"sigs.k8s.io/cluster-api/controlplane/kubeadm/webhooks/admission"
	"sigs.k8s.io/yaml"
)

var variables = map[string]string{
	"CLUSTER_NAME": "c1", "NAMESPACE": "prod", "FAIRLEAD_TUNNEL_DOMAIN": "tunnels.example.com",
	"FAIRLEAD_EDGE_IMAGE": "fairlead-edge:v1",
}

// snippet returns deploy/clusterclass/kubeadmcontrolplane.yaml after clusterctl has filled it in, as a control plane
// with the usual fields.
func snippet(t *testing.T) *controlplanev1.KubeadmControlPlane {
	t.Helper()
	text, err := os.ReadFile("../../deploy/clusterclass/kubeadmcontrolplane.yaml")
	if err != nil {
		t.Fatal(err)
	}
	processor := yamlprocessor.NewSimpleProcessor()
	names, err := processor.GetVariables(text)
	if err != nil || len(names) != len(variables) {
		t.Fatalf("clusterctl finds the variables %v, %v", names, err)
	}
	filled, err := processor.Process(text, func(name string) (string, error) { return variables[name], nil })
	if err != nil {
		t.Fatal(err)
	}
	var kcp controlplanev1.KubeadmControlPlane
	if err := yaml.UnmarshalStrict(filled, &kcp); err != nil {
		t.Fatal(err)
	}
	kcp.Spec.Version = "v1.36.1"
	kcp.Spec.Replicas = ptr.To[int32](3)
	kcp.Spec.MachineTemplate.Spec.InfrastructureRef = clusterv1.ContractVersionedObjectReference{
		APIGroup: "infrastructure.cluster.x-k8s.io",
		Kind:     "DockerMachineTemplate",
		Name:     "t",
	}
	if err := (&admission.KubeadmControlPlane{}).Default(t.Context(), &kcp); err != nil {
		t.Fatal(err)
	}
	return &kcp
}

func webhook() *admission.KubeadmControlPlane { return &admission.KubeadmControlPlane{} }

// without returns a control plane without Fairlead.
func without(t *testing.T) *controlplanev1.KubeadmControlPlane {
	t.Helper()
	kcp := snippet(t)
	kcp.Spec.KubeadmConfigSpec.Files, kcp.Spec.KubeadmConfigSpec.PreKubeadmCommands = nil, nil
	kcp.Spec.KubeadmConfigSpec.ClusterConfiguration.APIServer.CertSANs = []string{"localhost"}
	return kcp
}

// with returns the same control plane with the snippet.
func with(t *testing.T) *controlplanev1.KubeadmControlPlane {
	t.Helper()
	kcp := snippet(t)
	sans := &kcp.Spec.KubeadmConfigSpec.ClusterConfiguration.APIServer.CertSANs
	*sans = append([]string{"localhost"}, *sans...)
	return kcp
}

func TestTheWebhookAcceptsTheSnippet(t *testing.T) {
	if _, err := webhook().ValidateCreate(t.Context(), snippet(t)); err != nil {
		t.Errorf("creating: %v", err)
	}
	if _, err := webhook().ValidateUpdate(t.Context(), without(t), with(t)); err != nil {
		t.Errorf("adding it to one that is there: %v", err)
	}
	if _, err := webhook().ValidateUpdate(t.Context(), with(t), without(t)); err != nil {
		t.Errorf("taking it away: %v", err)
	}
	// docs/machines.md states this. If Cluster API permits it one day, the document must change.
	empty := without(t)
	empty.Spec.KubeadmConfigSpec.ClusterConfiguration.APIServer.CertSANs = nil
	if _, err := webhook().ValidateUpdate(t.Context(), snippet(t), empty); err == nil ||
		!strings.Contains(err.Error(), "cannot be modified") {
		t.Errorf("taking it away together with all of clusterConfiguration: %v", err)
	}
	if _, err := webhook().ValidateUpdate(t.Context(), empty, snippet(t)); err != nil {
		t.Errorf("adding it to one that has no clusterConfiguration: %v", err)
	}
	newer := snippet(t)
	newer.Spec.Version = "v1.36.2"
	if _, err := webhook().ValidateUpdate(t.Context(), snippet(t), newer); err != nil {
		t.Errorf("upgrading: %v", err)
	}
	twice := snippet(t)
	twice.Spec.KubeadmConfigSpec.Files = append(twice.Spec.KubeadmConfigSpec.Files, twice.Spec.KubeadmConfigSpec.Files[0])
	if _, err := webhook().ValidateCreate(t.Context(), twice); err == nil {
		t.Error("the webhook does not see that a file is there twice, so it can't have looked")
	}
}

// TestMachinesAreUpToDate makes the configuration of the first machine and of a machine that joins, as an apiserver
// returns it, and lets the controller compare it.
func TestMachinesAreUpToDate(t *testing.T) {
	for _, join := range []bool{false, true} {
		old := snippet(t)
		config := configOf(t, old, join)
		if ok, why := upToDate(t, old, config); !ok {
			t.Errorf("join %v: the controller sees drift: %v", join, why)
		}
		// CABPK sets this in a KubeadmConfig when it makes the bootstrap data.
		config.Spec.ClusterConfiguration.ControlPlaneEndpoint = "192.0.2.1:6443"
		if ok, why := upToDate(t, old, config); !ok {
			t.Errorf("join %v: the controller sees drift after a bootstrap: %v", join, why)
		}
		newer := snippet(t)
		manifest := slices.IndexFunc(
			newer.Spec.KubeadmConfigSpec.Files, func(f bootstrapv1.File) bool { return f.Content != "" },
		)
		newer.Spec.KubeadmConfigSpec.Files[manifest].Content = strings.Replace(
			newer.Spec.KubeadmConfigSpec.Files[manifest].Content, "fairlead-edge:v1", "fairlead-edge:v2", 1,
		)
		if ok, _ := upToDate(t, newer, config); ok {
			t.Errorf("join %v: the controller does not see another image", join)
		}
		if ok, _ := upToDate(t, without(t), config); ok {
			t.Errorf("join %v: the controller does not see that edges are gone", join)
		}
	}
}

func configOf(t *testing.T, kcp *controlplanev1.KubeadmControlPlane, join bool) *bootstrapv1.KubeadmConfig {
	t.Helper()
	computed, err := desiredstate.ComputeDesiredKubeadmConfig(kcp, cluster(), join, "m", nil)
	if err != nil {
		t.Fatal(err)
	}
	stored, err := json.Marshal(computed)
	if err != nil {
		t.Fatal(err)
	}
	var config bootstrapv1.KubeadmConfig
	if err := json.Unmarshal(stored, &config); err != nil {
		t.Fatal(err)
	}
	return &config
}

func cluster() *clusterv1.Cluster {
	return &clusterv1.Cluster{ObjectMeta: metav1.ObjectMeta{Namespace: "prod", Name: "c1"}}
}

func upToDate(
	t *testing.T, kcp *controlplanev1.KubeadmControlPlane, config *bootstrapv1.KubeadmConfig,
) (ok bool, why []string) {
	t.Helper()
	machine := &clusterv1.Machine{ObjectMeta: metav1.ObjectMeta{Namespace: "prod", Name: "m"}}
	machine.Spec.ClusterName, machine.Spec.Version = "c1", kcp.Spec.Version
	machine.Spec.Bootstrap.ConfigRef = clusterv1.ContractVersionedObjectReference{
		APIGroup: bootstrapv1.GroupVersion.Group,
		Kind:     "KubeadmConfig",
		Name:     "m",
	}
	infrastructure := &unstructured.Unstructured{}
	infrastructure.SetGroupVersionKind(
		schema.GroupVersionKind{Group: "infrastructure.cluster.x-k8s.io", Version: "v1beta2", Kind: "DockerMachine"},
	)
	ok, result, err := kcppkg.UpToDate(t.Context(), nil, cluster(), machine, kcp, &metav1.Time{Time: time.Now()},
		map[string]*unstructured.Unstructured{}, map[string]*bootstrapv1.KubeadmConfig{"m": config})
	if err != nil {
		t.Fatal(err)
	}
	if result != nil {
		why = result.LogMessages
	}
	return ok, why
}
