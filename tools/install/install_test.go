package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"
)

// module is a real Go module: two programs share a package, and two more programs have the same name.
var module = map[string]string{
	"go.mod":           "module example.test/parts\n\ngo 1.26\n",
	"go.sum":           "",
	"shared/shared.go": "package shared\n\nfunc Name() string { return \"shared\" }\n",
	"one/main.go": "package main\n\nimport \"example.test/parts/shared\"\n\nfunc main() { " +
		"println(shared.Name(), \"one\") }\n",
	"two/v2/main.go": "package main\n\nimport \"example.test/parts/shared\"\n\nfunc main() { " +
		"println(shared.Name(), \"two\") }\n",
	"first/manager/main.go":    "package main\n\nfunc main() { println(\"first\") }\n",
	"second/manager/main.go":   "package main\n\nfunc main() { println(\"second\") }\n",
	"second/manager/extra.txt": "extra\n",
}

// fixture returns a repository with the module in it, and its parts.
func fixture(t *testing.T) (o options, all []part) {
	t.Helper()
	o = options{root: t.TempDir(), cache: t.TempDir(), names: []string{"everything"}}
	dir := filepath.Join(o.root, "tools", "parts")
	for name, text := range module {
		write(t, filepath.Join(dir, name), text, 0o644)
	}
	from := stripped(dir)
	one := func(name, pkg string) part {
		return part{
			name: name, files: []string{name}, from: modFiles(dir), alone: time.Minute, added: time.Second,
			source: from, programs: []program{{pkg, name}},
		}
	}
	extra := one("second-manager", "example.test/parts/second/manager")
	extra.files = append(extra.files, "extra.txt")
	extra.make = func(_ context.Context, to string) error {
		data, err := os.ReadFile(filepath.Join(dir, "second", "manager", "extra.txt"))
		return errors.Join(err, os.WriteFile(filepath.Join(to, "extra.txt"), data, 0o600))
	}
	return o, []part{
		one("one", "./one"),
		one("two", "example.test/parts/two/v2"),
		one("first-manager", "./first/manager"),
		extra,
	}
}

func write(t *testing.T, file, text string, mode os.FileMode) {
	t.Helper()
	if err := errors.Join(os.MkdirAll(filepath.Dir(file), 0o755), os.WriteFile(file, []byte(text), mode), os.Chmod(file,
		mode)); err != nil {
		t.Fatal(err)
	}
}

// installs runs an installation and returns its output.
func installs(t *testing.T, o options, wanted []part) string {
	t.Helper()
	var out bytes.Buffer
	if err := installParts(t.Context(), o, wanted, noBrowser, &out); err != nil {
		t.Fatalf("%v\n%s", err, out.String())
	}
	return out.String()
}

// outputOf returns the output of a program in bin.
func outputOf(t *testing.T, o options, name string) string {
	t.Helper()
	out, err := exec.CommandContext(t.Context(), filepath.Join(o.root, "bin", name)).CombinedOutput()
	if err != nil {
		t.Fatal(err)
	}
	return strings.TrimSpace(string(out))
}

func TestPartsOfOneModuleAreBuiltTogetherAndKept(t *testing.T) {
	o, all := fixture(t)
	said := installs(t, o, all)
	for _, want := range []string{
		"install: everything: 1 step, about ", "1. building one, two, first-manager, second-manager",
		"[1 of 1, 0:0", "done in ",
	} {
		if !strings.Contains(said, want) {
			t.Errorf("the first run does not say %q:\n%s", want, said)
		}
	}
	for name, want := range map[string]string{
		"one": "shared one", "two": "shared two", "first-manager": "first",
		"second-manager": "second",
	} {
		if got := outputOf(t, o, name); got != want {
			t.Errorf("%s prints %q, want %q", name, got, want)
		}
	}
	if left, _ := filepath.Glob(filepath.Join(o.cache, "making-*")); len(left) > 0 {
		t.Errorf("the run left %v", left)
	}
	link := filepath.Join(o.root, "bin", "one")
	before, err := os.Lstat(link)
	if err != nil {
		t.Fatal(err)
	}
	said = installs(t, o, all)
	if !strings.Contains(said, "everything is there") || strings.Contains(said, "building") {
		t.Errorf("the second run builds something:\n%s", said)
	}
	if after, err := os.Lstat(link); err != nil || !os.SameFile(before, after) {
		t.Errorf(
			"the second run made a right link again (%v): a test that starts the program meanwhile would not find it", err,
		)
	}
}

