package chart_test

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"
	clientcmdapi "k8s.io/client-go/tools/clientcmd/api"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/envtest"

	"github.com/fairlead/fairlead/internal/kubetest"
)

// server has neither Cluster API's types nor Fairlead's.
var server kubetest.Server

// TestHelm installs the chart at a real kube-apiserver. The order matters: the first part needs one without Cluster
// API.
func TestHelm(t *testing.T) {
	t.Run("rejects a cluster and values in one line", testErrorsOfAnInstall)
	if _, err := envtest.InstallCRDs(server.Config(t), envtest.CRDInstallOptions{
		Paths: []string{
			filepath.Join(root, "bin/capi-config/crd/bases/cluster.x-k8s.io_clusters.yaml"),
			filepath.Join(root, "bin/capi-config/crd/bases/cluster.x-k8s.io_machines.yaml"),
		},
		ErrorIfPathMissing: true,
	}); err != nil {
		t.Fatal(err)
	}
	t.Run("is installed and removed", testInstallUpgradeUninstall)
	t.Run("is installed by the documented commands", testDocumentedCommands)
	t.Run("does not drift", testNoDrift)
	t.Run("takes over a kustomization", testTakeOver)
}

// kubeconfig writes a kubeconfig for Helm.
func kubeconfig(t *testing.T, config *rest.Config) string {
	t.Helper()
	all := clientcmdapi.NewConfig()
	all.Clusters["c"] = &clientcmdapi.Cluster{Server: config.Host, CertificateAuthorityData: config.CAData}
	all.AuthInfos["u"] = &clientcmdapi.AuthInfo{ClientCertificateData: config.CertData, ClientKeyData: config.KeyData}
	all.Contexts["x"] = &clientcmdapi.Context{Cluster: "c", AuthInfo: "u"}
	all.CurrentContext = "x"
	file := filepath.Join(t.TempDir(), "kubeconfig")
	if err := clientcmd.WriteToFile(*all, file); err != nil {
		t.Fatal(err)
	}
	return file
}

// testInstallUpgradeUninstall: a second upgrade changes nothing, what the controller has added stays, and
// only the types and their policies are left in the end.
func testInstallUpgradeUninstall(t *testing.T) {
	config := server.Config(t)
	admin, err := kubetest.NewClient(config)
	if err != nil {
		t.Fatal(err)
	}
	connection := "--kubeconfig=" + kubeconfig(t, config)
	run := func(args ...string) string {
		t.Helper()
		out, stderr, err := helm(t.Context(), t, append(args, connection, "--namespace="+namespace)...)
		if err != nil {
			t.Fatalf("helm %s: %v: %s", args[0], err, stderr)
		}
		return out
	}
	file := minimum.write(t)
	notes := run("install", "fairlead", folder, "--create-namespace", "--values="+file)
	for _, want := range []string{
		"gateway.tunnels.example.com", "get service gateway-public", "fairlead join", "fairlead status",
	} {
		if !strings.Contains(notes, want) {
			t.Errorf("the notes do not have %q: %s", want, notes)
		}
	}
	rendered := renderOnce(t, "{}")
	setCABundle(t, admin)
	before := versions(t, admin, rendered)
	for range 2 {
		run("upgrade", "fairlead", folder, "--values="+file)
	}
	if after := versions(t, admin, rendered); fmt.Sprint(before) != fmt.Sprint(after) {
		t.Errorf("an upgrade without a change has changed objects:\n%v\n%v", before, after)
	}
	drift(t, admin, rendered)

	run("upgrade", "fairlead", folder, "--values="+file, "--set=gateway.replicas=3")
	if set := live(t, admin, rendered["StatefulSet/gateway"]); text(at(set.Object, "spec.replicas")) != "3" {
		t.Errorf("there are %v gateways", at(set.Object, "spec.replicas"))
	}
	handOver(t, admin)
	run("upgrade", "fairlead", folder, "--values="+file, "--set=gateway.replicas=null")
	if set := live(t, admin, rendered["StatefulSet/gateway"]); text(at(set.Object, "spec.replicas")) != "3" {
		t.Errorf("after an upgrade without a number there are %v gateways", at(set.Object, "spec.replicas"))
	}
	rejectsSteps(t, connection, file)
	run("uninstall", "fairlead")
	for key, o := range rendered {
		got := o.DeepCopy()
		err := admin.Get(t.Context(), client.ObjectKeyFromObject(o), got)
		if kept := o.GetAnnotations()["helm.sh/resource-policy"] == "keep"; kept && err != nil {
			t.Errorf("%s: %v", key, err)
		} else if !kept && !apierrors.IsNotFound(err) {
			t.Errorf("%s is left after uninstall: %v", key, err)
		}
	}
	// The types and policies that were kept do not prevent another install.
	run("install", "fairlead", folder, "--values="+file)
	run("uninstall", "fairlead")
}

