package cli

import (
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"unicode"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/fairlead/fairlead/api/v1alpha1"
	"github.com/fairlead/fairlead/internal/version"
)

// everyCommand calls do with each command of the tree.
func everyCommand(cmd *cobra.Command, do func(*cobra.Command)) {
	do(cmd)
	for _, sub := range cmd.Commands() {
		everyCommand(sub, do)
	}
}

// TestEveryCommandIsDocumented checks that every command has a one-line description, a help text in the common form,
// two examples that its own parser accepts, and a description of each flag.
func TestEveryCommandIsDocumented(t *testing.T) {
	everyCommand(newRoot(), func(cmd *cobra.Command) {
		path := cmd.CommandPath()
		if cmd.Short == "" || !unicode.IsUpper(rune(cmd.Short[0])) || strings.HasSuffix(cmd.Short, ".") ||
			len(cmd.Short) > 90 {
			t.Errorf("%s: Short is %q: a line that begins with a capital and has no full stop", path, cmd.Short)
		}
		cmd.Flags().VisitAll(func(f *pflag.Flag) {
			if f.Usage == "" || strings.HasSuffix(f.Usage, ".") {
				t.Errorf("%s: --%s is explained as %q", path, f.Name, f.Usage)
			}
		})
		if cmd.HasSubCommands() {
			return
		}
		if cmd.Args == nil || cmd.RunE == nil {
			t.Errorf("%s: it takes any arguments, or does nothing", path)
		}
		commonForm(t, path, cmd.Long)
		if strings.Count(cmd.Example, "fairlead ") < 2 || !strings.Contains(cmd.Example, "\n") {
			t.Errorf("%s: fewer than two examples: %q", path, cmd.Example)
		}
		for l := range strings.Lines(cmd.Example) {
			if !strings.HasPrefix(l, "  ") {
				t.Errorf("%s: the example %q is not indented", path, l)
			}
			example(t, path, l)
		}
	})
}

// commonForm checks that a help text describes the command, and then its needs, its changes and its exit codes.
func commonForm(t *testing.T, path, text string) {
	t.Helper()
	rest := text
	for _, part := range []string{"\n\nNeeds: ", "\nChanges: ", "\nExit codes: 0 "} {
		before, after, ok := strings.Cut(rest, part)
		if !ok || len(before) < len("nothing.") {
			t.Errorf("%s: the help has no %q in its place:\n%s", path, strings.TrimSpace(part), text)
			return
		}
		rest = after
	}
	if !strings.Contains(rest, "; 1 ") || !strings.Contains(strings.ReplaceAll(rest, "\n", " "), "; 2 the command line") {
		t.Errorf("%s: the help lacks an exit code: %s", path, rest)
	}
	for l := range strings.Lines(text) {
		if len(l) > 112 {
			t.Errorf("%s: a line of the help is wider than 111 columns: %q", path, l)
		}
	}
}

// example parses an example with the parser of its command.
func example(t *testing.T, path, text string) {
	t.Helper()
	_, text, ok := strings.Cut(strings.TrimSuffix(text, "\n")+" ", path+" ")
	if !ok {
		t.Errorf("%s: its example %q is not of it", path, text)
		return
	}
	text, _, _ = strings.Cut(text, "\n")
	var args []string
	for _, word := range strings.Fields(text) {
		if strings.ContainsAny(word[:1], "|>&#;") {
			break
		}
		args = append(args, strings.Trim(word, `"'`))
	}
	cmd, rest, err := newRoot().Find(append(strings.Fields(path)[1:], args...))
	if err != nil || cmd.CommandPath() != path {
		t.Errorf("%s: example %q: %v", path, text, err)
		return
	}
	if err := cmd.ParseFlags(rest); err != nil {
		t.Errorf("%s: example %q: %v", path, text, err)
		return
	}
	if err := cmd.Args(cmd, cmd.Flags().Args()); err != nil {
		t.Errorf("%s: example %q: %v", path, text, err)
	}
}

func TestUsageErrorsExitWithTwo(t *testing.T) {
	for want, args := range map[string][]string{
		`unknown command "statsu" for "fairlead", did you mean status`: {"statsu"},
		`unknown command "ls" for "fairlead edge"`:                     {"edge", "ls"},
		"unknown flag: --bogus":                                        {"status", "--bogus"},
		`required flag(s) "file" not set`:                              {"render"},
		"accepts 1 arg(s), received 0: see `fairlead join --help`":     {"join"},
		"none of the others can be":                                    {"status", "-A", "-n", "x"},
		"--copy":                                                       {"kubeconfig", "c1", "--copy"},
		"--use and --replace need --merge":                             {"kubeconfig", "c1", "--use"},
	} {
		var stdout, stderr strings.Builder
		if code := run(t.Context(), args, &stdout, &stderr); code != 2 || !strings.Contains(stderr.String(), want) ||
			stdout.Len() > 0 {
			t.Errorf("%v: exit code %d, %q, want %q", args, code, stderr.String(), want)
		}
	}
}