func TestABuildReportsItsProgress(t *testing.T) {
	o, all := fixture(t)
	// The constants are new in each run, so that the build cache has neither package.
	for name, text := range map[string]string{"shared/shared.go": "Shared", "one/main.go": "One"} {
		write(
			t,
			filepath.Join(o.root, "tools", "parts", name),
			module[name]+"\nconst "+text+" = `"+o.root+"`\n\nfunc init() { _ = "+text+" }\n",
			0o644,
		)
	}
	var told []string
	if err := buildAll(t.Context(), all[0].source, all[0].programs, t.TempDir(), func(detail string) {
		told = append(told,
			detail)
	}); err != nil {
		t.Fatal(err)
	}
	if len(told) < 2 || !strings.HasPrefix(told[0], "1 of at most ") || !strings.HasSuffix(told[1], " packages compiled") {
		t.Errorf("it tells %q, want a line for each of two packages", told)
	}
}

func TestAChangeOfTheModuleMakesItsPartsAgain(t *testing.T) {
	o, all := fixture(t)
	installs(t, o, all[:1])
	write(t, filepath.Join(o.root, "tools", "parts", "go.mod"), module["go.mod"]+"// changed\n", 0o644)
	if said := installs(t, o, all[:1]); !strings.Contains(said, "building one") {
		t.Errorf("the part is not built again:\n%s", said)
	}
}

func TestAFailedBuildKeepsNothingAndQuotesTheCompiler(t *testing.T) {
	o, all := fixture(t)
	write(
		t, filepath.Join(o.root, "tools", "parts", "one", "main.go"), "package main\n\nfunc main() { undefined() }\n", 0o644,
	)
	err := installParts(t.Context(), o, all, noBrowser, &bytes.Buffer{})
	if err == nil || !strings.Contains(err.Error(), "undefined: undefined") ||
		!strings.Contains(err.Error(), "building one") {
		t.Fatalf("the error is %v", err)
	}
	entries, err := os.ReadDir(o.cache)
	if err != nil || len(entries) != 1 || entries[0].Name() != "lock" {
		t.Errorf("the cache has %v (%v), want only its lock", entries, err)
	}
}

func TestADryRunMakesNothing(t *testing.T) {
	o, all := fixture(t)
	o.dryRun = true
	if said := installs(t, o, all); !strings.Contains(said, "1. building one") {
		t.Errorf("no plan:\n%s", said)
	}
	if entries, err := os.ReadDir(filepath.Join(o.root, "bin")); err != nil || len(entries) > 0 {
		t.Errorf("bin has %v (%v)", entries, err)
	}
}

func TestFairleadsOwnProgramsAreTheLastStep(t *testing.T) {
	o, all := fixture(t)
	for name, text := range module {
		write(t, filepath.Join(o.root, name), text, 0o644)
	}
	o.own = []string{"./one", "./first/manager"}
	said := installs(t, o, all[1:2])
	if !strings.Contains(said, "2. building Fairlead's 2 programs") {
		t.Errorf("the plan does not have it as the second step:\n%s", said)
	}
	if got := outputOf(t, o, "manager"); got != "first" {
		t.Errorf("bin/manager prints %q", got)
	}
}

// waits calls then when a run says that it waits, however long a busy machine takes until then.
type waits struct {
	bytes.Buffer
	then func()
}

func (w *waits) Write(p []byte) (int, error) {
	if bytes.Contains(p, []byte("waiting for another run")) {
		w.then()
	}
	return w.Buffer.Write(p)
}

func TestARunWaitsForAnotherRun(t *testing.T) {
	o, all := fixture(t)
	unlock, err := lock(t.Context(), filepath.Join(o.cache, "lock"), &bytes.Buffer{})
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	out := waits{then: func() { time.AfterFunc(2*lockRetry, cancel) }}
	if err := installParts(ctx, o, all, noBrowser, &out); !errors.Is(err, context.Canceled) {
		t.Errorf("with the lock held the run ends with %v", err)
	}
	if strings.Count(out.String(), "waiting for another run") != 1 {
		t.Errorf("got %q", out.String())
	}
	unlock()
	installs(t, o, all[:1])
}

func TestARunWithoutMissingPartsWaitsForNone(t *testing.T) {
	o, all := fixture(t)
	installs(t, o, all[:1])
	unlock, err := lock(t.Context(), filepath.Join(o.cache, "lock"), &bytes.Buffer{})
	if err != nil {
		t.Fatal(err)
	}
	defer unlock()
	if said := installs(t, o, all[:1]); strings.Contains(said, "waiting") {
		t.Errorf("it waits although everything is there:\n%s", said)
	}
}

// pretend writes a program that prints a version.
func pretend(t *testing.T, dir, name, prints string, mode os.FileMode) string {
	t.Helper()
	file := filepath.Join(dir, name)
	write(t, file, fmt.Sprintf("#!/bin/sh\n[ \"$1\" = --version ] && echo '%s'\n", prints), mode)
	return file
}

