// Package runtimeextension_test applies the manifests of this directory to a real kube-apiserver, and proves that they
// fit together and that the extension can read single Tunnels and nothing else.
package runtimeextension_test

import (
	"bytes"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/go-logr/logr"
	appsv1 "k8s.io/api/apps/v1"
	authorizationv1 "k8s.io/api/authorization/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/utils/ptr"
	runtimev1 "sigs.k8s.io/cluster-api/api/runtime/v1beta2"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/fairlead/fairlead/internal/kubetest"
)

const namespace = "fairlead-system"

var server = kubetest.Server{}

func TestMain(m *testing.M) {
	ctrl.SetLogger(logr.Discard())
	os.Exit(server.Run(m))
}

// built returns the objects that `kubectl apply -k` would apply, by kind.
func built(t *testing.T) map[string]*unstructured.Unstructured {
	t.Helper()
	kubetest.Part(t, "kubectl")
	objects, err := kubetest.Kustomize(t.Context(), ".")
	if err != nil {
		t.Fatal(err)
	}
	return byKind(t, objects)
}

func byKind(t *testing.T, objects []*unstructured.Unstructured) map[string]*unstructured.Unstructured {
	t.Helper()
	all := map[string]*unstructured.Unstructured{}
	for _, o := range objects {
		if all[o.GetKind()] != nil {
			t.Fatalf("there are two of kind %s", o.GetKind())
		}
		all[o.GetKind()] = o
	}
	return all
}

// convert converts strictly: an unknown field is an error.
func convert(t *testing.T, from *unstructured.Unstructured, into any) {
	t.Helper()
	if err := runtime.DefaultUnstructuredConverter.FromUnstructuredWithValidation(from.Object, into, true); err != nil {
		t.Fatalf("%s %s: %v", from.GetKind(), from.GetName(), err)
	}
}

// TestPermissions applies everything except cert-manager's objects.
func TestPermissions(t *testing.T) {
	admin, err := kubetest.NewClient(server.Config(t))
	if err != nil {
		t.Fatal(err)
	}
	ns := &corev1.Namespace{
		ObjectMeta: metav1.ObjectMeta{
			Name:   namespace,
			Labels: map[string]string{"pod-security.kubernetes.io/enforce": "restricted"},
		},
	}
	// elsewhere a controller creates it
	account := &corev1.ServiceAccount{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: "default"}}
	for _, o := range []client.Object{ns, account} {
		if err := admin.Create(t.Context(), o); err != nil {
			t.Fatal(err)
		}
	}
	objects := built(t)
	for _, kind := range []string{
		"ServiceAccount", "ClusterRole", "ClusterRoleBinding", "Service", "PodDisruptionBudget",
		"Deployment",
	} {
		if err := admin.Create(t.Context(), objects[kind]); err != nil {
			t.Fatalf("%s: %v", kind, err)
		}
	}
	var deployment appsv1.Deployment
	convert(t, objects["Deployment"], &deployment)
	pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: "x"}, Spec: deployment.Spec.Template.Spec}
	if err := admin.Create(t.Context(), pod, client.DryRunAll); err != nil {
		t.Errorf("the restricted profile refuses the Pod: %v", err)
	}
	for _, c := range deployment.Spec.Template.Spec.Containers {
		if !ptr.Deref(c.SecurityContext.ReadOnlyRootFilesystem, false) || c.LivenessProbe == nil || c.ReadinessProbe == nil ||
			c.Resources.Limits.Memory().IsZero() {
			t.Errorf("%s: its root is writable, or it has no probes, or no limit", c.Name)
		}
	}
	for what, allowed := range map[authorizationv1.ResourceAttributes]bool{
		{
			Verb: "get", Group: "fairlead.dev", Resource: "tunnels", Namespace: "prod",
			Name: "c1",
		}: true,
		{
			Verb: "list", Group: "fairlead.dev",
			Resource: "tunnels",
		}: false,
		{
			Verb: "patch", Group: "fairlead.dev", Resource: "tunnels", Namespace: "prod",
			Name: "c1",
		}: false,
		{
			Verb: "patch", Group: "fairlead.dev", Resource: "tunnels", Subresource: "status", Namespace: "prod",
			Name: "c1",
		}: false,
		{
			Verb: "get", Resource: "secrets", Namespace: "prod",
			Name: "c1-edge-bootstrap",
		}: false,
		{
			Verb: "get", Resource: "secrets", Namespace: namespace,
			Name: "runtime-extension-certificate",
		}: false,
		{
			Verb: "get", Group: "cluster.x-k8s.io", Resource: "clusters", Namespace: "prod",
			Name: "c1",
		}: false,
	} {
		review := &authorizationv1.SubjectAccessReview{Spec: authorizationv1.SubjectAccessReviewSpec{
			User: "system:serviceaccount:" + namespace + ":runtime-extension", Groups: []string{
				"system:serviceaccounts",
				"system:authenticated",
			}, ResourceAttributes: &what,
		}}
		if err := admin.Create(t.Context(), review); err != nil {
			t.Fatal(err)
		}
		if review.Status.Allowed != allowed {
			t.Errorf("%v: allowed %v", what, review.Status.Allowed)
		}
	}
}

