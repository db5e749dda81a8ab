// Package kubernetes_test applies the manifests of this directory to a real kube-apiserver, and proves what each
// ServiceAccount can and cannot do.
package kubernetes_test

import (
	"bytes"
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/go-logr/logr"
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/rest"
	"k8s.io/utils/ptr"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/yaml"

	"github.com/fairlead/fairlead/internal/kubetest"
)

const (
	root      = "../.."
	namespace = "fairlead-system"
)

// server has only the CRDs of the manifests, and an admission plugin that OpenShift enables.
var server = kubetest.Server{
	Prepare: applyManifests,
	Flags:   map[string]string{"enable-admission-plugins": "OwnerReferencesPermissionEnforcement"},
}

func TestMain(m *testing.M) {
	ctrl.SetLogger(logr.Discard())
	os.Exit(server.Run(m))
}

// apiserver returns an administrator's client of a real kube-apiserver with the manifests.
func apiserver(t *testing.T) client.Client {
	t.Helper()
	admin, err := kubetest.NewClient(server.Config(t))
	if err != nil {
		t.Fatal(err)
	}
	return admin
}

func applyManifests(ctx context.Context, config *rest.Config) error {
	admin, err := kubetest.NewClient(config)
	if err != nil {
		return err
	}
	built, err := kubetest.Kustomize(ctx, ".")
	if err != nil {
		return err
	}
	for _, o := range built {
		if err := admin.Apply(ctx, client.ApplyConfigurationFromUnstructured(o), client.FieldOwner("test")); err != nil {
			return fmt.Errorf("applying %s %s: %w", o.GetKind(), o.GetName(), err)
		}
	}
	return nil
}

func TestEveryManifestIsApplied(t *testing.T) {
	kustomization, err := os.ReadFile("kustomization.yaml")
	if err != nil {
		t.Fatal(err)
	}
	for _, pattern := range []string{"*.yaml", "crd/*.yaml"} {
		files, err := filepath.Glob(pattern)
		if err != nil {
			t.Fatal(err)
		}
		for _, file := range files {
			if file != "kustomization.yaml" && !strings.Contains(string(kustomization), "- "+file+"\n") {
				t.Errorf("kustomization.yaml does not name %s", file)
			}
		}
	}
}

// workloads returns the Pod templates by the name of their owner.
func workloads(t *testing.T, admin client.Client) map[string]corev1.PodTemplateSpec {
	t.Helper()
	var deployments appsv1.DeploymentList
	var sets appsv1.StatefulSetList
	for _, list := range []client.ObjectList{&deployments, &sets} {
		if err := admin.List(t.Context(), list, client.InNamespace(namespace)); err != nil {
			t.Fatal(err)
		}
	}
	templates := map[string]corev1.PodTemplateSpec{}
	for _, d := range deployments.Items {
		templates[d.Name] = d.Spec.Template
	}
	for _, s := range sets.Items {
		templates[s.Name] = s.Spec.Template
	}
	if len(templates) != 3 {
		t.Fatalf("there are %d workloads, want 3", len(templates))
	}
	return templates
}

// restricted creates a namespace that enforces the restricted profile of Pod Security.
func restricted(t *testing.T, admin client.Client) *corev1.Namespace {
	t.Helper()
	strict := &corev1.Namespace{
		ObjectMeta: metav1.ObjectMeta{
			GenerateName: "restricted-",
			Labels:       map[string]string{"pod-security.kubernetes.io/enforce": "restricted"},
		},
	}
	if err := admin.Create(t.Context(), strict); err != nil {
		t.Fatal(err)
	}
	return strict
}

// TestGatewaysWithoutNetAdminAreRestricted creates the gateway's Pod of the component without-net-admin, as it is.
func TestGatewaysWithoutNetAdminAreRestricted(t *testing.T) {
	admin := apiserver(t)
	strict := restricted(t, admin)
	found := 0
	for _, o := range kubetest.KustomizeUser(t, []string{"kubernetes"}, []string{"kubernetes/without-net-admin"}, "") {
		switch o.GetKind() {
		case "Namespace":
			found++
			if level := o.GetLabels()["pod-security.kubernetes.io/enforce"]; level != "restricted" {
				t.Errorf("the namespace of the installation enforces %q", level)
			}
		case "StatefulSet":
			found++
			var set appsv1.StatefulSet
			if err := runtime.DefaultUnstructuredConverter.FromUnstructured(o.Object, &set); err != nil {
				t.Fatal(err)
			}
			pod := &corev1.Pod{
				ObjectMeta: metav1.ObjectMeta{Namespace: strict.Name, Name: "gateway-0", Labels: set.Spec.Template.Labels},
				Spec:       set.Spec.Template.Spec,
			}
			if err := admin.Create(t.Context(), pod, client.DryRunAll); err != nil {
				t.Error(err)
			}
		}
	}
	if found != 2 {
		t.Errorf("%d of the two objects are there", found)
	}
}