func TestOnlyPinnedVersionsOnTheMachineAreUsed(t *testing.T) {
	for name, c := range map[string]struct {
		prints string
		mode   os.FileMode
		used   bool
	}{
		"the pinned version":                    {"Example v1.2.3", 0o755, true},
		"another version":                       {"Example v1.2.4", 0o755, false},
		"a version that begins with it":         {"Example v1.2.30", 0o755, false},
		"a build after it":                      {"Example v1.2.3-dirty", 0o755, false},
		"a file that other users can write":     {"Example v1.2.3", 0o777, false},
		"a file that is no program":             {"Example v1.2.3", 0o644, false},
		"a program that fails to say a version": {"", 0o755, false},
	} {
		t.Run(name, func(t *testing.T) {
			o, all := fixture(t)
			dir := filepath.Join(o.root, "tools", "parts")
			write(
				t, filepath.Join(dir, "go.mod"),
				module["go.mod"]+"\nrequire example.test/pinned v1.2.3\n\nreplace example.test/pinned => ./pinned\n", 0o644,
			)
			write(t, filepath.Join(dir, "pinned", "go.mod"), "module example.test/pinned\n\ngo 1.26\n", 0o644)
			all[0].check = &check{module: dir, path: "example.test/pinned", args: []string{"--version"}, line: "Example VERSION"}
			assets := t.TempDir()
			t.Setenv("KUBEBUILDER_ASSETS", assets)
			o.dryRun = true
			file := pretend(t, assets, "one", c.prints, c.mode)
			said := installs(t, o, all[:1])
			if got := strings.Contains(said, "on this machine, of the pinned version: "+file); got != c.used {
				t.Errorf("used: %v, want %v:\n%s", got, c.used, said)
			}
			if got := strings.Contains(said, "building one"); got == c.used {
				t.Errorf("built: %v, want %v:\n%s", got, !c.used, said)
			}
		})
	}
}

func TestProgramsAreFoundInCommonPlaces(t *testing.T) {
	root, home := t.TempDir(), t.TempDir()
	t.Setenv("HOME", home)
	t.Setenv("XDG_DATA_HOME", "")
	t.Setenv("KUBEBUILDER_ASSETS", filepath.Join(home, "assets"))
	path, bin := filepath.Join(home, "path"), filepath.Join(root, "bin")
	t.Setenv("PATH", strings.Join([]string{"relative", bin, path, filepath.Join(home, "behind")}, ":"))
	store := filepath.Join(home, ".local/share/kubebuilder-envtest/k8s/1.37.1-linux-amd64")
	for _, dir := range []string{filepath.Join(home, "assets"), store, path, bin} {
		pretend(t, dir, "one", "", 0o755)
	}
	if err := errors.Join(os.Mkdir(filepath.Join(home, "behind"), 0o755), os.Symlink(filepath.Join(bin, "one"),
		filepath.Join(home, "behind", "one"))); err != nil {
		t.Fatal(err)
	}
	want := []string{filepath.Join(home, "assets", "one"), filepath.Join(store, "one"), filepath.Join(path, "one")}
	if got := candidates(root, "one"); !slices.Equal(got, want) {
		t.Errorf("candidates are %v, want %v: what leads into bin/ is what this program itself makes", got, want)
	}
}

func TestEverySetNamesExistingParts(t *testing.T) {
	all := parts("../..")
	for name := range sets {
		_, rest := takeChromium([]string{name})
		if _, err := choose(all, rest); err != nil {
			t.Errorf("set %s: %v", name, err)
		}
	}
	chosen, err := choose(all, nil)
	if err != nil || len(chosen) != len(all)-1 || slices.ContainsFunc(chosen, func(p part) bool { return p.named }) {
		t.Errorf("a run without a name installs %d of %d parts (%v), want all but Kamaji", len(chosen), len(all), err)
	}
	if _, err := choose(all, []string{"nothing"}); err == nil || !strings.Contains(err.Error(), "demo") {
		t.Errorf("an unknown name gives %v, want an error that lists the sets", err)
	}
	if wish, _ := takeChromium([]string{"demo"}); wish != noBrowser {
		t.Error("the demo installs a browser")
	}
}

// TestAnyVersionOfNFTIsUsed checks a part whose version does not matter: a program of the machine replaces it.
func TestAnyVersionOfNFTIsUsed(t *testing.T) {
	o, _ := fixture(t)
	o.dryRun = true
	folder := t.TempDir()
	file := pretend(t, folder, "nft", "nftables v9.9.9", 0o755)
	t.Setenv("PATH", folder+":"+os.Getenv("PATH"))
	if said := installs(t, o, []part{nft()}); !strings.Contains(said, "on this machine: "+file) {
		t.Errorf("it is not used:\n%s", said)
	}
}

