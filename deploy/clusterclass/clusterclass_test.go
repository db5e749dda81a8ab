// Package clusterclass_test checks the files of this directory against pkg/capi/inject, and proves with a real Cluster
// API that a control plane made from them has everything that its edges need.
package clusterclass_test

import (
	"bytes"
	"os"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"
	"sigs.k8s.io/yaml"

	"github.com/fairlead/fairlead/internal/golden"
	"github.com/fairlead/fairlead/pkg/capi/inject"
)

// defaults are those of an installation, as in the files.
var defaults = inject.Variable{
	TunnelDomain:  "tunnels.example.com",
	Image:         "registry.example.com/fairlead/fairlead-edge:v0.1.0",
	APIServerPort: inject.DefaultAPIServerPort,
}

// part is the part of a ClusterClass that is generated.
type part struct {
	Variables []clusterv1.ClusterClassVariable `json:"variables,omitempty"`
	Patches   []clusterv1.ClusterClassPatch    `json:"patches"`
}

const patchesHead = `# Edges on the control-plane machines of every Cluster of a ClusterClass. Add both lists to those in its spec, and
# write your tunnel domain and your image of the edge into the defaults.
#
# The patches add to lists of your KubeadmControlPlaneTemplate. If it lacks one of them, put the patch for that list
# from lists.yaml before these. A Cluster gets its edges with
#
#   metadata:
#     labels: {fairlead.dev/tunnel: enabled}
#     annotations: {fairlead.dev/edges: control-plane}
#
# and a Cluster without these is not changed. If your ClusterClass refers to version v1beta1 of the template, write
# that into the selector. Generated from pkg/capi/inject.
`

const listsHead = `# Patches for lists that a KubeadmControlPlaneTemplate lacks. Use exactly the patches for the lists that yours lacks,
# before the patches of patches.yaml, and no others: they would empty existing lists. Use at most one of the last
# three, the first that applies. Generated from pkg/capi/inject.
`

const snippetHead = `# Edges on the control-plane machines of one Cluster: add this to its KubeadmControlPlane. Dots in the name of a
# Cluster become two hyphens in the name below certSANs. The Cluster itself needs
#
#   metadata:
#     labels: {fairlead.dev/tunnel: enabled}
#     annotations: {fairlead.dev/edges: control-plane}
#
# The placeholders are for clusterctl generate, or envsubst. Generated from pkg/capi/inject.
`

func TestFilesMatchTheCode(t *testing.T) {
	variable, err := inject.Definition(defaults)
	if err != nil {
		t.Fatal(err)
	}
	patches, err := inject.Patches()
	if err != nil {
		t.Fatal(err)
	}
	snippet, err := inject.Snippet()
	if err != nil {
		t.Fatal(err)
	}
	for file, content := range map[string]struct {
		head string
		body any
	}{
		"patches.yaml":             {patchesHead, part{[]clusterv1.ClusterClassVariable{variable}, patches}},
		"lists.yaml":               {listsHead, part{Patches: inject.ListPatches()}},
		"kubeadmcontrolplane.yaml": {snippetHead, snippet},
	} {
		body, err := yaml.Marshal(content.body)
		if err != nil {
			t.Fatal(err)
		}
		golden.CheckFile(t, file, append([]byte(content.head), body...))
	}
}

// TestSnippetIsAnInjection replaces the placeholders as envsubst does.
func TestSnippetIsAnInjection(t *testing.T) {
	text, err := os.ReadFile("kubeadmcontrolplane.yaml")
	if err != nil {
		t.Fatal(err)
	}
	filled := os.Expand(string(text), func(name string) string {
		value, ok := map[string]string{
			"CLUSTER_NAME": "c1", "NAMESPACE": "prod", "FAIRLEAD_TUNNEL_DOMAIN": defaults.TunnelDomain,
			"FAIRLEAD_EDGE_IMAGE": defaults.Image,
		}[name]
		if !ok {
			t.Errorf("the placeholder %s is not known", name)
		}
		return value
	})
	var got struct {
		Spec struct {
			KubeadmConfigSpec map[string]any `json:"kubeadmConfigSpec"`
		} `json:"spec"`
	}
	if err := yaml.Unmarshal([]byte(filled), &got); err != nil {
		t.Fatal(err)
	}
	want := map[string]any{}
	if err := inject.Fields(want, options("prod", "c1")); err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(want, got.Spec.KubeadmConfigSpec); diff != "" {
		t.Error(diff)
	}
}

// TestExampleHasThePatches: the example is written by hand, except for its patches and its variable.
func TestExampleHasThePatches(t *testing.T) {
	var want part
	for _, file := range []string{"lists.yaml", "patches.yaml"} {
		more := read(t, file)
		want.Variables = append(want.Variables, more.Variables...)
		for _, p := range more.Patches {
			if file == "patches.yaml" || p.Name == "fairlead-no-files" || p.Name == "fairlead-no-pre-kubeadm-commands" {
				want.Patches = append(want.Patches, p)
			}
		}
	}
	var class clusterv1.ClusterClass
	for _, o := range example(t) {
		if o.GetKind() == "ClusterClass" {
			convert(t, o, &class)
		}
	}
	if diff := cmp.Diff(want, part{class.Spec.Variables, class.Spec.Patches}); diff != "" {
		t.Error(diff)
	}
}

// read parses a file strictly: an unknown field is an error.
func read(t *testing.T, file string) part {
	t.Helper()
	text, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	if bytes.Contains(text, []byte("${")) {
		t.Errorf("%s has a placeholder, which clusterctl would replace", file)
	}
	var p part
	if err := yaml.UnmarshalStrict(text, &p); err != nil {
		t.Fatalf("%s: %v", file, err)
	}
	if len(p.Patches) == 0 || !strings.HasPrefix(p.Patches[0].Name, "fairlead-") {
		t.Fatalf("%s has no patches", file)
	}
	return p
}
