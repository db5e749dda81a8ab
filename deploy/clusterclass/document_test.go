package clusterclass_test

import (
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"testing"

	"github.com/google/go-cmp/cmp"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"
	"sigs.k8s.io/yaml"

	"github.com/fairlead/fairlead/pkg/capi/inject"
)

var (
	yamlBlock = regexp.MustCompile("(?s)```yaml\n(.*?)```")
	link      = regexp.MustCompile(`\]\(([^)#]+)\)`)
	applied   = regexp.MustCompile(`kubectl apply -[kf] (\S+)`)
)

// TestDocument: the instructions of docs/machines.md are those of the other tests, and every file that it names
// exists.
func TestDocument(t *testing.T) {
	const dir = "../../docs"
	text, err := os.ReadFile(filepath.Join(dir, "machines.md"))
	if err != nil {
		t.Fatal(err)
	}
	var requesting, external bool
	for _, block := range yamlBlock.FindAllSubmatch(text, -1) {
		var object struct {
			Metadata clusterv1.ObjectMeta `json:"metadata"`
			Spec     part                 `json:"spec"`
		}
		if err := yaml.UnmarshalStrict(block[1], &object); err != nil {
			t.Errorf("%s: %v", block[1], err)
		}
		requesting = requesting || inject.Requested(object.Metadata.Labels, object.Metadata.Annotations)
		external = external || cmp.Equal(object.Spec.Patches, []clusterv1.ClusterClassPatch{externalPatch})
	}
	if !requesting || !external {
		t.Errorf(
			"it does not say how a Cluster asks for edges (%v), or how a ClusterClass names the extension (%v)", requesting,
			external,
		)
	}
	var named []string
	for _, m := range link.FindAllSubmatch(text, -1) {
		named = append(named, filepath.Join(dir, string(m[1])))
	}
	for _, m := range applied.FindAllSubmatch(text, -1) {
		named = append(named, filepath.Join("../..", string(m[1])))
	}
	for _, file := range named {
		if _, err := os.Stat(file); err != nil {
			t.Error(err)
		}
	}
	for _, want := range []string{"patches.yaml", "lists.yaml", "kubeadmcontrolplane.yaml", "example.yaml"} {
		if !slices.Contains(named, filepath.Join("../../deploy/clusterclass", want)) {
			t.Errorf("it does not name %s", want)
		}
	}
}
