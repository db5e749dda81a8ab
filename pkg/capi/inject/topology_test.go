package inject

import (
	"encoding/json"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	bootstrapv1 "sigs.k8s.io/cluster-api/api/bootstrap/kubeadm/v1beta2"
	"sigs.k8s.io/yaml"

	"github.com/fairlead/fairlead/deploy/edge"
	"github.com/fairlead/fairlead/pkg/model"
)

var good = Options{
	Cluster: model.Key{Namespace: "prod", Name: "a.b"},
	Domain:  "tunnels.example.com",
	Image:   "registry.example.com:5000/fairlead-edge:v1",
}

const goodHostname = "a--b.prod.tunnels.example.com"

// full returns a configuration with items in every list that Inject adds to.
func full() bootstrapv1.KubeadmConfigSpec {
	return bootstrapv1.KubeadmConfigSpec{
		ClusterConfiguration: bootstrapv1.ClusterConfiguration{
			APIServer: bootstrapv1.APIServer{CertSANs: []string{"localhost"}},
		},
		Files:              []bootstrapv1.File{{Path: "/etc/motd", Content: "hello"}},
		PreKubeadmCommands: []string{"true"},
		JoinConfiguration:  bootstrapv1.JoinConfiguration{NodeRegistration: bootstrapv1.NodeRegistrationOptions{Name: "x"}},
	}
}

func TestInjectAddsAndKeeps(t *testing.T) {
	tests := map[string]struct{ before bootstrapv1.KubeadmConfigSpec }{
		"an empty configuration": {},
		"one with lists":         {full()},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			got := *tc.before.DeepCopy()
			if err := Inject(&got, good); err != nil {
				t.Fatal(err)
			}
			want := *tc.before.DeepCopy()
			sans := &want.ClusterConfiguration.APIServer.CertSANs
			*sans = append(*sans, goodHostname)
			want.PreKubeadmCommands = append(want.PreKubeadmCommands, prepareCommand)
			want.Files = append(
				want.Files,
				bootstrapv1.File{
					Path: "/etc/fairlead/bootstrap.yaml", Owner: "root:root", Permissions: "0600",
					ContentFrom: bootstrapv1.FileSource{
						Secret: bootstrapv1.SecretFileSource{Name: "a.b-edge-bootstrap", Key: "bootstrap.yaml"},
					},
				},
				bootstrapv1.File{
					Path:        "/etc/kubernetes/manifests/fairlead-edge.yaml",
					Owner:       "root:root",
					Permissions: "0644",
					Content:     got.Files[len(got.Files)-1].Content,
				},
			)
			if diff := cmp.Diff(want, got); diff != "" {
				t.Error(diff)
			}
			again := *got.DeepCopy()
			if err := Inject(&again, good); err != nil {
				t.Fatal(err)
			}
			if diff := cmp.Diff(got, again); diff != "" {
				t.Errorf("a second time something is added: %s", diff)
			}
		})
	}
}

// TestManifestIsTheOneInDeploy: the tests of deploy/edge cover it in every respect except the values that differ here.
func TestManifestIsTheOneInDeploy(t *testing.T) {
	o := good
	o.APIServerPort = 8443
	v, err := o.values()
	if err != nil {
		t.Fatal(err)
	}
	var want, got corev1.Pod
	if err := yaml.UnmarshalStrict([]byte(edge.StaticPod), &want); err != nil {
		t.Fatal(err)
	}
	if err := yaml.UnmarshalStrict([]byte(v.manifest()), &got); err != nil {
		t.Fatal(err)
	}
	container := &want.Spec.Containers[0]
	container.Image = o.Image
	for i, argument := range container.Args {
		container.Args[i] = strings.Replace(
			argument, "--local-apiserver=127.0.0.1:6443", "--local-apiserver=127.0.0.1:8443", 1,
		)
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Error(diff)
	}
	if text := v.manifest(); !strings.Contains(text, "=127.0.0.1:8443\n") || len(text) > 10240 ||
		strings.HasPrefix(text, "#") {
		t.Errorf("%d characters: %s", len(text), text)
	}
	mounted := map[string]bool{}
	for _, volume := range got.Spec.Volumes {
		if volume.HostPath != nil {
			mounted[volume.HostPath.Path] = true
		}
	}
	if !mounted["/etc/fairlead"] || !mounted["/var/lib/fairlead"] {
		t.Errorf("the Pod mounts %v, which prepareCommand does not make", mounted)
	}
}

