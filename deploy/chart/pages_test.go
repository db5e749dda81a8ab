package chart_test

import (
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"sigs.k8s.io/yaml"
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

// TestValuesInDocumentsAreRendered: users copy these files.
func TestValuesInDocumentsAreRendered(t *testing.T) {
	pages, err := filepath.Glob(root + "/docs/*.md")
	if err != nil {
		t.Fatal(err)
	}
	var found []string
	for _, page := range pages {
		data, err := os.ReadFile(page)
		if err != nil {
			t.Fatal(err)
		}
		for _, v := range valuesOf(t, string(data)) {
			found = append(found, filepath.Base(page))
			t.Run(filepath.Base(page), func(t *testing.T) {
				t.Parallel()
				out, stderr, err := template(t, v)
				if err != nil {
					t.Fatalf("%s\n%v: %s", v, err, stderr)
				}
				if decode(t, out)[controller] == nil {
					t.Errorf("there is no controller with\n%s", v)
				}
			})
		}
	}
	for _, page := range []string{"install.md", "gitops.md"} {
		if !slices.Contains(found, page) {
			t.Errorf("%s has no values of the chart", page)
		}
	}
}
