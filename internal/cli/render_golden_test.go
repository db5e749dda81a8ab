package cli

import (
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/fairlead/fairlead/internal/golden"
	"github.com/fairlead/fairlead/pkg/source"
)

func TestRenderPrintsTheGoldens(t *testing.T) {
	for _, c := range golden.Cases(t, "../../pkg/envoy/testdata/*.txtar", "model.yaml") {
		file := filepath.Join(t.TempDir(), "model.yaml")
		if err := os.WriteFile(file, c.Input(), 0o600); err != nil {
			t.Fatal(err)
		}
		fleet, err := source.Parse(c.Input())
		if err != nil {
			t.Fatal(err)
		}
		gateways := fleet.Installation.Gateways
		for section, args := range map[string][]string{
			"responder.yaml": {"--gateway", gateways[len(gateways)-1].Name},
			"initiator.yaml": {"--edge", fleet.Clusters[0].Key.String()},
		} {
			args = append(args, "--lanes", strconv.Itoa(fleet.Installation.Lanes))
			t.Run(c.Name+"/"+section, func(t *testing.T) {
				var stdout, stderr strings.Builder
				if code := run(t.Context(), append([]string{"render", "-f", file}, args...), &stdout, &stderr); code != 0 {
					t.Fatalf("exit code %d: %s", code, stderr.String())
				}
				if diff := cmp.Diff(string(c.Section(t, section)), stdout.String()); diff != "" {
					t.Error(diff)
				}
			})
		}
	}
}

func TestRenderRejects(t *testing.T) {
	const good = "../../deploy/envoy/fleet.yaml"
	tests := map[string]struct {
		in      []string
		wantErr string
	}{
		"no file": {in: []string{"--gateway", "gateway-0"}, wantErr: "file"},
		"a file that is not there": {
			in:      []string{"-f", "/no/such/file", "--gateway", "gateway-0"},
			wantErr: "no such file",
		},
		"both": {
			in:      []string{"-f", good, "--gateway", "gateway-0", "--edge", "prod/c1"},
			wantErr: "gateway edge",
		},
		"a gateway that is not in it": {
			in:      []string{"-f", good, "--gateway", "gateway-7"},
			wantErr: `no gateway "gateway-7"`,
		},
		"a cluster that is not in it": {
			in:      []string{"-f", good, "--edge", "prod/c7"},
			wantErr: `no Tunnel "prod/c7"`,
		},
		"a node name that is none": {in: []string{"-f", good, "--edge", "prod/c1", "--node", "a@b"}, wantErr: "node name"},
		"a listener at a DNS name": {
			in:      []string{"-f", good, "--gateway", "gateway-0", "--public-listen", "gw.example.com:443"},
			wantErr: "not an IP address",
		},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			var stdout, stderr strings.Builder
			if code := run(t.Context(), append([]string{"render"}, tc.in...), &stdout, &stderr); code == 0 || stdout.Len() > 0 {
				t.Errorf("exit code %d, printed %q", code, stdout.String())
			}
			if !strings.Contains(stderr.String(), tc.wantErr) {
				t.Errorf("got %q, want an error with %q", stderr.String(), tc.wantErr)
			}
		})
	}
}
