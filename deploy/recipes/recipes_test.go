// Package recipes_test keeps the recipes for providers other than kubeadm equal to the edges on kubeadm's machines,
// and checks each against a description of its provider's fields: see fields_test.go.
package recipes_test

import (
	"bytes"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/utils/ptr"
	bootstrapv1 "sigs.k8s.io/cluster-api/api/bootstrap/kubeadm/v1beta2"
	"sigs.k8s.io/yaml"

	"github.com/fairlead/fairlead/api/v1alpha1"
	"github.com/fairlead/fairlead/deploy/edge"
	"github.com/fairlead/fairlead/internal/golden"
	"github.com/fairlead/fairlead/pkg/capi/inject"
)

const rancherHead = `# Edges on the control-plane machines of %s: add this to the control plane. Dots in the name of a Cluster become two
# hyphens in the name below tlsSan. The Cluster itself needs
#
#   metadata:
#     labels: {fairlead.dev/tunnel: enabled}
#     annotations: {fairlead.dev/edges: control-plane}
#
# The placeholders are for clusterctl generate, or envsubst. Generated from pkg/capi/inject.
`

const talosHead = `# Edges on the control-plane machines of Talos, within the limits of its provider. Its configuration cannot refer to a
# Secret: put the content of bootstrap.yaml in here, for each Cluster; readers of the TalosControlPlane can read the
# token. It lets edges enrol until it ends (a day, or --token-lifetime of the controller): then put the current one in
# for later machines. Running machines do not need it. Talos has no users except root and a read-only disk except
# /var, so the edge runs as root without any capability. Talos' own API (port 50000) needs a tunnel of its own:
# docs/talos.md. Generated from pkg/capi/inject.
`

// injection is the configuration of kubeadm's machines.
type injection struct {
	Files []struct {
		Path        string         `json:"path"`
		Owner       string         `json:"owner"`
		Permissions string         `json:"permissions"`
		Content     string         `json:"content,omitempty"`
		ContentFrom map[string]any `json:"contentFrom,omitempty"`
	} `json:"files"`
	PreKubeadmCommands   []string `json:"preKubeadmCommands"`
	ClusterConfiguration struct {
		APIServer struct {
			CertSANs []string `json:"certSANs"`
		} `json:"apiServer"`
	} `json:"clusterConfiguration"`
}

func kubeadm(t *testing.T) injection {
	t.Helper()
	snippet, err := inject.Snippet()
	if err != nil {
		t.Fatal(err)
	}
	config, _, _ := unstructured.NestedMap(snippet, "spec", "kubeadmConfigSpec")
	text, err := yaml.Marshal(config)
	if err != nil {
		t.Fatal(err)
	}
	var i injection
	if err := yaml.UnmarshalStrict(text, &i); err != nil {
		t.Fatal(err)
	}
	return i
}

func object(version, kind string, spec map[string]any) map[string]any {
	return map[string]any{
		"apiVersion": version, "kind": kind, "spec": spec,
		"metadata": map[string]any{"name": "${CLUSTER_NAME}-control-plane", "namespace": "${NAMESPACE}"},
	}
}

// rancher is common to RKE2 and k3s: the fields have other names, and kubelet has another directory for its manifests.
func rancher(i injection, dir string) (files []any, commands, names []any) {
	for _, f := range i.Files {
		if f.Path == inject.ManifestPath {
			f.Path = "/var/lib/rancher/" + dir + "/agent/pod-manifests/" + filepath.Base(f.Path)
		}
		file := map[string]any{"path": f.Path, "owner": f.Owner, "permissions": f.Permissions}
		if f.Content != "" {
			file["content"] = f.Content
		} else {
			file["contentFrom"] = f.ContentFrom
		}
		files = append(files, file)
	}
	for _, c := range i.PreKubeadmCommands {
		commands = append(commands, c)
	}
	for _, n := range i.ClusterConfiguration.APIServer.CertSANs {
		names = append(names, n)
	}
	return files, commands, names
}

func rke2(i injection) map[string]any {
	files, commands, names := rancher(i, "rke2")
	return object("controlplane.cluster.x-k8s.io/v1beta2", "RKE2ControlPlane", map[string]any{
		"files": files, "preRKE2Commands": commands, "serverConfig": map[string]any{"tlsSan": names},
	})
}

