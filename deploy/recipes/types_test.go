package recipes_test

import (
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	"sigs.k8s.io/yaml"

	"github.com/fairlead/fairlead/internal/golden"
)

// derive is for a directory with the CRDs of providers, from which the tables are then made.
var derive = flag.String(
	"crds",
	"",
	"make the tables, with -update, of the CRDs in this folder instead of those in the providers' modules",
)

// A provider has its types in a Go module that an installation of Fairlead never needs. The module also contains its
// CRDs, with which an apiserver validates objects, so the recipes are checked against them.
type provider struct {
	kind            string   // of the object in the recipe
	table           string   // the fields that the recipe uses
	module, version string   // a release, or the commit of the table
	crd             string   // in the module
	about           []string // the fields of spec in the table
	whole           bool     // the table was derived from that CRD, and must be equal
}

var providers = []provider{
	{
		kind: "controlplane.cluster.x-k8s.io/v1beta2 RKE2ControlPlane", table: "rke2",
		module: "github.com/rancher/cluster-api-provider-rke2", version: "0888d66e2d464189f322d91aed9a5e10778e8b86",
		crd:   "controlplane/config/crd/bases/controlplane.cluster.x-k8s.io_rke2controlplanes.yaml",
		about: []string{"files", "preRKE2Commands", "postRKE2Commands", "serverConfig"},
	},
	{
		kind: "controlplane.cluster.x-k8s.io/v1beta2 KThreesControlPlane", table: "k3s",
		module: "github.com/k3s-io/cluster-api-k3s", version: "84621259374be7c7eb73a972fd9069561454deba",
		crd:   "controlplane/config/crd/bases/controlplane.cluster.x-k8s.io_kthreescontrolplanes.yaml",
		about: []string{"kthreesConfigSpec"},
	},
	{
		kind: "controlplane.cluster.x-k8s.io/v1beta1 TalosControlPlane", table: "talos",
		module:  "github.com/siderolabs/cluster-api-control-plane-provider-talos",
		version: "93cf950d7a820e9f1ced0779030b0f1edda5a09f",
		crd:     "config/crd/bases/controlplane.cluster.x-k8s.io_taloscontrolplanes.yaml",
		about:   []string{"controlPlaneConfig"}, whole: true, // compared manually with that CRD
	},
	{
		kind: "controlplane.cluster.x-k8s.io/v1alpha2 KamajiControlPlane", table: "kamaji",
		module:  "github.com/clastix/cluster-api-control-plane-provider-kamaji",
		version: "c73a9832081681e2cfa69987d4ea70d2b8a07660",
		crd:     "config/crd/bases/controlplane.cluster.x-k8s.io_kamajicontrolplanes.yaml",
		about:   []string{"network", "deployment.externalClusterReference"},
	},
	{
		kind: "controlplane.cluster.x-k8s.io/v1beta2 AWSManagedControlPlane", table: "eks",
		module: "sigs.k8s.io/cluster-api-provider-aws/v2", version: "v2.13.0",
		crd:   "config/crd/bases/controlplane.cluster.x-k8s.io_awsmanagedcontrolplanes.yaml",
		about: []string{"endpointAccess", "eksClusterName"}, whole: true,
	},
}

// TestTablesAreTheProvidersTypes downloads the providers' modules from the Go module proxy, and checks recipes and
// tables against their CRDs. If the proxy does not have a module, the test is skipped with a message, unless
// PROVIDERS_REQUIRED is set.
func TestTablesAreTheProvidersTypes(t *testing.T) {
	if testing.Short() {
		t.Skip("needs the providers' modules, which -short leaves out")
	}
	for _, p := range providers {
		t.Run(p.table, func(t *testing.T) {
			is := fieldsOf(t, crdOf(t, p), p)
			for _, o := range recipesOf(t, p.kind) {
				if err := is.fits(o["spec"], ""); err != nil {
					t.Error(err)
				}
			}
			if golden.Updating() {
				writeTable(t, p, is)
			}
			diff := cmp.Diff(readTable(t, p.table), is, cmp.AllowUnexported(field{}), cmpopts.EquateEmpty())
			if diff != "" && p.whole {
				t.Errorf("run this test with -update: %s", diff)
			} else if diff != "" {
				t.Logf("the table is of another commit: run this test with -update, and set whole: %s", diff)
			}
		})
	}
}

// crdOf returns the file from which a provider's table is derived.
func crdOf(t *testing.T, p provider) string {
	t.Helper()
	given := filepath.Join(*derive, filepath.Base(p.crd))
	if _, err := os.Stat(given); *derive != "" && err == nil {
		return given
	}
	dir, err := download(t.Context(), p.module+"@"+p.version)
	if err != nil && os.Getenv("PROVIDERS_REQUIRED") == "" {
		t.Skipf("the table alone counts: %v", err)
	}
	if err != nil {
		t.Fatal(err)
	}
	return filepath.Join(dir, p.crd)
}