// rejectsSteps checks that an upgrade compares the number of gateways per tunnel with the present one.
func rejectsSteps(t *testing.T, connection, file string) {
	t.Helper()
	_, stderr, err := helm(
		t.Context(), t, "upgrade", "fairlead", folder, connection, "--namespace="+namespace, "--values="+file,
		"--set=gateway.replicas=5,gateway.perTunnel=0",
	)
	if err == nil || !strings.Contains(stderr, "would change from 3 to 0") {
		t.Errorf("an upgrade that leaves clients without a tunnel: %v: %s", err, stderr)
	}
}

// handOver does what docs/fleet.md says before an autoscaler sets the number of gateways.
func handOver(t *testing.T, admin client.Client) {
	t.Helper()
	data, err := os.ReadFile(root + "/docs/fleet.md")
	if err != nil {
		t.Fatal(err)
	}
	_, after, _ := strings.Cut(string(data), "--field-manager=autoscaler -f - <<EOF\n")
	manifest, _, ok := strings.Cut(after, "EOF\n")
	objects, err := kubetest.Decode([]byte(strings.Replace(manifest, "replicas: 2", "replicas: 3", 1)))
	if !ok || err != nil || len(objects) != 1 {
		t.Fatalf("docs/fleet.md has no command to hand over: %v", err)
	}
	set := client.ApplyConfigurationFromUnstructured(objects[0])
	if err := admin.Apply(t.Context(), set, client.FieldOwner("autoscaler"), client.ForceOwnership); err != nil {
		t.Fatal(err)
	}
}

// setCABundle does what the leading controller does.
func setCABundle(t *testing.T, admin client.Client) {
	t.Helper()
	hooks := &unstructured.Unstructured{}
	hooks.SetAPIVersion("admissionregistration.k8s.io/v1")
	hooks.SetKind("MutatingWebhookConfiguration")
	hooks.SetName("fairlead-kubeconfigs")
	patch := client.RawPatch(
		"application/strategic-merge-patch+json",
		[]byte(`{"webhooks": [{"name": "kubeconfigs.fairlead.dev", "clientConfig": {"caBundle": "Cg=="}}]}`),
	)
	if err := admin.Patch(t.Context(), hooks, patch, client.FieldOwner("controller")); err != nil {
		t.Fatal(err)
	}
}

// live returns an object as the apiserver has it.
func live(t *testing.T, admin client.Client, o *object) *object {
	t.Helper()
	got := o.DeepCopy()
	if err := admin.Get(t.Context(), client.ObjectKeyFromObject(o), got); err != nil {
		t.Fatalf("%s %s: %v", o.GetKind(), o.GetName(), err)
	}
	return got
}

// isHook reports whether an object is one that only `helm test` creates.
func isHook(o *object) bool { return o.GetAnnotations()["helm.sh/hook"] != "" }

// versions returns the resource versions of objects by their keys.
func versions(t *testing.T, admin client.Client, all objects) map[string]string {
	t.Helper()
	found := map[string]string{}
	for key, o := range all {
		if !isHook(o) && o.GetKind() != "CustomResourceDefinition" { // its status changes by itself
			found[key] = live(t, admin, o).GetResourceVersion()
		}
	}
	if len(found) < 30 {
		t.Fatalf("there are only %d objects", len(found))
	}
	return found
}

// drift compares each field of the chart's objects with the one that the apiserver has. Tools that compare them, such
// as Argo CD, report a difference forever if the apiserver writes a value in another way.
func drift(t *testing.T, admin client.Client, all objects) {
	t.Helper()
	for key, o := range all {
		if isHook(o) {
			continue
		}
		got := live(t, admin, o)
		for _, difference := range missing("", o.Object, got.Object) {
			t.Errorf("%s: %s", key, difference)
		}
	}
}

// missing returns the fields of want that have another value in got.
func missing(path string, want, got any) (all []string) {
	switch w := want.(type) {
	case map[string]any:
		g, _ := got.(map[string]any)
		for field, value := range w {
			all = append(all, missing(path+"."+field, value, g[field])...)
		}
	case []any:
		g, _ := got.([]any)
		if len(w) != len(g) {
			return []string{fmt.Sprintf("%s has %d items, want %d", path, len(g), len(w))}
		}
		for i := range w {
			all = append(all, missing(fmt.Sprintf("%s[%d]", path, i), w[i], g[i])...)
		}
	default:
		if text(want) != text(got) {
			return []string{fmt.Sprintf("%s is %s, want %s", path, text(got), text(want))}
		}
	}
	return all
}

