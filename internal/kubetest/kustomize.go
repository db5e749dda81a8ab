package kubetest

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
)

// Part returns the path of a real part, a program or file in bin. Without it the test is skipped, or fails if
// REAL_PARTS_REQUIRED is set.
func Part(t testing.TB, name string) string {
	t.Helper()
	path, err := inRepository(filepath.Join("bin", name))
	if err != nil {
		t.Fatal(err)
	}
	if _, err := os.Stat(path); err != nil {
		if os.Getenv("REAL_PARTS_REQUIRED") != "" {
			t.Fatalf("no %s: run `make tools`: %v", name, err)
		}
		t.Skipf("no %s: run `make tools`: %v", name, err)
	}
	return path
}

// Kustomize returns the objects that `kubectl apply -k` applies for a folder.
func Kustomize(ctx context.Context, folder string) ([]*unstructured.Unstructured, error) {
	kubectl, err := inRepository("bin/kubectl")
	if err != nil {
		return nil, err
	}
	var stderr strings.Builder
	command := exec.CommandContext(ctx, kubectl, "kustomize", folder)
	command.Stderr = &stderr
	out, err := command.Output()
	if err != nil {
		return nil, fmt.Errorf("building the kustomization of %s: %w: %s", folder, err, stderr.String())
	}
	return Decode(out)
}

// KustomizeUser returns the objects of a user's kustomization, with resources and components below deploy, and further
// fields as YAML. Without bin/kubectl the test is skipped, or fails if REAL_PARTS_REQUIRED is set.
func KustomizeUser(t testing.TB, resources, components []string, more string) []*unstructured.Unstructured {
	t.Helper()
	Part(t, "kubectl")
	dir, err := filepath.EvalSymlinks(t.TempDir()) // relative paths lead through no link
	if err != nil {
		t.Fatal(err)
	}
	list := func(folders []string) string {
		var all []string
		for _, folder := range folders {
			absolute, err := inRepository(filepath.Join("deploy", folder))
			if err != nil {
				t.Fatal(err)
			}
			path, err := filepath.Rel(dir, absolute)
			if err != nil {
				t.Fatal(err)
			}
			all = append(all, path)
		}
		return "[" + strings.Join(all, ", ") + "]"
	}
	text := "resources: " + list(resources) + "\ncomponents: " + list(components) + "\n" + more
	if err := os.WriteFile(filepath.Join(dir, "kustomization.yaml"), []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	built, err := Kustomize(t.Context(), dir)
	if err != nil {
		t.Fatal(err)
	}
	return built
}
