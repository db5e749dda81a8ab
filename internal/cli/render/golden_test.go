package render_test

import (
	"bytes"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/tools/txtar"

	"github.com/fairlead/fairlead/internal/cli/render"
	"github.com/fairlead/fairlead/internal/envoytest"
	"github.com/fairlead/fairlead/internal/golden"
)

// sections are the rendered parts of each golden, with the flags that select them.
var sections = map[string]string{
	"gateway.yaml":       "--gateway=gateway-0",
	"depot.yaml":         "--edge=prod/depot",
	"site1.network.yaml": "--edge=prod/site1.network --edge-listen=10.1.0.6:6443",
	"barn.network.yaml":  "--edge=prod/barn.network",
	"shop.egress.yaml":   "--edge=prod/shop.egress",
}

func goldens(t *testing.T) []golden.Case {
	t.Helper()
	return golden.Cases(t, "testdata/*.txtar", "objects.yaml")
}

func TestGoldenNetworks(t *testing.T) {
	for _, c := range goldens(t) {
		var files []txtar.File
		for _, name := range []string{
			"gateway.yaml", "depot.yaml", "site1.network.yaml", "barn.network.yaml", "shop.egress.yaml",
		} {
			files = append(files, txtar.File{Name: name, Data: rendered(t, c.Input(), sections[name])})
		}
		t.Run(c.Name, func(t *testing.T) { c.Check(t, files...) })
	}
}

// TestAnEnvoyAcceptsNetworks has a real Envoy validate what the goldens contain.
func TestAnEnvoyAcceptsNetworks(t *testing.T) {
	envoytest.Path(t)
	for _, c := range goldens(t) {
		for name := range sections {
			t.Run(c.Name+"/"+name, func(t *testing.T) {
				t.Parallel()
				envoytest.Validate(t, c.Section(t, name))
			})
		}
	}
}

// rendered returns what render prints.
func rendered(t *testing.T, objects []byte, flags string) []byte {
	t.Helper()
	file := filepath.Join(t.TempDir(), "objects.yaml")
	if err := os.WriteFile(file, objects, 0o600); err != nil {
		t.Fatal(err)
	}
	var out bytes.Buffer
	cmd := render.Command()
	cmd.SetOut(&out)
	cmd.SetArgs(append([]string{"-f", file, "--apiserver-cidrs=192.0.2.0/24", "--lanes=0"}, strings.Fields(flags)...))
	if err := cmd.Execute(); err != nil {
		t.Fatal(err)
	}
	return out.Bytes()
}