// testErrorsOfAnInstall: a real cluster without Cluster API is refused at once, and nothing is created.
func testErrorsOfAnInstall(t *testing.T) {
	config := server.Config(t)
	connection := "--kubeconfig=" + kubeconfig(t, config)
	for set, want := range map[values]string{minimum: "clusterctl init", "{}": "--set tunnelDomain="} {
		_, stderr, err := helm(
			t.Context(), t, "install", "fairlead", folder, connection, "--namespace="+namespace, "--create-namespace",
			"--values="+set.write(t),
		)
		if err == nil || !strings.Contains(stderr, want) {
			t.Errorf("%v: %s", err, stderr)
		}
		if strings.Contains(strings.TrimSpace(stderr), "\n") {
			t.Errorf("the error has several lines: %s", stderr)
		}
	}
	admin, err := kubetest.NewClient(config)
	if err != nil {
		t.Fatal(err)
	}
	list := &unstructured.UnstructuredList{}
	list.SetAPIVersion("apps/v1")
	list.SetKind("DeploymentList")
	if err := admin.List(t.Context(), list); err != nil || len(list.Items) > 0 {
		t.Errorf("there are %d Deployments, %v", len(list.Items), err)
	}
}

// TestTheApiserverAcceptsEveryOption applies the objects of Kubernetes' own types with all options, and with each patch
// and list of values that has a form of its own. The apiserver rejects unknown fields.
func TestTheApiserverAcceptsEveryOption(t *testing.T) {
	admin, err := kubetest.NewClient(server.Config(t))
	if err != nil {
		t.Fatal(err)
	}
	ns := &unstructured.Unstructured{Object: map[string]any{"apiVersion": "v1", "kind": "Namespace"}}
	ns.SetName("options")
	if err := admin.Create(t.Context(), ns); err != nil {
		t.Fatal(err)
	}
	var all []values
	alone := []string{"gateway.netAdmin", "gateway.proxyProtocolFrom"} // they cannot be combined with all others
	for name, e := range effects {
		if !strings.HasPrefix(string(e.set), "extraObjects") && !slices.Contains(alone, name) {
			all = append(all, e.given, e.set)
		}
	}
	slices.Sort(all)
	for i, set := range [][]values{{everything}, slices.Compact(all), {effects[alone[0]].set, effects[alone[1]].set}} {
		for _, o := range inNamespace(t, ns.GetName(), set...) {
			if foreign(o) {
				continue
			}
			err := admin.Apply(
				t.Context(), client.ApplyConfigurationFromUnstructured(o), client.FieldOwner("test"), client.DryRunAll,
				client.ForceOwnership,
			)
			if err != nil {
				t.Errorf("values %d: %s %s: %v", i, o.GetKind(), o.GetName(), err)
			}
		}
	}
}

// inNamespace renders the chart for another namespace.
func inNamespace(t *testing.T, ns string, all ...values) objects {
	t.Helper()
	out, stderr, err := templateIn(t, ns, served, append([]values{minimum}, all...)...)
	if err != nil {
		t.Fatalf("%v: %s", err, stderr)
	}
	return decode(t, out)
}

// foreign reports whether the apiserver of the tests does not have the type of an object.
func foreign(o *object) bool {
	return slices.Contains([]string{
		"cert-manager.io", "monitoring.coreos.com", "gateway.networking.k8s.io", "runtime.cluster.x-k8s.io",
		"security.openshift.io",
	}, o.GroupVersionKind().Group)
}

// TestAnyNamespace: nothing refers to the namespace of the documents.
func TestAnyNamespace(t *testing.T) {
	for key, o := range inNamespace(t, "elsewhere", everything) {
		if strings.HasPrefix(key, "CustomResourceDefinition/") || strings.HasPrefix(key, "ConfigMap/fairlead-dashboard") {
			continue
		}
		for line := range strings.Lines(text(o.Object)) {
			if strings.Contains(line, namespace) && !strings.Contains(line, "for example") {
				t.Errorf("%s: %s", key, strings.TrimSpace(line))
			}
		}
	}
}

// testTakeOver: an installation by `kubectl apply -k` continues as a release.
func testTakeOver(t *testing.T) {
	connection := "--kubeconfig=" + kubeconfig(t, server.Config(t))
	out, err := exec.CommandContext(
		t.Context(), kubetest.Part(t, "kubectl"), connection, "apply", "--kustomize=../kubernetes",
	).CombinedOutput()
	if err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	for range 2 { // once for the ownership, and again as an ordinary upgrade
		_, stderr, err := helm(
			t.Context(), t, "upgrade", "--install", "fairlead", folder, connection, "--namespace="+namespace,
			"--set=tunnelDomain=tunnels.example.com,gateway.replicas=3", "--take-ownership",
			"--force-conflicts",
		)
		if err != nil {
			t.Fatalf("%v: %s", err, stderr)
		}
	}
}
