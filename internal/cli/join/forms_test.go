package join

import (
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"

	"github.com/fairlead/fairlead/api/v1alpha1"
)

// TestAMachineKeepsItsTunnel runs the step of the commands that looks at the bootstrap file of a machine.
func TestAMachineKeepsItsTunnel(t *testing.T) {
	secret := &corev1.Secret{Data: map[string][]byte{
		v1alpha1.BootstrapFileKey: []byte("ca: |\n  PEM\nid: abc\ntoken: fl1.new\n"),
	}}
	for name, tc := range map[string]struct {
		file string // of the machine; empty: none
		want bool
	}{
		"a new machine":                     {"", true},
		"a new token":                       {"id: abc\ntoken: fl1.old\n", true},
		"another tunnel":                    {"ca: |\n  PEM\nid: abcd\ntoken: fl1.old\n", false},
		"another one, whose id is a prefix": {"id: ab\n", false},
		"a file without an id":              {"token: fl1.old\n", true},
	} {
		path := filepath.Join(t.TempDir(), "bootstrap.yaml")
		if tc.file != "" {
			if err := os.WriteFile(path, []byte(tc.file), 0o600); err != nil {
				t.Fatal(err)
			}
		}
		step := strings.ReplaceAll(ownTunnel(secret), "/etc/fairlead/bootstrap.yaml", path)
		out, err := exec.CommandContext(t.Context(), "sh", "-eu", "-c", step).CombinedOutput()
		if (err == nil) != tc.want || tc.want == strings.Contains(string(out), "another tunnel") {
			t.Errorf("%s: %v, %q", name, err, out)
		}
	}
}
