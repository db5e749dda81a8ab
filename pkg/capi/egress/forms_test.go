package egress

import (
	"bytes"
	"encoding/json"
	"flag"
	"fmt"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/util/strategicpatch"
	bootstrapv1 "sigs.k8s.io/cluster-api/api/bootstrap/kubeadm/v1beta2"
	controlplanev1 "sigs.k8s.io/cluster-api/api/controlplane/kubeadm/v1beta2"
	"sigs.k8s.io/yaml"

	"github.com/fairlead/fairlead/internal/golden"
	"github.com/fairlead/fairlead/internal/kubetest"
)

// write makes TestTheTypesOfProviders read whole CRDs from a folder and write the excerpts that it checks.
var write = flag.String("write-types", "", "folder with the CRDs of providers; writes their excerpts into testdata")

func TestFormsGolden(t *testing.T) {
	plain := &Gateway{
		URL: "https://gateway.tunnels.example.com:443", CABundle: "/etc/kubernetes/fairlead-egress/ca.pem",
		ClientKey: "/etc/kubernetes/fairlead-egress/key.pem", Leaf: "/etc/kubernetes/fairlead-egress/leaf.pem",
	}
	for name, text := range map[string][]byte{
		"kamaji": Kamaji(params), "kubeadm": Kubeadm(params), "k0smotron": K0smotron(params), "files": Files(params, plain),
	} {
		golden.CheckFile(t, filepath.Join("testdata", name+".yaml"), text)
	}
}

// parts returns the documents of a form, by kind.
func parts(t *testing.T, text []byte) map[string]map[string]any {
	t.Helper()
	all := map[string]map[string]any{}
	for _, document := range bytes.Split(text, []byte("\n---\n")) {
		var part map[string]any
		if err := yaml.UnmarshalStrict(document, &part); err != nil {
			t.Fatal(err)
		}
		all[part["kind"].(string)] = part
	}
	return all
}

// TestKubeadmControlPlane decodes the form strictly into the type of Cluster API. The real kubeadm then makes the
// static Pod of kube-apiserver from it.
func TestKubeadmControlPlane(t *testing.T) {
	var object controlplanev1.KubeadmControlPlane
	if err := yaml.UnmarshalStrict(Kubeadm(params), &object); err != nil {
		t.Fatal(err)
	}
	spec := object.Spec.KubeadmConfigSpec
	if spec.InitConfiguration.Patches.Directory != patchesDir || spec.JoinConfiguration.Patches.Directory != patchesDir {
		t.Error("kubeadm does not read the patches")
	}
	i := slices.IndexFunc(spec.Files, func(f bootstrapv1.File) bool { return filepath.Base(f.Path) == patchFile })
	dir, made := t.TempDir(), t.TempDir()
	save := func(name string, data []byte) string {
		t.Helper()
		path := filepath.Join(dir, name)
		if err := os.WriteFile(path, data, 0o600); err != nil {
			t.Fatal(err)
		}
		return path
	}
	save(patchFile, []byte(spec.Files[i].Content))
	config := save("config", append(append(document(map[string]any{
		"apiVersion": "kubeadm.k8s.io/v1beta4", "kind": "ClusterConfiguration", "kubernetesVersion": kubernetesVersion,
		"apiServer": map[string]any{
			"extraArgs": spec.ClusterConfiguration.APIServer.ExtraArgs, "extraVolumes": spec.ClusterConfiguration.APIServer.
					ExtraVolumes,
		},
	}), "---\n"...), document(map[string]any{
		"apiVersion": "kubeadm.k8s.io/v1beta4", "kind": "InitConfiguration", "patches": map[string]any{"directory": dir},
		"localAPIEndpoint": map[string]any{"advertiseAddress": "192.0.2.1"},
	})...))
	cmd := exec.CommandContext(
		t.Context(), kubetest.Part(t, "kubeadm"), "init", "phase", "control-plane", "apiserver", "--dry-run",
		"--config="+config,
	)
	cmd.Env = append(os.Environ(), "KUBEADM_INIT_DRYRUN_DIR="+made)
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	data, err := os.ReadFile(filepath.Join(made, "kube-apiserver.yaml"))
	if err != nil {
		t.Fatal(err)
	}
	var pod corev1.Pod
	if err := yaml.UnmarshalStrict(data, &pod); err != nil {
		t.Fatal(err)
	}
	checkPod(t, pod.Spec, "kube-apiserver", "ca-certs")
	command := strings.Join(pod.Spec.Containers[0].Command, " ")
	for _, argument := range params.arguments() {
		if !strings.Contains(command, argument) {
			t.Errorf("kube-apiserver runs without %s", argument)
		}
	}
	if !pod.Spec.HostNetwork {
		t.Error("the sidecar's health port is not on the loopback interface of the machine")
	}
}

// kubernetesVersion is a version that the real kubeadm accepts.
const kubernetesVersion = "v1.37.1"