// TestNamesFitTogether: the certificate is for the Service that Cluster API calls, and in the Secret that the Pods
// mount and from which its CA is injected.
func TestNamesFitTogether(t *testing.T) {
	objects := built(t)
	data, err := os.ReadFile("extensionconfig.yaml")
	if err != nil {
		t.Fatal(err)
	}
	configs, err := kubetest.Decode(data)
	if err != nil || len(configs) != 1 {
		t.Fatalf("%d objects, %v", len(configs), err)
	}
	var config runtimev1.ExtensionConfig
	var deployment appsv1.Deployment
	var service corev1.Service
	convert(t, configs[0], &config)
	convert(t, objects["Deployment"], &deployment)
	convert(t, objects["Service"], &service)

	reference := config.Spec.ClientConfig.Service
	if reference.Name != service.Name || reference.Namespace != service.Namespace ||
		ptr.Deref(reference.Port, 0) != service.Spec.Ports[0].Port {
		t.Errorf("Cluster API would call %v", reference)
	}
	names, _, _ := unstructured.NestedStringSlice(objects["Certificate"].Object, "spec", "dnsNames")
	if want := service.Name + "." + service.Namespace + ".svc"; !slices.Contains(names, want) {
		t.Errorf("the certificate is for %v, not for %s", names, want)
	}
	secret, _, _ := unstructured.NestedString(objects["Certificate"].Object, "spec", "secretName")
	if got := config.Annotations[runtimev1.InjectCAFromSecretAnnotation]; got != namespace+"/"+secret {
		t.Errorf("the CA is taken from %s, not from %s", got, secret)
	}
	pod := deployment.Spec.Template.Spec
	if got := pod.Volumes[0].Secret.SecretName; got != secret {
		t.Errorf("the Pods mount %s, not %s", got, secret)
	}
	container := pod.Containers[0]
	if want := "--cert-dir=" + container.VolumeMounts[0].MountPath; !slices.Contains(container.Args, want) {
		t.Errorf("%v does not have %s", container.Args, want)
	}
	if want := "--client-ca=" + container.VolumeMounts[1].MountPath + "/" +
		pod.Volumes[1].ConfigMap.Items[0].Path; !slices.Contains(
		container.Args,
		want,
	) {
		t.Errorf("%v does not have %s", container.Args, want)
	}
	if want := fmt.Sprintf("--listen=:%d", container.Ports[0].ContainerPort); !slices.Contains(container.Args, want) ||
		container.Ports[0].Name != service.Spec.Ports[0].TargetPort.StrVal {
		t.Errorf("the Service leads to the port %s, %v", service.Spec.Ports[0].TargetPort.StrVal, container.Args)
	}
	for key, value := range service.Spec.Selector {
		if deployment.Spec.Template.Labels[key] != value {
			t.Errorf("the Service selects %s=%s", key, value)
		}
	}
	settings, err := os.ReadFile("../kubernetes/settings.yaml")
	if err != nil || !strings.Contains(string(settings), "TUNNEL_DOMAIN:") ||
		container.EnvFrom[0].ConfigMapRef.Name != "fairlead-settings" {
		t.Errorf("there is no TUNNEL_DOMAIN, %v", err)
	}
}