func k3s(i injection) map[string]any {
	files, commands, names := rancher(i, "k3s")
	return object("controlplane.cluster.x-k8s.io/v1beta2", "KThreesControlPlane", map[string]any{
		"kthreesConfigSpec": map[string]any{
			"files":          files,
			"preK3sCommands": commands,
			"serverConfig":   map[string]any{"tlsSan": names},
		},
	})
}

// talos has its static Pods and files in patches of the machine configuration.
func talos(t *testing.T, i injection) map[string]any {
	t.Helper()
	pod := &corev1.Pod{}
	if err := yaml.UnmarshalStrict([]byte(edge.StaticPod), pod); err != nil {
		t.Fatal(err)
	}
	container := &pod.Spec.Containers[0]
	container.Image = "${FAIRLEAD_EDGE_IMAGE}"
	// The files that Talos writes belong to root, and Talos cannot change their owner.
	pod.Spec.SecurityContext = &corev1.PodSecurityContext{
		RunAsUser:      ptr.To[int64](0),
		RunAsGroup:     ptr.To[int64](0),
		SeccompProfile: pod.Spec.SecurityContext.SeccompProfile,
	}
	for v := range pod.Spec.Volumes {
		switch path := pod.Spec.Volumes[v].HostPath; {
		case path == nil:
		case path.Path == "/etc/fairlead":
			path.Path = "/var/lib/fairlead-bootstrap"
		default:
			path.Type = ptr.To(corev1.HostPathDirectoryOrCreate)
		}
	}
	text, err := yaml.Marshal(pod)
	if err != nil {
		t.Fatal(err)
	}
	var fields map[string]any
	if err := yaml.Unmarshal(text, &fields); err != nil {
		t.Fatal(err)
	}
	delete(fields, "status")
	var patches []any
	apiServer := map[string]any{"certSANs": i.ClusterConfiguration.APIServer.CertSANs}
	for _, patch := range []any{
		map[string]any{"cluster": map[string]any{"apiServer": apiServer}},
		map[string]any{"machine": map[string]any{"files": []any{map[string]any{
			"path": "/var/lib/fairlead-bootstrap/bootstrap.yaml", "op": "create", "permissions": 0o600,
			"content": "# the Cluster's bootstrap.yaml\n",
		}}}},
		map[string]any{"machine": map[string]any{"pods": []any{fields}}},
	} {
		text, err := yaml.Marshal(patch)
		if err != nil {
			t.Fatal(err)
		}
		patches = append(patches, strings.ReplaceAll(string(text), "permissions: 384", "permissions: 0o600"))
	}
	return object("controlplane.cluster.x-k8s.io/v1beta1", "TalosControlPlane", map[string]any{
		"controlPlaneConfig": map[string]any{
			"controlplane": map[string]any{"generateType": "controlplane", "strategicPatches": patches},
		},
	})
}

func TestRecipesMatchTheCode(t *testing.T) {
	i := kubeadm(t)
	for file, recipe := range map[string]struct {
		head string
		body map[string]any
	}{
		"rke2.yaml":  {strings.Replace(rancherHead, "%s", "RKE2", 1), rke2(i)},
		"k3s.yaml":   {strings.Replace(rancherHead, "%s", "k3s", 1), k3s(i)},
		"talos.yaml": {talosHead, talos(t, i)},
	} {
		body, err := yaml.Marshal(recipe.body)
		if err != nil {
			t.Fatal(err)
		}
		golden.CheckFile(t, file, append([]byte(recipe.head), body...))
	}
}