// checkPod checks that an apiserver and its sidecar have the socket in common, and nothing else.
func checkPod(t *testing.T, pod corev1.PodSpec, apiserver, own string) {
	t.Helper()
	volumes := map[string]bool{}
	for _, v := range pod.Volumes {
		volumes[v.Name] = true
	}
	mounts := map[string]map[string]string{} // path by volume, by container
	for _, c := range pod.Containers {
		mounts[c.Name] = map[string]string{}
		for _, m := range c.VolumeMounts {
			mounts[c.Name][m.Name] = m.MountPath
			if !volumes[m.Name] {
				t.Errorf("%s mounts %s, which is no volume", c.Name, m.Name)
			}
		}
	}
	if mounts[apiserver][own] == "" && own != "" {
		t.Errorf("kube-apiserver has lost its own mounts: %v", mounts[apiserver])
	}
	shared := slices.DeleteFunc(slices.Collect(maps.Keys(mounts[apiserver])), func(v string) bool {
		return mounts[sidecarName][v] == ""
	})
	if !slices.Equal(shared, []string{socketVolume}) || mounts[apiserver][socketVolume] != filepath.Dir(Socket) ||
		mounts[sidecarName][socketVolume] != filepath.Dir(Socket) {
		t.Errorf("kube-apiserver and its sidecar share %v: %v", shared, mounts)
	}
}