// TestTheRemovalNamesWhatIsOutsideOfNamespaces: the objects of this directory are not part of deploy/kubernetes, so its
// removal leaves them, and an ExtensionConfig without its Pods keeps Cluster API's core manager from starting.
func TestTheRemovalNamesWhatIsOutsideOfNamespaces(t *testing.T) {
	operations := commands(t, "operations.md", "## Removing Fairlead")
	var without []string
	for _, o := range clusterScoped(t) {
		kind := strings.ToLower(o.GetKind())
		without = append(without, kind)
		if !slices.ContainsFunc(strings.Split(operations, "\n"), func(line string) bool {
			words := strings.Fields(line)
			return strings.HasPrefix(line, "kubectl delete ") && slices.Contains(words, o.GetName()) &&
				slices.Contains(strings.Split(words[2], ","), kind)
		}) {
			t.Errorf("docs/operations.md does not delete the %s %s", kind, o.GetName())
		}
	}
	slices.Sort(without)
	if want := []string{"clusterrole", "clusterrolebinding", "extensionconfig"}; !slices.Equal(without, want) {
		t.Errorf("the objects without a namespace are %v, want %v", without, want)
	}
	for page, text := range map[string]string{
		"operations.md": operations,
		"install.md":    commands(t, "install.md", "## Remove it"),
		"machines.md":   commands(t, "machines.md", "### Remove the runtime extension"),
	} {
		if !strings.HasPrefix(text, "kubectl delete extensionconfig fairlead --ignore-not-found\n") {
			t.Errorf("docs/%s does not begin with the ExtensionConfig:\n%s", page, text)
		}
	}
}

// clusterScoped returns the objects of this directory that have no namespace.
func clusterScoped(t *testing.T) (all []*unstructured.Unstructured) {
	t.Helper()
	files, err := filepath.Glob("*.yaml")
	if err != nil {
		t.Fatal(err)
	}
	for _, file := range files {
		data, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		objects, err := kubetest.Decode(data)
		if err != nil {
			t.Fatal(err)
		}
		for _, o := range objects {
			if o.GetNamespace() == "" && o.GetKind() != "Kustomization" {
				all = append(all, o)
			}
		}
	}
	return all
}

var fence = regexp.MustCompile("(?ms)^ *```(?:sh)?\n(.*?)^ *```")

// commands returns the blocks of commands in a section of a document, without the indentation of lists.
func commands(t *testing.T, page, heading string) string {
	t.Helper()
	data, err := os.ReadFile("../../docs/" + page)
	if err != nil {
		t.Fatal(err)
	}
	_, section, _ := strings.Cut(string(data), "\n"+heading+"\n")
	section, _, _ = strings.Cut(section, "\n## ")
	var all strings.Builder
	for _, match := range fence.FindAllStringSubmatch(section, -1) {
		for line := range strings.Lines(match[1]) {
			all.WriteString(strings.TrimLeft(line, " "))
		}
	}
	return all.String()
}

// TestTheProgramAcceptsItsArguments runs the program with the arguments.
func TestTheProgramAcceptsItsArguments(t *testing.T) {
	var deployment appsv1.Deployment
	convert(t, built(t)["Deployment"], &deployment)
	arguments := append(
		[]string{"run", "../../cmd/runtime-extension"},
		deployment.Spec.Template.Spec.Containers[0].Args...)
	// Help is printed after all arguments were parsed, and instead of running.
	out, err := exec.CommandContext(t.Context(), "go", append(arguments, "--help")...).CombinedOutput()
	if err != nil || !bytes.Contains(out, []byte("Usage:")) {
		t.Errorf("%v: %s", err, out)
	}
}