// TestKubectlPlugin runs the program under the names that kubectl uses, and through the real kubectl if there is one.
func TestKubectlPlugin(t *testing.T) {
	var stdout, stderr strings.Builder
	if code := Run(t.Context(), "/usr/local/bin/kubectl-fairlead", []string{"status", "--help"}, &stdout,
		&stderr); code != 0 ||
		!strings.Contains(stdout.String(), "kubectl fairlead status [CLUSTER...] [flags]") {
		t.Errorf("exit code %d, %s%s", code, stdout.String(), stderr.String())
	}
	stdout.Reset()
	if code := Run(t.Context(), "kubectl_complete-fairlead", []string{"stat"}, &stdout, &stderr); code != 0 ||
		!strings.HasPrefix(stdout.String(), "status\t") {
		t.Errorf("exit code %d, %s", code, stdout.String())
	}
	kubectl, err := filepath.Abs("../../bin/kubectl")
	if err != nil {
		t.Fatal(err)
	}
	if testing.Short() {
		t.Skip("builds the program")
	}
	if _, err := os.Stat(kubectl); err != nil {
		if os.Getenv("REAL_PARTS_REQUIRED") != "" {
			t.Fatalf("no kubectl: run `make tools`: %v", err)
		}
		t.Skipf("no kubectl: run `make tools`: %v", err)
	}
	dir := t.TempDir()
	build := exec.CommandContext(t.Context(), "go", "build", "-o", filepath.Join(dir, "fairlead"), "../../cmd/fairlead")
	if out, err := build.CombinedOutput(); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	for _, name := range []string{pluginName, completionName} {
		if err := os.Symlink("fairlead", filepath.Join(dir, name)); err != nil {
			t.Fatal(err)
		}
	}
	ask := func(args ...string) string {
		t.Helper()
		cmd := exec.CommandContext(t.Context(), kubectl, args...)
		cmd.Env = append(os.Environ(), "PATH="+dir+":"+os.Getenv("PATH"))
		out, _ := cmd.CombinedOutput()
		return string(out)
	}
	if out := ask("fairlead", "edge", "bogus"); !strings.Contains(
		out,
		`kubectl fairlead: unknown command "bogus" for "kubectl fairlead edge"`,
	) {
		t.Errorf("kubectl fairlead edge bogus: %s", out)
	}
	if out := ask("__complete", "fairlead", "sta"); !strings.Contains(out, "status\t") {
		t.Errorf("completion through kubectl: %s", out)
	}
}

func TestCompletions(t *testing.T) {
	p := newPerson(t)
	key := serve(t, p, edgeStatus("edge-here", v1alpha1.EdgeGatewayStatus{Name: "gateway-0", Tunnels: 1}))
	for _, tc := range []struct {
		args    []string
		want    string
		wantNot string
	}{
		{[]string{"status", "-n", key.Namespace, ""}, "c1", ""},
		{[]string{"kubeconfig", "-n", key.Namespace, "c"}, "c1", ""},
		{[]string{"kubeconfig", "-n", key.Namespace, "x"}, "", "c1"},
		{[]string{"kubeconfig", "-n", key.Namespace, "c1", ""}, "", "c1"},
		{[]string{"join", "-n", key.Namespace, ""}, "c1", ""},
		{[]string{"status", "--namespace", key.Namespace[:6]}, key.Namespace, "default"},
		{[]string{"edge", "revoke", "edge-h"}, "edge-here", "gateway-0"},
		{[]string{"config", "dump", "ga"}, "gateway-0", ""},
		{[]string{"config", "why", "c1."}, "c1." + key.Namespace + ".tunnels.example.com", ""},
		{[]string{"status", "-o", ""}, "yaml", ""},
		{[]string{"status", "--context", "go"}, "good", "other"},
	} {
		// The word to complete comes last, so the user's own flags come first.
		args := slices.Insert(slices.Clone(tc.args), 1, "--kubeconfig="+p.kubeconfig, "--context=good")
		if len(tc.args) > 2 && tc.args[0] != "status" && tc.args[0] != "kubeconfig" && tc.args[0] != "join" {
			args = slices.Insert(slices.Clone(tc.args), 2, "--kubeconfig="+p.kubeconfig, "--context=good")
		}
		if slices.Contains(tc.args, "--context") {
			args = slices.Insert(slices.Clone(tc.args), 1, "--kubeconfig="+p.kubeconfig)
		}
		var stdout, stderr strings.Builder
		code := run(t.Context(), append([]string{cobra.ShellCompRequestCmd}, args...), &stdout, &stderr)
		got := strings.Split(stdout.String(), "\n")
		if code != 0 || tc.want != "" && !slices.Contains(got, tc.want) ||
			tc.wantNot != "" && slices.Contains(got, tc.wantNot) {
			t.Errorf("%v: exit code %d, got %q", tc.args, code, got)
		}
	}
}

func TestVersion(t *testing.T) {
	for line, want := range map[string]string{
		"version":           version.Line() + "\n",
		"--version":         "fairlead " + version.Line() + "\n",
		"version -o json":   `"envoy": "` + version.Envoy + `"`,
		"version -o yaml":   "commit: " + version.Commit() + "\n",
		"--version --bogus": "",
	} {
		var stdout, stderr strings.Builder
		code := run(t.Context(), strings.Fields(line), &stdout, &stderr)
		if wantCode := map[bool]int{true: 2}[want == ""]; code != wantCode || !strings.Contains(stdout.String(), want) {
			t.Errorf("%s: exit code %d, printed %q and %q", line, code, stdout.String(), stderr.String())
		}
	}
}
