package cli

import (
	"encoding/json"
	"encoding/xml"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/fairlead/fairlead/pkg/diagnose/check"
)

func TestTestRejectsInvalidCommandLines(t *testing.T) {
	exists := filepath.Join(t.TempDir(), "file")
	if err := os.WriteFile(exists, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	for want, args := range map[string][]string{
		"--exec":                        {"connectivity", "c1", "--exec=pod"},
		"--port-forward":                {"connectivity", "c1", "--port-forward=a/b"},
		"--connections: 0 is not":       {"connectivity", "c1", "--connections=0"},
		"--bytes: 0 is not":             {"connectivity", "c1", "--bytes=0"},
		"--idle: 3h0m0s is not":         {"connectivity", "c1", "--idle=3h"},
		"--sni: \"x\" is not host:port": {"connectivity", "c1", "--sni=x"},
		"a Cluster is in one namespace": {"connectivity", "c1", "-A"},
		"exists: name a new file":       {"connectivity", "c1", "--bundle=" + exists},
		"--output: \"xml\"":             {"connectivity", "c1", "-o", "xml"},
		"give a command after --":       {"through", "c1"},
		"--allowed must not":            {"through", "c1", "--allowed=-1", "--", "true"},
		"--interval: 1ms is less":       {"through", "c1", "--interval=1ms", "--", "true"},
		"--timeout must be more":        {"through", "c1", "--timeout=0s", "--", "true"},
		"--public-address":              {"preflight", "--public-address=https://x"},
		`required flag(s) "bootstrap"`:  {"edge-preflight"},
		"--idle: 1m0s is not between":   {"edge-preflight", "--bootstrap=" + exists, "--idle=1m"},
	} {
		var stdout, stderr strings.Builder
		code := run(t.Context(), append([]string{"test"}, args...), &stdout, &stderr)
		if code != 2 || !strings.Contains(stderr.String(), want) || stdout.Len() > 0 {
			t.Errorf("%v: exit code %d, printed %q and %q, want %q", args, code, stdout.String(), stderr.String(), want)
		}
	}
}

// TestTestNeedsAWayThatWorks checks that a command is not started when a Cluster does not answer, and that through and
// connectivity then name the broken hop in each form of their output.
func TestTestNeedsAWayThatWorks(t *testing.T) {
	p := newPerson(t)
	key := serve(t, p)
	dir := t.TempDir()
	trap, junit, bundle := filepath.Join(dir, "trap"), filepath.Join(dir, "junit.xml"), filepath.Join(dir, "bundle.tar.gz")
	flags := []string{
		"--kubeconfig=" + p.kubeconfig, "--context=good", "-n", key.Namespace, "--via=127.0.0.1:1", "-o", "json",
		"--junit=" + junit,
	}
	var stdout, stderr strings.Builder
	before := filepath.Join(dir, "before.tar.gz")
	args := append(append([]string{"test", "through"}, flags...), "--bundle="+before, "c1", "--", "touch", trap)
	code := run(t.Context(), args, &stdout, &stderr)
	var through struct {
		Status   check.Status
		Command  struct{ Error string }
		Clusters []struct{ Failures []struct{ Hop, Cure string } }
	}
	if err := json.Unmarshal([]byte(stdout.String()), &through); err != nil || code != 1 ||
		through.Status != check.Broken || !strings.Contains(through.Command.Error, "the command was not started") ||
		len(through.Clusters) != 1 || len(through.Clusters[0].Failures) != 1 ||
		through.Clusters[0].Failures[0].Hop == "" || through.Clusters[0].Failures[0].Cure == "" {
		t.Errorf("through: exit code %d, %v: %s%s", code, err, stdout.String(), stderr.String())
	}
	if _, err := os.Stat(trap); err == nil {
		t.Error("the command was started")
	}
	if _, err := os.Stat(before); err != nil {
		t.Errorf("through: no support bundle: %v", err)
	}
	if failures, cases := readJUnit(t, junit); failures != 1 || cases != 2 {
		t.Errorf("through: JUnit has %d failures of %d", failures, cases)
	}
	stdout.Reset()
	stderr.Reset()
	args = append(append([]string{"test", "connectivity"}, flags...), "--bundle="+bundle)
	code = run(t.Context(), args, &stdout, &stderr)
	var got struct {
		Clusters []struct {
			Name   string
			Status check.Status
			Hop    *check.Result
		}
	}
	if err := json.Unmarshal([]byte(stdout.String()), &got); err != nil || code != 1 || len(got.Clusters) != 1 ||
		got.Clusters[0].Status != check.Broken || got.Clusters[0].Hop == nil || got.Clusters[0].Hop.Cure == "" {
		t.Errorf("connectivity: exit code %d, %v: %s%s", code, err, stdout.String(), stderr.String())
	}
	if !strings.Contains(stderr.String(), bundle+" has ") {
		t.Errorf("no support bundle: %q", stderr.String())
	}
	if info, err := os.Stat(bundle); err != nil || info.Mode().Perm() != 0o600 {
		t.Errorf("the support bundle is %v, %v", info, err)
	}
	if failures, cases := readJUnit(t, junit); failures == 0 || cases < 10 {
		t.Errorf("connectivity: JUnit has %d failures of %d", failures, cases)
	}
}

// readJUnit returns the numbers of failures and of test cases in a file of --junit.
func readJUnit(t *testing.T, file string) (failures, cases int) {
	t.Helper()
	text, err := os.ReadFile(file)
	var suite struct {
		Failures int        `xml:"failures,attr"`
		Cases    []struct{} `xml:"testcase"`
	}
	if err != nil || xml.Unmarshal(text, &suite) != nil {
		t.Fatalf("%v: %s", err, text)
	}
	return suite.Failures, len(suite.Cases)
}

func TestPreflight(t *testing.T) {
	p := newPerson(t)
	var stdout, stderr strings.Builder
	args := []string{"test", "preflight", "--kubeconfig=" + p.kubeconfig, "--context=good", "-o", "json"}
	code := run(t.Context(), args, &stdout, &stderr)
	var got struct {
		Status check.Status
		Tests  []check.Result
	}
	if err := json.Unmarshal([]byte(stdout.String()), &got); err != nil || len(got.Tests) < 4 {
		t.Fatalf("exit code %d, %v: %s%s", code, err, stdout.String(), stderr.String())
	}
	for _, r := range got.Tests {
		if r.Status != check.OK || r.Detail == "" {
			t.Errorf("got %+v", r)
		}
	}
	stdout.Reset()
	closed := filepath.Join(t.TempDir(), "kubeconfig")
	config := "clusters: [{name: c, cluster: {server: 'https://127.0.0.1:1'}}]\ncontexts: [{name: good, context: " +
		"{cluster: c}}]\n"
	if err := os.WriteFile(closed, []byte(config), 0o600); err != nil {
		t.Fatal(err)
	}
	if code := run(t.Context(), append(args, "--kubeconfig="+closed), &stdout, &stderr); code != 1 ||
		!strings.Contains(stdout.String(), `"status": "broken"`) {
		t.Errorf("without an apiserver: exit code %d, %s%s", code, stdout.String(), stderr.String())
	}
}
