package envoyadmin

import (
	"path/filepath"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/fairlead/fairlead/internal/envoytest"
)

const withRuntime = `
admin: {address: {pipe: {path: admin.sock}}}
layered_runtime:
  layers:
    - {name: fixed, static_layer: {fixed.number: 7}}
    - {name: limits, admin_layer: {}}
`

func TestOverridesAreWhatWasSet(t *testing.T) {
	dir := envoytest.Dir(t)
	envoytest.Start(t, dir, []byte(withRuntime))
	admin := Client{Socket: filepath.Join(dir, "admin.sock")}
	const one, two = "circuit_breakers.c1.prod.example.com.default.max_connections", "fixed.number"
	for _, step := range []struct {
		change string
		want   map[string]string
	}{
		{want: map[string]string{}},
		{change: one + "=3&" + two + "=8", want: map[string]string{one: "3", two: "8"}},
		{change: one + "=", want: map[string]string{two: "8"}},
	} {
		if step.change != "" {
			if err := admin.Post(t.Context(), "/runtime_modify?"+step.change); err != nil {
				t.Fatal(err)
			}
		}
		got, err := admin.Overrides(t.Context())
		if diff := cmp.Diff(step.want, got); err != nil || diff != "" {
			t.Errorf("after %q: %v, %s", step.change, err, diff)
		}
	}
}
