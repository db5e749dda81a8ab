package operations

import (
	"cmp"
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"

	"github.com/fairlead/fairlead/pkg/envoy"
	"github.com/fairlead/fairlead/test/lab/workspace"
)

// versionsFile lists the versions from which an upgrade is supported.
const versionsFile = "versions.txt"

// oldCommits returns the lines of versionsFile: versions and a commit of each, oldest first.
func oldCommits(t *testing.T) (all [][2]string) {
	t.Helper()
	data, err := os.ReadFile(versionsFile)
	must(t, err)
	for line := range strings.Lines(string(data)) {
		if fields := strings.Fields(line); len(fields) == 2 {
			all = append(all, [2]string(fields))
		}
	}
	return all
}

// TestOldVersionsAreServed proves that versionsFile lists every earlier version for which an xds-server renders
// configuration.
func TestOldVersionsAreServed(t *testing.T) {
	var want, got []string
	for minor := envoy.Oldest.Minor; minor < envoy.Current.Minor; minor++ {
		want = append(want, envoy.Version{Major: envoy.Current.Major, Minor: minor}.String())
	}
	for _, old := range oldCommits(t) {
		got = append(got, old[0])
	}
	if !slices.Equal(got, want) {
		t.Errorf("%s has versions %q, want %q", versionsFile, got, want)
	}
}

// version is a version of Fairlead: its repository, its programs, and the tag of its images.
type version struct {
	repository, programs, tag string
}

func (v version) program(name string) string { return filepath.Join(v.programs, name) }

// newest returns the version under test.
func newest() version {
	root, err := filepath.Abs("../..")
	if err != nil {
		panic(err) // the working directory was deleted
	}
	programs, err := filepath.Abs(cmp.Or(os.Getenv(workspace.BinEnv), filepath.Join(root, "bin")))
	if err != nil {
		panic(err)
	}
	return version{repository: root, programs: programs, tag: "v2"}
}

// oldVersion builds the programs of a commit, unless an earlier run has built them.
func oldVersion(t *testing.T, commit string) version {
	t.Helper()
	root := newest().repository
	folder := filepath.Join(root, "bin", "test", "old-"+commit[:7])
	v := version{repository: filepath.Join(folder, "source"), programs: folder, tag: "v1"}
	if _, err := os.Stat(filepath.Join(folder, "complete")); err == nil {
		return v
	}
	must(t, os.RemoveAll(folder))
	must(t, os.MkdirAll(v.repository, 0o755))
	for _, command := range []string{
		"git -C " + root + " archive " + commit + " | tar -x -C " + v.repository,
		"cd " + v.repository + " && go build -o .. ./cmd/controller ./cmd/xds-server ./cmd/gateway-agent ./cmd/edge-agent",
	} {
		if out, err := exec.CommandContext(t.Context(), "bash", "-euo", "pipefail", "-c",
			command).CombinedOutput(); err != nil {
			t.Fatalf("building %s, which takes a clone with its history: %v: %s", commit, err, out)
		}
	}
	must(t, os.WriteFile(filepath.Join(folder, "complete"), nil, 0o644))
	return v
}

// byTag makes the kubelet start the version in the image tag of a Pod. A program exits at once if it does not know its
// arguments.
func (o *operations) byTag(versions ...version) func(context.Context, *corev1.PodTemplateSpec) error {
	return func(ctx context.Context, template *corev1.PodTemplateSpec) error {
		container := template.Spec.Containers[0]
		name, tag, _ := strings.Cut(container.Image[strings.LastIndex(container.Image, "/")+1:], ":")
		name = strings.TrimPrefix(name, "fairlead-")
		if name == "gateway" {
			name = "gateway-agent"
		}
		for _, v := range versions {
			if v.tag != tag {
				continue
			}
			known, err := workspace.KnownArguments(ctx, v.program(name), container.Args)
			if err != nil {
				return err
			}
			if len(known) < len(container.Args) {
				return fmt.Errorf("%s of %s ends at once: of %q it knows only %q", name, tag, container.Args, known)
			}
			o.UsePrograms(v.programs)
			return nil
		}
		return fmt.Errorf("there is no image %s", container.Image)
	}
}