// TestHostedControlPlanes merges the forms of hosted control planes into Pods as their controllers do.
func TestHostedControlPlanes(t *testing.T) {
	decode := func(from, into any) {
		t.Helper()
		data, err := json.Marshal(from)
		if err == nil {
			err = yaml.UnmarshalStrict(data, into)
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	var capi struct {
		APIServer struct {
			ExtraArgs         []string
			ExtraVolumeMounts []corev1.VolumeMount
		}
		Kubelet    any
		Deployment struct {
			ExtraContainers []corev1.Container
			ExtraVolumes    []corev1.Volume
		}
	}
	decode(parts(t, Kamaji(params))["KamajiControlPlane"]["spec"], &capi)
	checkPod(t, corev1.PodSpec{
		Containers: append(
			capi.Deployment.ExtraContainers,
			corev1.Container{Name: "kube-apiserver", VolumeMounts: capi.APIServer.ExtraVolumeMounts},
		),
		Volumes: capi.Deployment.ExtraVolumes,
	}, "kube-apiserver", "")
	for _, arg := range capi.APIServer.ExtraArgs {
		if strings.HasPrefix(arg, "--kubelet-preferred-address-types") {
			t.Error("Kamaji drops a flag that it sets itself")
		}
	}

	var k0smotron struct {
		Patches []struct{ Patch struct{ Content string } }
	}
	spec := parts(t, K0smotron(params))["K0smotronControlPlane"]["spec"].(map[string]any)
	data, err := json.Marshal(spec)
	if err != nil {
		t.Fatal(err)
	}
	if err := json.Unmarshal(data, &k0smotron); err != nil {
		t.Fatal(err)
	}
	patch, err := yaml.YAMLToJSONStrict([]byte(k0smotron.Patches[0].Patch.Content))
	if err != nil {
		t.Fatal(err)
	}
	before := []byte(`{"spec":{"template":{"spec":{"containers":[
		{"name":"controller","volumeMounts":[{"name":"own","mountPath":"/own"}]}],"volumes":[{"name":"own"}]}}}}`)
	after, err := strategicpatch.StrategicMergePatch(before, patch, appsv1.StatefulSet{})
	if err != nil {
		t.Fatal(err)
	}
	var set appsv1.StatefulSet
	if err := json.Unmarshal(after, &set); err != nil {
		t.Fatal(err)
	}
	checkPod(t, set.Spec.Template.Spec, "controller", "own")
}

// TestTheTypesOfProviders checks each form by the schema of the provider's CRD: every field exists and has that type.
// The API server of a management cluster rejects or drops any other field. The excerpts in testdata/types are from
// clastix/kamaji at ddbabd87, clastix/cluster-api-control-plane-provider-kamaji at b26279a4 and k0sproject/k0smotron at
// 3897bbe6; the flag write-types checks the forms by whole CRDs and writes them.
func TestTheTypesOfProviders(t *testing.T) {
	for _, tc := range []struct {
		crd, version string
		form         map[string]any
	}{
		{"kamajicontrolplanes", "v1alpha2", parts(t, Kamaji(params))["KamajiControlPlane"]},
		{"tenantcontrolplanes", "v1alpha1", parts(t, Kamaji(params))["TenantControlPlane"]},
		{"k0smotroncontrolplanes", "v1beta2", parts(t, K0smotron(params))["K0smotronControlPlane"]},
	} {
		path := filepath.Join("testdata", "types", tc.crd+".json")
		if *write != "" {
			excerpt(t, filepath.Join(*write, tc.crd+".yaml"), tc.version, tc.form["spec"], path)
		}
		data, err := os.ReadFile(path)
		if err != nil {
			t.Fatal(err)
		}
		var s schema
		if err := json.Unmarshal(data, &s); err != nil {
			t.Fatal(err)
		}
		for _, problem := range s.check("spec", tc.form["spec"]) {
			t.Errorf("%s: %s", tc.crd, problem)
		}
		// The check finds a field that does not exist, and one of another type.
		spec := tc.form["spec"].(map[string]any)
		wrong := maps.Clone(spec)
		wrong["fairleadEgress"] = true
		for field := range spec {
			if s.Properties[field].Type == "object" && !s.Properties[field].Open {
				wrong[field] = "text"
			}
		}
		if len(s.check("spec", wrong)) < 2 && tc.crd != "k0smotroncontrolplanes" || len(s.check("spec", wrong)) == 0 {
			t.Errorf("%s: unknown fields are accepted", tc.crd)
		}
	}
}

// schema is the part of an OpenAPI schema that TestTheTypesOfProviders needs.
type schema struct {
	Type       string             `json:"type,omitempty"`
	Properties map[string]*schema `json:"properties,omitempty"`
	Items      *schema            `json:"items,omitempty"`
	Additional *schema            `json:"additionalProperties,omitempty"`
	Enum       []any              `json:"enum,omitempty"`
	Open       bool               `json:"x-kubernetes-preserve-unknown-fields,omitempty"`
	IntString  bool               `json:"x-kubernetes-int-or-string,omitempty"`
}

// check returns the problems of a value.
func (s *schema) check(at string, value any) (problems []string) {
	wrong := func() []string { return []string{fmt.Sprintf("%s: a %T is not of type %s", at, value, s.Type)} }
	switch v := value.(type) {
	case map[string]any:
		if s.Type != "object" && !s.Open {
			return wrong()
		}
		for _, name := range slices.Sorted(maps.Keys(v)) {
			inner := s.Properties[name]
			if inner == nil {
				inner = s.Additional
			}
			if inner != nil {
				problems = append(problems, inner.check(at+"."+name, v[name])...)
			} else if !s.Open {
				problems = append(problems, at+"."+name+" does not exist")
			}
		}
	case []any:
		if s.Type != "array" {
			return wrong()
		}
		for i, item := range v {
			problems = append(problems, s.Items.check(fmt.Sprintf("%s[%d]", at, i), item)...)
		}
	case string:
		if s.Type != "string" && !s.IntString || len(s.Enum) > 0 && !slices.Contains(s.Enum, any(v)) {
			return wrong()
		}
	case bool:
		if s.Type != "boolean" {
			return wrong()
		}
	case float64, int64:
		if s.Type != "integer" && s.Type != "number" && !s.IntString {
			return wrong()
		}
	}
	return problems
}

// excerpt writes the part of a CRD's schema that a form uses.
func excerpt(t *testing.T, crd, version string, form any, to string) {
	t.Helper()
	data, err := os.ReadFile(crd)
	if err != nil {
		t.Fatal(err)
	}
	var definition struct {
		Spec struct {
			Versions []struct {
				Name   string
				Schema struct{ OpenAPIV3Schema *schema }
			}
		}
	}
	if err := yaml.Unmarshal(data, &definition); err != nil {
		t.Fatal(err)
	}
	for _, v := range definition.Spec.Versions {
		if v.Name != version {
			continue
		}
		whole := v.Schema.OpenAPIV3Schema.Properties["spec"]
		for _, problem := range whole.check("spec", form) {
			t.Errorf("%s: %s", crd, problem)
		}
		used, err := json.MarshalIndent(whole.used(form), "", " ")
		if err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(to, append(used, '\n'), 0o600); err != nil {
			t.Fatal(err)
		}
	}
}

// used returns the part of a schema that a value uses.
func (s *schema) used(value any) *schema {
	if s == nil {
		return nil
	}
	out := *s
	out.Properties = map[string]*schema{}
	switch v := value.(type) {
	case map[string]any:
		for name, inner := range v {
			if p := s.Properties[name]; p != nil {
				out.Properties[name] = p.used(inner)
			}
		}
	case []any:
		for _, item := range v {
			next := s.Items.used(item)
			if out.Items != s.Items {
				maps.Copy(next.Properties, out.Items.Properties)
			}
			out.Items = next
		}
	}
	return &out
}

// TestNoFormHasAToken: all refer to the Secret.
func TestNoFormHasAToken(t *testing.T) {
	for _, text := range [][]byte{Kamaji(params), Kubeadm(params), K0smotron(params), Files(params, nil)} {
		if !strings.Contains(string(text), "c1.egress-edge-bootstrap") || strings.Contains(string(text), "fl1.") {
			t.Errorf("it is %s", text)
		}
	}
}