// TestManifestsArePods: kubelet reports no error for a static Pod that it cannot parse.
func TestManifestsArePods(t *testing.T) {
	var want corev1.Pod
	if err := yaml.UnmarshalStrict([]byte(edge.StaticPod), &want); err != nil {
		t.Fatal(err)
	}
	want.Spec.Containers[0].Image = "${FAIRLEAD_EDGE_IMAGE}"
	i := kubeadm(t)
	for _, dir := range []string{"rke2", "k3s"} {
		files, _, _ := rancher(i, dir)
		at := slices.IndexFunc(files, func(f any) bool { return f.(map[string]any)["content"] != nil })
		var got corev1.Pod
		if err := yaml.UnmarshalStrict([]byte(files[at].(map[string]any)["content"].(string)), &got); err != nil {
			t.Fatal(err)
		}
		if diff := cmp.Diff(want, got); diff != "" {
			t.Errorf("%s: %s", dir, diff)
		}
	}
	var got struct {
		Machine struct {
			Pods []corev1.Pod `json:"pods"`
		} `json:"machine"`
	}
	patches, _, _ := unstructured.NestedSlice(
		talos(t, i), "spec", "controlPlaneConfig", "controlplane", "strategicPatches",
	)
	if err := yaml.UnmarshalStrict([]byte(patches[2].(string)), &got); err != nil || len(got.Machine.Pods) != 1 {
		t.Fatalf("%d Pods, %v", len(got.Machine.Pods), err)
	}
	pod := got.Machine.Pods[0].Spec
	if c := pod.Containers[0].SecurityContext; ptr.Deref(c.AllowPrivilegeEscalation, true) ||
		!slices.Equal(c.Capabilities.Drop, []corev1.Capability{"ALL"}) ||
		!ptr.Deref(c.ReadOnlyRootFilesystem, false) {
		t.Errorf("root may do more than it has to: %v", c)
	}
	for _, v := range pod.Volumes {
		if v.HostPath != nil && !strings.HasPrefix(v.HostPath.Path, "/var/") {
			t.Errorf("Talos has no %s that could be written", v.HostPath.Path)
		}
	}
}

// TestHostedEdgeIsTheDeployment compares everything except arguments, image, names of Secrets, the spread over zones,
// tolerations, the token of the ServiceAccount, which is not one of the workload cluster there, and the volume of the
// state: deploy/edge tests the Deployment.
func TestHostedEdgeIsTheDeployment(t *testing.T) {
	deployment, hosted := documents(t, "../edge/deployment.yaml"), documents(t, "hosted.yaml")
	want, got := deployment[3], hosted[2]
	for _, o := range []map[string]any{want, got} {
		delete(o, "apiVersion")
		delete(o, "kind")
		pod := podOf(o)
		container := pod["containers"].([]any)[0].(map[string]any)
		delete(container, "args")
		delete(container, "image")
		delete(pod, "topologySpreadConstraints")
		delete(pod, "serviceAccountName")
		isToken := func(v any) bool { return v.(map[string]any)["name"] == "token" }
		pod["volumes"] = slices.DeleteFunc(pod["volumes"].([]any), isToken)
		container["volumeMounts"] = slices.DeleteFunc(container["volumeMounts"].([]any), isToken)
		delete(pod, "tolerations")
		for _, v := range pod["volumes"].([]any) {
			if secret, ok := v.(map[string]any)["secret"].(map[string]any); ok {
				delete(secret, "secretName")
			}
		}
	}
	isState := func(v any) bool { return v.(map[string]any)["name"] == "state" }
	podOf(want)["volumes"] = slices.DeleteFunc(podOf(want)["volumes"].([]any), isState)
	for _, field := range []string{"serviceName", "podManagementPolicy", "volumeClaimTemplates"} {
		delete(got["spec"].(map[string]any), field)
	}
	delete(podOf(got)["securityContext"].(map[string]any), "fsGroupChangePolicy")
	if diff := cmp.Diff(want, got); diff != "" {
		t.Error(diff)
	}
	if diff := cmp.Diff(deployment[1], hosted[3]); diff != "" {
		t.Errorf("the disruption budget differs: %s", diff)
	}
}

func podOf(o map[string]any) map[string]any {
	return o["spec"].(map[string]any)["template"].(map[string]any)["spec"].(map[string]any)
}