func recipesOf(t *testing.T, kind string) (all []map[string]any) {
	t.Helper()
	files, err := filepath.Glob("*.yaml")
	if err != nil {
		t.Fatal(err)
	}
	for _, file := range files {
		for _, o := range documents(t, file) {
			if fmt.Sprint(o["apiVersion"], " ", o["kind"]) == kind {
				all = append(all, o)
			}
		}
	}
	return all
}

// download downloads a module and returns its directory. It changes no go.mod.
func download(ctx context.Context, module string) (string, error) {
	ctx, cancel := context.WithTimeout(ctx, 2*time.Minute)
	defer cancel()
	command := exec.CommandContext(ctx, "go", "mod", "download", "-json", module)
	command.Dir, command.Env = os.TempDir(), append(os.Environ(), "GOFLAGS=", "GOWORK=off")
	text, err := command.Output()
	var answer struct{ Dir, Error string }
	if jsonErr := json.Unmarshal(text, &answer); jsonErr != nil {
		return "", fmt.Errorf("getting %s: %w", module, errors.Join(err, jsonErr))
	}
	if answer.Error != "" || err != nil {
		return "", fmt.Errorf("getting %s: %s, %w", module, answer.Error, err)
	}
	return answer.Dir, nil
}

// fieldsOf derives the table of a CRD, for the fields that the recipe uses.
func fieldsOf(t *testing.T, file string, p provider) table {
	t.Helper()
	text, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	var crd apiextensionsv1.CustomResourceDefinition
	if err := yaml.Unmarshal(text, &crd); err != nil {
		t.Fatal(err)
	}
	group, version, _ := strings.Cut(strings.Fields(p.kind)[0], "/")
	at := slices.IndexFunc(
		crd.Spec.Versions, func(v apiextensionsv1.CustomResourceDefinitionVersion) bool { return v.Name == version },
	)
	if at < 0 || crd.Spec.Group != group || crd.Spec.Names.Kind != strings.Fields(p.kind)[1] {
		t.Fatalf("%s has no %s", file, p.kind)
	}
	all := table{}
	all.add(crd.Spec.Versions[at].Schema.OpenAPIV3Schema.Properties["spec"], "", false)
	result := table{"": {kind: "object"}}
	for path, f := range all {
		for _, about := range p.about {
			switch rest, ok := strings.CutPrefix(path, about); {
			case ok && (rest == "" || strings.ContainsAny(rest[:1], ".[{")):
				result[path] = f
			case path != "" && strings.HasPrefix(about, path+"."):
				result[path] = field{kind: f.kind} // a parent of it
			}
		}
	}
	return result
}

func (t table) add(schema apiextensionsv1.JSONSchemaProps, path string, required bool) {
	f := field{kind: schema.Type, required: required}
	for _, v := range schema.Enum {
		if text, err := strconv.Unquote(string(v.Raw)); err == nil {
			f.values = append(f.values, text)
		}
	}
	switch {
	case schema.XPreserveUnknownFields != nil || schema.XIntOrString || f.kind == "":
		f.kind = "any"
	case f.kind == "array":
		f.kind = "list"
		t.add(*schema.Items.Schema, path+"[]", false)
	case schema.AdditionalProperties != nil && schema.AdditionalProperties.Schema != nil:
		f.kind = "map"
		t.add(*schema.AdditionalProperties.Schema, path+"{}", false)
	}
	t[path] = f
	for name, property := range schema.Properties {
		t.add(property, below(path, name), path != "" && slices.Contains(schema.Required, name))
	}
}

// writeTable keeps the note of the table's origin, which must be updated by hand.
func writeTable(t *testing.T, p provider, is table) {
	t.Helper()
	name := filepath.Join("fields", p.table+".txt")
	old, err := os.ReadFile(name)
	if err != nil && !errors.Is(err, os.ErrNotExist) {
		t.Fatal(err)
	}
	var text strings.Builder
	for line := range strings.Lines(string(old)) {
		if strings.HasPrefix(line, "# ") {
			text.WriteString(line)
		}
	}
	for _, path := range slices.Sorted(maps.Keys(is)) {
		if path == "" {
			continue
		}
		words := append([]string{path, is[path].kind}, is[path].values...)
		if is[path].required {
			words = slices.Insert(words, 2, "required")
		}
		text.WriteString(strings.Join(words, " ") + "\n")
	}
	if err := os.WriteFile(name, []byte(text.String()), 0o644); err != nil {
		t.Fatal(err)
	}
}
