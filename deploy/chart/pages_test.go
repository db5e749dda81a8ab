package chart_test

import (
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/yaml"

	"github.com/fairlead/fairlead/internal/kubetest"
)

// yamlBlock matches a block of YAML in a document.
var yamlBlock = regexp.MustCompile("(?ms)^ *```yaml\n(.*?)^ *```")

// valuesFile is the first line of a block with a complete file of values.
const valuesFile = "# fairlead-values.yaml\n"

// valuesOf returns all values of the chart that a document contains: files of values, and values in objects of Flux and
// Argo CD.
func valuesOf(t *testing.T, document string) (all []values) {
	t.Helper()
	for _, match := range yamlBlock.FindAllStringSubmatch(document, -1) {
		if strings.HasPrefix(match[1], valuesFile) {
			all = append(all, values(match[1]))
			continue
		}
		for _, document := range strings.Split(match[1], "\n---\n") {
			var o map[string]any
			if err := yaml.Unmarshal([]byte(document), &o); err != nil {
				continue // a part of an object, or a list
			}
			path := map[any]string{"HelmRelease": "spec.values", "Application": "spec.source.helm.valuesObject"}[o["kind"]]
			if inner := at(o, path); path != "" && inner != nil {
				all = append(all, values(text(inner)))
			}
		}
	}
	return all
}

// documentedValues returns the values in all documents by page. Users copy these files.
func documentedValues(t *testing.T) map[string][]values {
	t.Helper()
	pages, err := filepath.Glob(root + "/docs/*.md")
	if err != nil {
		t.Fatal(err)
	}
	all := map[string][]values{}
	for _, page := range pages {
		data, err := os.ReadFile(page)
		if err != nil {
			t.Fatal(err)
		}
		if found := valuesOf(t, string(data)); len(found) > 0 {
			all[filepath.Base(page)] = found
		}
	}
	return all
}

// TestEachPageAboutAPlatformHasItsValues: and no page is without a list of what was not run.
func TestEachPageAboutAPlatformHasItsValues(t *testing.T) {
	all := documentedValues(t)
	pages, err := filepath.Glob(root + "/docs/install-*.md")
	if err != nil || len(pages) < 6 {
		t.Fatalf("there are only the pages %v, %v", pages, err)
	}
	for _, page := range append(pages, "install.md", "gitops.md") {
		if len(all[filepath.Base(page)]) == 0 {
			t.Errorf("%s has no values of the chart", page)
		}
	}
	for _, page := range pages {
		data, err := os.ReadFile(page)
		if err != nil {
			t.Fatal(err)
		}
		for _, want := range []string{
			"> **What was run, and what was not.**", "| Pod Security |", "| NetworkPolicies |", "| permissions |", "check from",
		} {
			if want == "| permissions |" && strings.Contains(string(data), "| IAM |") {
				continue
			}
			if !strings.Contains(string(data), want) {
				t.Errorf("%s has no %q", page, want)
			}
		}
	}
}

// TestUpgradesTakeTheDefaultsOfTheNewChart: --reuse-values keeps all values of the old one, also the ones that were not
// set. A tag that was set stays in any case. Without --wait Helm returns before the Pods are replaced.
func TestUpgradesTakeTheDefaultsOfTheNewChart(t *testing.T) {
	pages, err := filepath.Glob(root + "/docs/*.md")
	if err != nil {
		t.Fatal(err)
	}
	for _, page := range pages {
		data, err := os.ReadFile(page)
		if err != nil {
			t.Fatal(err)
		}
		if strings.Contains(string(data), " --reuse-values") {
			t.Errorf("%s has a command with --reuse-values", page)
		}
		if filepath.Base(page) != "operations.md" {
			continue
		}
		for _, want := range []string{
			"--version 0.2.0", "--reset-then-reuse-values", "--set image.tag=v0.2.0", "--wait", "--timeout=",
		} {
			if !regexp.MustCompile(`(?m) -- helm upgrade .*` + want).Match(data) {
				t.Errorf("the upgrade in %s has no %s", page, want)
			}
		}
	}
}

// TestValuesInDocumentsAreAccepted renders them, and a real kube-apiserver accepts the objects of its own types.
func TestValuesInDocumentsAreAccepted(t *testing.T) {
	admin, err := kubetest.NewClient(server.Config(t))
	if err != nil {
		t.Fatal(err)
	}
	ns := &unstructured.Unstructured{Object: map[string]any{"apiVersion": "v1", "kind": "Namespace"}}
	ns.SetName(namespace)
	if err := admin.Create(t.Context(), ns); err != nil && !apierrors.IsAlreadyExists(err) {
		t.Fatal(err)
	}
	for page, all := range documentedValues(t) {
		for i, v := range all {
			t.Run(fmt.Sprint(page, i), func(t *testing.T) {
				out, stderr, err := template(t, v)
				if err != nil {
					t.Fatalf("%s\n%v: %s", v, err, stderr)
				}
				objects := decode(t, out)
				if objects[controller] == nil {
					t.Errorf("there is no controller with\n%s", v)
				}
				for key, o := range objects {
					if foreign(o) {
						continue
					}
					err := admin.Apply(
						t.Context(), client.ApplyConfigurationFromUnstructured(o), client.FieldOwner("test"), client.DryRunAll,
						client.ForceOwnership,
					)
					if err != nil {
						t.Errorf("%s: %v", key, err)
					}
				}
			})
		}
	}
}