// TestTheStateOfAHostedEdgeOutlivesItsPod: without state a Pod enrols with the tokens of the bootstrap files, which end
// after a day.
func TestTheStateOfAHostedEdgeOutlivesItsPod(t *testing.T) {
	var set appsv1.StatefulSet
	err := runtime.DefaultUnstructuredConverter.FromUnstructuredWithValidation(documents(t, "hosted.yaml")[2], &set, true)
	if err != nil {
		t.Fatal(err)
	}
	pod := set.Spec.Template.Spec
	at := slices.IndexFunc(pod.Containers[0].VolumeMounts, func(m corev1.VolumeMount) bool {
		return slices.Contains(pod.Containers[0].Args, "--state-dir="+m.MountPath+"/edge")
	})
	if at < 0 {
		t.Fatalf("the state is on no volume: %v", pod.Containers[0].Args)
	}
	claim := slices.IndexFunc(set.Spec.VolumeClaimTemplates, func(c corev1.PersistentVolumeClaim) bool {
		return c.Name == pod.Containers[0].VolumeMounts[at].Name
	})
	if claim < 0 {
		t.Fatalf("the volume %s ends with the Pod", pod.Containers[0].VolumeMounts[at].Name)
	}
	if r := set.Spec.PersistentVolumeClaimRetentionPolicy; r != nil {
		t.Errorf("volumes are deleted: %v", r)
	}
	// Otherwise each mount changes the modes of all files.
	if p := ptr.Deref(pod.SecurityContext.FSGroupChangePolicy, ""); p != corev1.FSGroupChangeOnRootMismatch {
		t.Errorf("a mount lets the group read the keys: fsGroupChangePolicy %q", p)
	}
}

// TestTheTemplateOfWorkersHasNoToken: it makes machines for months, and a token is valid for a day. The unit of the
// edge reads the files that it brings.
func TestTheTemplateOfWorkersHasNoToken(t *testing.T) {
	page, err := os.ReadFile("../../docs/hosted-control-planes.md")
	if err != nil {
		t.Fatal(err)
	}
	if !bytes.Contains(page, []byte("raise `--token-uses`")) {
		t.Error("it does not tell how many machines have the same token")
	}
	var template bootstrapv1.KubeadmConfigTemplate
	for _, block := range regexp.MustCompile("(?ms)^```yaml\n(.*?)^```").FindAllSubmatch(page, -1) {
		if bytes.Contains(block[1], []byte("kind: KubeadmConfigTemplate\n")) {
			if err := yaml.UnmarshalStrict(block[1], &template); err != nil {
				t.Fatal(err)
			}
		}
	}
	spec := template.Spec.Template.Spec
	if template.APIVersion != bootstrapv1.GroupVersion.String() || len(spec.Files) != 2 {
		t.Fatalf("the template is of %q, with %d files", template.APIVersion, len(spec.Files))
	}
	bootstrap, join := spec.Files[0], spec.Files[1]
	want := bootstrapv1.SecretFileSource{
		Name: "oslo" + v1alpha1.NetworkTunnelSuffix + v1alpha1.BootstrapSecretSuffix, Key: v1alpha1.BootstrapFileKey,
	}
	if bootstrap.ContentFrom.Secret != want || bootstrap.Content != "" || bootstrap.Permissions != "0600" {
		t.Errorf("the credential is %+v", bootstrap)
	}
	if !strings.HasPrefix(join.Content, "JOIN_FLAGS=--apiserver-listen=") || strings.Contains(join.Content, "token") {
		t.Errorf("the flags are %q", join.Content)
	}
	for _, line := range []string{
		" --bootstrap=" + bootstrap.Path + " ", "\nEnvironmentFile=-" + join.Path + "\n", " $JOIN_FLAGS ",
		"\nUser=fairlead\n",
	} {
		if !strings.Contains(edge.AgentUnit, line) {
			t.Errorf("edge-agent.service has no %q", line)
		}
	}
	commands := strings.Join(spec.PreKubeadmCommands, "\n")
	for _, command := range []string{"chown fairlead " + bootstrap.Path, "systemctl enable --now edge-agent"} {
		if !slices.Contains(spec.PreKubeadmCommands, command) {
			t.Errorf("no command is %q", command)
		}
	}
	if strings.Contains(commands, "network join") || strings.Contains(commands, "ssh ") {
		t.Errorf("the commands are not for the machine itself:\n%s", commands)
	}
}

func documents(t *testing.T, file string) []map[string]any {
	t.Helper()
	data, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	var all []map[string]any
	for document := range bytes.SplitSeq(data, []byte("\n---\n")) {
		var fields map[string]any
		if err := yaml.Unmarshal(document, &fields); err != nil {
			t.Fatalf("%s: %v", file, err)
		}
		all = append(all, fields)
	}
	return all
}
