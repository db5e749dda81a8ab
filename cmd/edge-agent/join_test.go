package main

import (
	"bytes"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/fairlead/fairlead/pkg/agent/edge"
	"github.com/fairlead/fairlead/pkg/certs"
)

// joinInput makes a file the standard input of the program.
func joinInput(t *testing.T, path string) {
	t.Helper()
	file, err := os.Open(path)
	if err != nil {
		t.Fatal(err)
	}
	before := os.Stdin
	os.Stdin = file
	t.Cleanup(func() { os.Stdin = before; _ = file.Close() })
}

func goodFile(t *testing.T) string {
	t.Helper()
	ca, err := certs.NewCA("test", time.Now(), time.Hour)
	if err != nil {
		t.Fatal(err)
	}
	text := strings.ReplaceAll(bootstrap, "ca: the file's CA\n", "ca: |\n")
	for line := range strings.Lines(string(ca.CertPEM())) {
		text += "  " + line
	}
	return text
}

func TestJoinLeavesTheFileToTheNextAgent(t *testing.T) {
	dir := t.TempDir()
	joinInput(t, write(t, t.TempDir(), "bootstrap.yaml", goodFile(t)))
	var out, errs bytes.Buffer
	if code := run(t.Context(), []string{"join", "--state-dir", dir, "--timeout=300ms"}, &out, &errs); code != 1 ||
		!strings.Contains(errs.String(), "no agent has read it") {
		t.Fatalf("exit code %d: %s", code, errs.String())
	}
	files, err := filepath.Glob(filepath.Join(dir, "joined", "tunnels.example.com-*.yaml"))
	if err != nil || len(files) != 1 {
		t.Fatalf("there are %v, %v", files, err)
	}
	name := strings.TrimSuffix(filepath.Base(files[0]), ".yaml")
	for _, want := range []int{0, 1} { // the second time there is nothing to leave
		if code := run(t.Context(), []string{"leave", name, "--state-dir", dir}, &out, &errs); code != want {
			t.Errorf("exit code %d: %s", code, errs.String())
		}
	}
	if _, err := os.Stat(files[0]); !os.IsNotExist(err) {
		t.Errorf("the file is there: %v", err)
	}
}

func TestJoinRejects(t *testing.T) {
	for name, tc := range map[string]struct{ in, dir, want string }{
		"garbage": {in: "x", dir: t.TempDir(), want: "not YAML"},
		"more than a bootstrap file has": {
			in: goodFile(t) + strings.Repeat("#", edge.MaxBootstrapFile), dir: t.TempDir(), want: "not YAML",
		},
		"a state folder that is not there": {in: goodFile(t), dir: "/no/such/folder", want: "--state-dir"},
	} {
		joinInput(t, write(t, t.TempDir(), "bootstrap.yaml", tc.in))
		var out, errs bytes.Buffer
		if code := run(t.Context(), []string{"join", "--state-dir", tc.dir, "--timeout=300ms"}, &out, &errs); code != 1 ||
			!strings.Contains(errs.String(), tc.want) ||
			strings.Contains(errs.String(), "fl1.") {
			t.Errorf("%s: exit code %d: %s", name, code, errs.String())
		}
	}
}

// TestMachineFlagsApplyToAJoinedTunnel proves that flags about this machine apply to a joined tunnel, and that flags
// about bootstrap files do not.
func TestMachineFlagsApplyToAJoinedTunnel(t *testing.T) {
	o := options{
		id: "bbbbbbbbbbbbbbbbbbbbbbbb", domain: "other.example.org", gateways: []string{"192.0.2.1:443"}, tokenFile: "/none",
		caFile:     "/none",
		proxyGiven: true, proxy: "http://proxy:3128", apiservers: []string{"127.0.0.1:6443"},
		targets: []string{"10.0.0.1:6443"},
	}
	o.agent.StateDir = t.TempDir()
	edge, err := o.joined(write(t, t.TempDir(), "joined.yaml", goodFile(t)))
	if err != nil {
		t.Fatal(err)
	}
	credential, err := edge.Credential()
	if err != nil || credential.ID != "aaaaaaaaaaaaaaaaaaaaaaaa" || credential.Token != "fl1.file" {
		t.Errorf("got %s, %v", credential.ID, err)
	}
	if edge.Domain != "tunnels.example.com" || join(edge.Dialer.Addresses) != "gw.example.com:443" ||
		len(edge.Gateways) > 0 {
		t.Errorf("it is of %s at %s", edge.Domain, join(edge.Dialer.Addresses))
	}
	apiservers, targets := join(edge.APIServers), join(edge.Allowed.Targets)
	if !edge.Dialer.Proxied() || apiservers != "127.0.0.1:6443" || targets != "10.0.0.1:6443" {
		t.Errorf("it dials %s and %s, by a proxy: %v", apiservers, targets, edge.Dialer.Proxied())
	}
}
