package cli

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/fairlead/fairlead/internal/command"
)

// asUsersHaveIt is YAML as users store it: objects of several kinds in one file.
const asUsersHaveIt = `apiVersion: cluster.x-k8s.io/v1beta1
kind: Cluster
metadata: {name: c1, namespace: prod, labels: {fairlead.dev/tunnel: enabled}}
spec:
  controlPlaneEndpoint: {host: 10.0.0.1, port: 6443}
---
apiVersion: bootstrap.cluster.x-k8s.io/v1beta1
kind: KubeadmConfigTemplate
metadata: {name: c1, namespace: prod}
---
apiVersion: fairlead.dev/v1alpha1
kind: Tunnel
metadata: {name: c1, namespace: prod}
spec:
  extraNames: [api.example.com]
`

// renders runs render with a standard input.
func renders(t *testing.T, stdin string, args ...string) (out, errs string, code int) {
	t.Helper()
	root := newRoot()
	root.SetIn(strings.NewReader(stdin))
	var stdout, stderr strings.Builder
	code = command.Run(t.Context(), root, append([]string{"render"}, args...), &stdout, &stderr)
	return stdout.String(), stderr.String(), code
}

func TestRenderReadsFilesOfUsers(t *testing.T) {
	out, errs, code := renders(
		t, asUsersHaveIt, "-f", "-", "-f", "../../deploy/kubernetes/settings.yaml", "-f",
		"../../deploy/kubernetes/gateway.yaml",
	)
	for _, want := range []string{
		"# assumed: the id ", "---\n# gateway gateway-0\n", "---\n# gateway gateway-1\n",
		"---\n# edge of prod/c1\n", "name: api.example.com", "c1.prod.tunnels.example.com",
	} {
		if code != 0 || !strings.Contains(out, want) {
			t.Errorf("exit code %d, %s: %q is missing", code, errs, want)
		}
	}
	dir := t.TempDir()
	for name, text := range map[string]string{"a/c1.yaml": asUsersHaveIt, "b.yml": strings.ReplaceAll(strings.ReplaceAll(
		asUsersHaveIt, "name: c1", "name: c2"), "api.example", "api2.example"), "notes.txt": "{"} {
		path := filepath.Join(dir, name)
		if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	if out, errs, code := renders(t, "", "-f", dir, "--edge", "prod/c2"); code != 0 || !strings.Contains(out, "10.0.0.1") {
		t.Errorf("a folder: exit code %d, %s", code, errs)
	}
	if out, errs, code := renders(t, strings.Replace(asUsersHaveIt, "extraNames", "extraName", 1), "-f", "-"); code != 1 ||
		out != "" ||
		errs != "fairlead: standard input:15:3: spec.extraName: unknown field\n" {
		t.Errorf("exit code %d, %q, %s", code, errs, out)
	}
	if _, errs, _ := renders(t, asUsersHaveIt, "-f", "-", "--edge", "prod/c9"); !strings.Contains(
		errs,
		`no Tunnel "prod/c9": it has prod/c1`,
	) {
		t.Errorf("got %q", errs)
	}
}

// TestRenderHasTheLanesOfEdges: as many as the flag says, and fewer where the fleet is large.
func TestRenderHasTheLanesOfEdges(t *testing.T) {
	for args, want := range map[string]int{"": 5, "--lanes=3": 3, "--lanes=0": 0, "--nodes=1000": 2, "--nodes=100000": 0} {
		out, errs, code := renders(
			t, asUsersHaveIt, append([]string{"-f", "-", "--edge", "prod/c1"}, strings.Fields(args)...)...,
		)
		if got := strings.Count(out, "name: tunnel_edge-example_lane-"); code != 0 || got != want {
			t.Errorf("%q: exit code %d, %s: there are %d lanes, want %d", args, code, errs, got, want)
		}
	}
	_, errs, code := renders(t, asUsersHaveIt, "-f", "-", "--lanes=9")
	if code != 1 || !strings.Contains(errs, "--lanes: ") {
		t.Errorf("exit code %d, %s", code, errs)
	}
}

func TestRenderValidates(t *testing.T) {
	envoy, err := filepath.Abs("../../bin/envoy")
	if path := os.Getenv("ENVOY_PATH"); path != "" {
		envoy = path
	}
	if err != nil {
		t.Fatal(err)
	}
	if _, err := os.Stat(envoy); err != nil {
		if os.Getenv("ENVOY_REQUIRED") != "" {
			t.Fatalf("no Envoy: run `make envoy`: %v", err)
		}
		t.Skipf("no Envoy: run `make envoy`: %v", err)
	}
	out, errs, code := renders(t, asUsersHaveIt, "-f", "-", "--validate", "--envoy", envoy)
	if code != 0 || out != "gateway gateway-0: accepted\nedge of prod/c1: accepted\n" {
		t.Errorf("exit code %d, %s%s", code, out, errs)
	}
	// An Envoy that rejects every configuration.
	refusing := filepath.Join(t.TempDir(), "envoy")
	if err := os.WriteFile(refusing, []byte("#!/bin/sh\necho no such extension >&2\nexit 1\n"), 0o755); err != nil {
		t.Fatal(err)
	}
	if out, errs, code := renders(t, asUsersHaveIt, "-f", "-", "--validate", "--envoy", refusing); code != 1 ||
		errs != "" ||
		!strings.Contains(out, "gateway gateway-0: refused: no such extension") {
		t.Errorf("exit code %d, %s%s", code, out, errs)
	}
	if _, errs, code := renders(t, asUsersHaveIt, "-f", "-", "--validate", "--envoy", "/no/such/envoy"); code != 1 ||
		!strings.Contains(errs, "--envoy: ") {
		t.Errorf("exit code %d, %s", code, errs)
	}
}