func TestReplacesAnEarlierManifest(t *testing.T) {
	spec := full()
	if err := Inject(&spec, good); err != nil {
		t.Fatal(err)
	}
	newer := good
	newer.Image = "fairlead-edge:v2"
	want := full()
	if err := Inject(&want, newer); err != nil {
		t.Fatal(err)
	}
	if err := Inject(&spec, newer); err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(want, spec); diff != "" {
		t.Error(diff)
	}
}

func TestInvalidOptionsAreRejected(t *testing.T) {
	tests := map[string]struct {
		change  func(*Options)
		wantErr string
	}{
		"a name that makes no hostname":  {func(o *Options) { o.Cluster.Name = strings.Repeat("a", 64) }, "metadata.name"},
		"no tunnel domain":               {func(o *Options) { o.Domain = "" }, "tunnel domain"},
		"no image":                       {func(o *Options) { o.Image = "" }, "image"},
		"an image that is more than one": {func(o *Options) { o.Image = "a\n      command: [sh]" }, "not an image reference"},
		"a port that is none":            {func(o *Options) { o.APIServerPort = 65536 }, "apiServerPort"},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			o := good
			tc.change(&o)
			spec, before := full(), full()
			if err := Inject(&spec, o); err == nil || !strings.Contains(err.Error(), tc.wantErr) {
				t.Errorf("error %v, want one with %q", err, tc.wantErr)
			}
			if diff := cmp.Diff(before, spec); diff != "" {
				t.Errorf("it was changed all the same: %s", diff)
			}
		})
	}
}

func TestFieldsOfAnotherKind(t *testing.T) {
	for _, text := range []string{`{"files":"none"}`, `{"clusterConfiguration":[]}`, `{"preKubeadmCommands":{}}`} {
		if err := Fields(fields(t, text), good); err == nil || !strings.Contains(err.Error(), "kubeadmConfigSpec") {
			t.Errorf("%s: %v", text, err)
		}
	}
}

func TestCheck(t *testing.T) {
	injected := func(change func(map[string]any)) map[string]any {
		config := fields(t, `{"files":[{"path":"/etc/motd","content":"hello"}]}`)
		if err := Fields(config, good); err != nil {
			t.Fatal(err)
		}
		change(config)
		return config
	}
	port := func(n any) func(map[string]any) {
		return func(c map[string]any) {
			c["initConfiguration"] = map[string]any{"localAPIEndpoint": map[string]any{"bindPort": n}}
		}
	}
	tests := map[string]struct {
		config  map[string]any
		wantErr string
	}{
		"all is there":  {injected(func(map[string]any) {}), ""},
		"the same port": {injected(port(int64(6443))), ""},
		"another port":  {injected(port(float64(7443))), "bindPort"},
		"files were replaced": {
			injected(func(c map[string]any) { delete(c, "files") }),
			"files of kubeadmConfigSpec lacks",
		},
		"commands were replaced": {
			injected(func(c map[string]any) { c["preKubeadmCommands"] = []any{"true"} }),
			"preKubeadmCommands of",
		},
		"certSANs were replaced": {
			injected(func(c map[string]any) { c["clusterConfiguration"] = map[string]any{} }),
			"certSANs of",
		},
		"the manifest was changed": {
			injected(func(c map[string]any) { c["files"].([]any)[2].(map[string]any)["content"] = "x" }),
			"files of",
		},
		"the template has none of it":       {map[string]any{}, "files of"},
		"the template has no configuration": {nil, "files of"},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			err := Check(tc.config, good)
			if (tc.wantErr == "") != (err == nil) || (err != nil && !strings.Contains(err.Error(), tc.wantErr)) {
				t.Errorf("error %v, want one with %q", err, tc.wantErr)
			}
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

// TestLimitsOfClusterClass checks limits that a ClusterClass has and the types do not.
func TestLimitsOfClusterClass(t *testing.T) {
	patches, err := Patches()
	if err != nil {
		t.Fatal(err)
	}
	for _, p := range append(ListPatches(), patches...) {
		if len(p.EnabledIf) > 256 {
			t.Errorf("%s: enabledIf has %d characters", p.Name, len(p.EnabledIf))
		}
		for _, d := range p.Definitions {
			for _, o := range d.JSONPatches {
				if o.ValueFrom != nil && len(o.ValueFrom.Template) > 10240 {
					t.Errorf("%s: a template has %d characters", p.Name, len(o.ValueFrom.Template))
				}
			}
		}
	}
}