// TestMissingListsOfPackagesAreRead uses an apt-get that finds a package only in lists that it has just read.
func TestMissingListsOfPackagesAreRead(t *testing.T) {
	const apt = `#!/bin/sh
for word; do case $word in Dir::State::Lists=*) lists=${word#*=} ;; esac; done
case " $* " in
*" update "*) echo "$PACKAGE" >"$lists/new" ;;
*" download "*) grep -q "^nftables$" "$lists/new" && echo "$lists" >nftables.deb ;;
esac
`
	folder := t.TempDir()
	if err := os.WriteFile(filepath.Join(folder, "apt-get"), []byte(apt), 0o755); err != nil {
		t.Fatal(err)
	}
	t.Setenv("PATH", folder+":"+os.Getenv("PATH"))
	for offered, works := range map[string]bool{"nftables": true, "other": false} {
		t.Setenv("PACKAGE", offered)
		dir := t.TempDir()
		if err := downloadDebian(t.Context(), dir, []string{"nftables"}); (err == nil) != works {
			t.Errorf("with a mirror that has %s, the download ends with %v", offered, err)
		}
		lists, err := os.ReadFile(filepath.Join(dir, "nftables.deb"))
		if works && strings.TrimSpace(string(lists)) != filepath.Join(dir, "lists") {
			t.Errorf("the lists are in %q (%v), want a folder beside the package", lists, err)
		}
	}
}

// TestTheMakefileInstallsExistingSets checks every target, because `make` would fail only when the target runs.
func TestTheMakefileInstallsExistingSets(t *testing.T) {
	text, err := os.ReadFile("../../Makefile")
	if err != nil {
		t.Fatal(err)
	}
	topics := map[string]bool{}
	for line := range strings.Lines(string(text)) {
		if names, ok := strings.CutPrefix(line, "TOPICS := "); ok {
			for _, name := range strings.Fields(names) {
				topics[name] = true
			}
		}
	}
	matrix, err := os.ReadFile("../matrix/run")
	if err != nil {
		t.Fatal(err)
	}
	const ofMatrix = "machine-programs"
	// The set of Kamaji goes into a folder of its own.
	used := map[string]bool{
		"demo": true, ofMatrix: strings.Contains(string(matrix), " "+ofMatrix+" "),
		"kamaji": strings.Contains(string(text), "-bin ../../bin/kamaji "),
	}
	for _, word := range strings.Fields(string(text)) {
		topic, ok := strings.CutPrefix(word, "parts.")
		if ok && strings.Trim(topic, "abcdefghijklmnopqrstuvwxyz") == "" {
			if used[topic] = true; !topics[topic] {
				t.Errorf("the Makefile needs parts.%s, which TOPICS does not have", topic)
			}
		}
	}
	if want := slices.Sorted(maps.Keys(sets)); !slices.Equal(slices.Sorted(maps.Keys(used)), want) || !used[ofMatrix] {
		t.Errorf("the Makefile and the matrix use %v, and the sets are %v", slices.Sorted(maps.Keys(used)), want)
	}
}

func TestProgramsWithTheSameNameAreBuiltInTurn(t *testing.T) {
	got := batches([]program{{"a/kubeadm", "x"}, {"b/core", "y"}, {"c/kubeadm", "z"}, {"d/server/v3", "w"}})
	want := [][]program{{{"a/kubeadm", "x"}, {"b/core", "y"}, {"d/server/v3", "w"}}, {{"c/kubeadm", "z"}}}
	if fmt.Sprint(got) != fmt.Sprint(want) {
		t.Errorf("batches are %v, want %v", got, want)
	}
	for pkg, want := range map[string]string{
		"go.etcd.io/etcd/server/v3": "server", "./vet": "vet", "./v": "v",
		"./cmd/x1": "x1",
	} {
		if got := executable(pkg); got != want {
			t.Errorf("the program of %s is %s, want %s", pkg, got, want)
		}
	}
}

func TestSharedPackagesAreCountedOnce(t *testing.T) {
	now, next := &source{dir: "k8s"}, &source{dir: "k8s"}
	steps := partSteps([]part{
		{name: "large", source: now, alone: 10 * time.Minute, added: 3 * time.Minute},
		{name: "other", alone: time.Minute},
		{name: "small", source: now, alone: 2 * time.Minute, added: time.Minute},
		{name: "next", source: next, alone: 10 * time.Minute, added: time.Minute},
	})
	var got []string
	for _, s := range steps {
		got = append(got, s.title+" "+s.cost.String())
	}
	want := []string{"building large, small 11m0s", "making other 1m0s", "building next 1m0s"}
	if !slices.Equal(got, want) {
		t.Errorf("steps are %q, want %q", got, want)
	}
}
