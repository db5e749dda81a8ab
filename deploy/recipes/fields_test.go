package recipes_test

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	appsv1 "k8s.io/api/apps/v1"
	policyv1 "k8s.io/api/policy/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"sigs.k8s.io/yaml"

	"github.com/fairlead/fairlead/api/v1alpha1"
)

// table lists the fields that an object may have, by path: "files[].path"; "x{}" are the values of a map. The tables
// are in the directory fields, each with a note of its origin: see types_test.go.
type table map[string]field

type field struct {
	kind     string // string, integer, number, boolean, object, map, list, any
	required bool   // in an object that exists
	values   []string
}

// TestRecipesFitTheirProviders checks each object against the table of its provider's fields, or against its type if
// that belongs to Fairlead or Kubernetes.
func TestRecipesFitTheirProviders(t *testing.T) {
	files, err := filepath.Glob("*.yaml")
	if err != nil || len(files) != 5 {
		t.Fatalf("%v, %v", files, err)
	}
	shown := map[string]bool{}
	for _, file := range files {
		for _, o := range documents(t, file) {
			var err error
			switch kind := fmt.Sprint(o["apiVersion"], " ", o["kind"]); kind {
			case "fairlead.dev/v1alpha1 Tunnel":
				err = runtime.DefaultUnstructuredConverter.FromUnstructuredWithValidation(o, &v1alpha1.Tunnel{}, true)
			case "apps/v1 StatefulSet":
				err = runtime.DefaultUnstructuredConverter.FromUnstructuredWithValidation(o, &appsv1.StatefulSet{}, true)
			case "policy/v1 PodDisruptionBudget":
				budget := &policyv1.PodDisruptionBudget{}
				err = runtime.DefaultUnstructuredConverter.FromUnstructuredWithValidation(o, budget, true)
			default:
				at := slices.IndexFunc(providers, func(p provider) bool { return p.kind == kind })
				if at < 0 {
					t.Errorf("%s: nothing is known of %s", file, kind)
					continue
				}
				shown[providers[at].table] = true
				err = readTable(t, providers[at].table).fits(o["spec"], "")
			}
			if err != nil {
				t.Errorf("%s: %v", file, err)
			}
		}
	}
	for _, p := range providers {
		if !shown[p.table] {
			t.Errorf("no recipe has a %s", p.kind)
		}
	}
}

// TestTalosPatchesFit: the provider accepts the patches as text, and the machine rejects unknown fields of its
// configuration.
func TestTalosPatchesFit(t *testing.T) {
	config := readTable(t, "talos-machine")
	for _, patch := range talosPatches(t) {
		if err := config.fits(patch, ""); err != nil {
			t.Error(err)
		}
	}
}

func talosPatches(t *testing.T) (patches []any) {
	t.Helper()
	spec := documents(t, "talos.yaml")[0]["spec"].(map[string]any)
	controlPlane := spec["controlPlaneConfig"].(map[string]any)["controlplane"].(map[string]any)
	for _, text := range controlPlane["strategicPatches"].([]any) {
		var patch any
		if err := yaml.Unmarshal([]byte(text.(string)), &patch); err != nil {
			t.Fatal(err)
		}
		patches = append(patches, patch)
	}
	return patches
}

// fits checks that a value has only fields of the table at that path, of their kinds, and all required ones.
func (t table) fits(value any, path string) error {
	f, ok := t[path]
	if !ok {
		return fmt.Errorf("%q is no field", path)
	}
	if is := kindOf(value); f.kind != "any" && is != f.kind && (is != "object" || f.kind != "map") &&
		(is != "integer" || f.kind != "number") {
		return fmt.Errorf("%q is of the kind %s, not %s", path, is, f.kind)
	}
	switch value := value.(type) {
	case string:
		if len(f.values) > 0 && !slices.Contains(f.values, value) {
			return fmt.Errorf("%q is %q, not one of %q", path, value, f.values)
		}
	case []any:
		for _, item := range value {
			if err := t.fits(item, path+"[]"); err != nil {
				return err
			}
		}
	case map[string]any:
		return t.fitsObject(value, path, f.kind)
	}
	return nil
}

func (t table) fitsObject(fields map[string]any, path, kind string) error {
	if kind == "any" {
		return nil
	}
	for name, value := range fields {
		at := below(path, name)
		if kind == "map" {
			at = path + "{}"
		}
		if err := t.fits(value, at); err != nil {
			return err
		}
	}
	for at, f := range t {
		name := at[strings.LastIndexByte(at, '.')+1:]
		if _, ok := fields[name]; f.required && at == below(path, name) && !ok {
			return fmt.Errorf("%q has to be there", at)
		}
	}
	return nil
}

func below(path, name string) string { return strings.TrimPrefix(path+"."+name, ".") }

func kindOf(value any) string {
	switch value := value.(type) {
	case string:
		return "string"
	case bool:
		return "boolean"
	case float64:
		if value == float64(int64(value)) {
			return "integer"
		}
		return "number"
	case []any:
		return "list"
	case map[string]any:
		return "object"
	}
	return fmt.Sprintf("%T", value)
}

// readTable parses a table. Each line has a field with its kind, "required", and its permitted values. Lines that
// begin with "#" state its origin.
func readTable(t *testing.T, name string) table {
	t.Helper()
	text, err := os.ReadFile(filepath.Join("fields", name+".txt"))
	if err != nil {
		t.Fatal(err)
	}
	result := table{"": {kind: "object"}}
	for line := range strings.Lines(string(text)) {
		words := strings.Fields(line)
		if len(words) == 0 || words[0] == "#" {
			continue
		}
		if len(words) < 2 {
			t.Fatalf("%s: %q", name, line)
		}
		f := field{kind: words[1], values: words[2:]}
		if len(f.values) > 0 && f.values[0] == "required" {
			f.required, f.values = true, f.values[1:]
		}
		result[words[0]] = f
	}
	return result
}

func TestFitsRejects(t *testing.T) {
	files := func(file map[string]any) any { return map[string]any{"files": []any{file}} }
	for want, value := range map[string]any{
		`"file" is no field`:                          map[string]any{"file": "x"},
		`"serverConfig.tlsSan" is of the kind string`: map[string]any{"serverConfig": map[string]any{"tlsSan": "x"}},
		`"serverConfig" is of the kind string`:        map[string]any{"serverConfig": "x"},
		`"files[].contentFrom.secret.name" is of the kind integer`: files(map[string]any{
			"path":        "/x",
			"contentFrom": map[string]any{"secret": map[string]any{"key": "k", "name": 1.0}},
		}),
		`"files[].contentFrom.secret.key" has to be there`: files(map[string]any{
			"path":        "/x",
			"contentFrom": map[string]any{"secret": map[string]any{"name": "n"}},
		}),
		`"files[].path" has to be there`: files(map[string]any{"content": "x"}),
		`"files[].encoding" is "gzipped", not one of`: files(map[string]any{
			"path":     "/x",
			"encoding": "gzipped",
		}),
	} {
		if err := readTable(t, "rke2").fits(value, ""); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%v, want %s", err, want)
		}
	}
}