// TestPodsAreRestricted creates all Pods in a namespace that enforces the restricted profile of Pod Security.
func TestPodsAreRestricted(t *testing.T) {
	admin := apiserver(t)
	strict := restricted(t, admin)
	for name, template := range workloads(t, admin) {
		for _, c := range template.Spec.Containers {
			if !ptr.Deref(c.SecurityContext.ReadOnlyRootFilesystem, false) || c.LivenessProbe == nil || c.ReadinessProbe == nil {
				t.Errorf("%s: its root is writable, or it has no probes", name)
			}
		}
		spec := *template.Spec.DeepCopy()
		spec.ServiceAccountName = "" // it does not exist here, and the profile does not depend on it
		pod := &corev1.Pod{
			ObjectMeta: metav1.ObjectMeta{Namespace: strict.Name, Name: name + "-0", Labels: template.Labels},
			Spec:       spec,
		}
		err := admin.Create(t.Context(), pod.DeepCopy(), client.DryRunAll)
		if name != "gateway" {
			if err != nil {
				t.Errorf("%s: %v", name, err)
			}
			continue
		}
		// The only exception needs one capability, and the settings that let a non-root user have it. Without these it
		// conforms to the profile as well.
		if !apierrors.IsForbidden(err) {
			t.Errorf("%s: the exception is not one any more: %v", name, err)
		}
		security := pod.Spec.Containers[0].SecurityContext
		if !slices.Equal(security.Capabilities.Add, []corev1.Capability{"NET_ADMIN"}) {
			t.Errorf("%s: capabilities %v", name, security.Capabilities.Add)
		}
		security.Capabilities.Add, security.AllowPrivilegeEscalation = nil, ptr.To(false)
		if err := admin.Create(t.Context(), pod, client.DryRunAll); err != nil {
			t.Errorf("%s: %v", name, err)
		}
		pod.Namespace, pod.Spec = namespace, template.Spec
		if err := admin.Create(t.Context(), pod, client.DryRunAll); err != nil {
			t.Errorf("%s: its own namespace refuses it: %v", name, err)
		}
	}
}

// TestEdgesKeepTheirAddresses: the limits of unknown sources are per address.
func TestEdgesKeepTheirAddresses(t *testing.T) {
	settings := &corev1.ConfigMap{}
	if err := apiserver(t).Get(t.Context(), client.ObjectKey{Namespace: namespace, Name: "fairlead-settings"},
		settings); err != nil {
		t.Fatal(err)
	}
	var service corev1.Service // the controller creates it
	if err := yaml.UnmarshalStrict([]byte(settings.Data["PUBLIC_SERVICE"]), &service); err != nil {
		t.Fatal(err)
	}
	if got := service.Spec.ExternalTrafficPolicy; got != corev1.ServiceExternalTrafficPolicyLocal {
		t.Errorf("external traffic policy %s: edges come from the addresses of nodes", got)
	}
}

// TestClusterctlMovesTunnels: clusterctl moves only kinds whose CRDs have its label.
func TestClusterctlMovesTunnels(t *testing.T) {
	for _, name := range []string{"tunnels.fairlead.dev", "remotenetworks.fairlead.dev"} {
		crd := &unstructured.Unstructured{}
		crd.SetAPIVersion("apiextensions.k8s.io/v1")
		crd.SetKind("CustomResourceDefinition")
		if err := apiserver(t).Get(t.Context(), client.ObjectKey{Name: name}, crd); err != nil {
			t.Fatal(err)
		}
		if _, ok := crd.GetLabels()["clusterctl.cluster.x-k8s.io"]; !ok {
			t.Errorf("%s has the labels %v", name, crd.GetLabels())
		}
	}
}

// TestProgramsAcceptTheirArguments runs the programs with the arguments in the manifests.
func TestProgramsAcceptTheirArguments(t *testing.T) {
	admin := apiserver(t)
	settings := &corev1.ConfigMap{}
	if err := admin.Get(t.Context(), client.ObjectKey{Namespace: namespace, Name: "fairlead-settings"},
		settings); err != nil {
		t.Fatal(err)
	}
	var variables []string
	for name, value := range settings.Data {
		variables = append(variables, "$("+name+")", value)
	}
	expand := strings.NewReplacer(variables...)
	programs := map[string]string{"controller": "controller", "xds-server": "xds-server", "gateway": "gateway-agent"}
	for name, template := range workloads(t, admin) {
		arguments := []string{"run", root + "/cmd/" + programs[name]}
		for _, argument := range template.Spec.Containers[0].Args {
			arguments = append(arguments, expand.Replace(argument))
		}
		// Help is printed after all arguments were parsed, and instead of running.
		out, err := exec.CommandContext(t.Context(), "go", append(arguments, "--help")...).CombinedOutput()
		if err != nil || !bytes.Contains(out, []byte("Usage:")) {
			t.Errorf("%s: %v: %s", name, err, out)
		}
	}
}
