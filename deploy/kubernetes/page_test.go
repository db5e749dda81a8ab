package kubernetes_test

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"testing"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/fairlead/fairlead/internal/kubetest"
)

// withComponent returns the objects that are applied together with a component of this directory.
func withComponent(ctx context.Context, t *testing.T, component string) []*unstructured.Unstructured {
	t.Helper()
	here, err := os.Getwd()
	if err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	folder, err := filepath.Rel(dir, here)
	if err != nil {
		t.Fatal(err)
	}
	text := fmt.Sprintf(
		"apiVersion: kustomize.config.k8s.io/v1beta1\nkind: Kustomization\nresources: [%s]\ncomponents: [%s]\n", folder,
		filepath.Join(folder, component),
	)
	if err := os.WriteFile(filepath.Join(dir, "kustomization.yaml"), []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	kubectl, err := filepath.Abs(filepath.Join(root, "bin/kubectl"))
	if err != nil {
		t.Fatal(err)
	}
	out, err := exec.CommandContext(ctx, kubectl, "kustomize", dir).Output()
	if err != nil {
		t.Fatalf("building kustomization: %v", err)
	}
	built, err := kubetest.Decode(out)
	if err != nil {
		t.Fatal(err)
	}
	return built
}

func TestThePageIsServedOnlyIfRequested(t *testing.T) {
	admin := apiserver(t)
	serves := func(template []any) bool {
		return slices.ContainsFunc(
			template, func(arg any) bool { return len(arg.(string)) > 14 && arg.(string)[:14] == "--page-listen=" },
		)
	}
	for component, wants := range map[string]struct{ serves, reviews bool }{
		".": {}, "page": {serves: true},
		"page-tokens": {serves: true, reviews: true},
	} {
		t.Run(component, func(t *testing.T) {
			var built []*unstructured.Unstructured
			var err error
			if component == "." {
				built, err = build(t.Context())
			} else {
				built = withComponent(t.Context(), t, component)
			}
			if err != nil {
				t.Fatal(err)
			}
			reviews := false
			for _, o := range built {
				if err := admin.Apply(t.Context(), client.ApplyConfigurationFromUnstructured(o.DeepCopy()), client.FieldOwner(
					"page"), client.ForceOwnership, client.DryRunAll); err != nil {
					t.Errorf("applying %s %s: %v", o.GetKind(), o.GetName(), err)
				}
				reviews = reviews || o.GetKind() == "ClusterRole" && o.GetName() == "fairlead-xds-server-page"
				if o.GetKind() != "Deployment" || o.GetName() != "xds-server" {
					continue
				}
				containers, _, err := unstructured.NestedSlice(o.Object, "spec", "template", "spec", "containers")
				if err != nil {
					t.Fatal(err)
				}
				if got := serves(containers[0].(map[string]any)["args"].([]any)); got != wants.serves {
					t.Errorf("it serves the page: %v, want %v", got, wants.serves)
				}
			}
			if reviews != wants.reviews {
				t.Errorf("it may review access: %v, want %v", reviews, wants.reviews)
			}
		})
	}
}
