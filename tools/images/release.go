package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"time"
)

// A release identifies the sources of the images.
type release struct {
	version string // such as v0.1.0; the tag of the images
	commit  string // full hash, with -dirty after it if files have changed
	time    int64  // of the commit, in seconds since 1970
}

var (
	versionForm = regexp.MustCompile(`^v(\d+\.\d+)\.\d+(-[0-9A-Za-z.-]+)?$`)
	protocol    = regexp.MustCompile(`(?m)^\tCurrent = Version\{(\d+), (\d+)\}$`)
)

// created is the time of everything in the images.
func (r release) created() time.Time { return time.Unix(r.time, 0).UTC() }

// complete adds what the command line does not give, from git, and validates the version. Major and minor version must
// be those of the agents' protocol: see internal/version.
func (r release) complete(ctx context.Context, root string) (release, error) {
	if r.commit == "" || r.time == 0 {
		if err := r.readGit(ctx, root); err != nil {
			return release{}, fmt.Errorf("reading the commit: %w: without git, set -commit, -time and -version", err)
		}
	}
	minor, err := protocolVersion(root)
	if err != nil {
		return release{}, err
	}
	if r.version == "" {
		hash, changed := strings.CutSuffix(r.commit, "-dirty")
		r.version = "v" + minor + ".0-dev.g" + hash[:min(12, len(hash))]
		if changed {
			r.version += ".dirty"
		}
	}
	match := versionForm.FindStringSubmatch(r.version)
	switch {
	case match == nil:
		return release{}, fmt.Errorf("version %s is not of the form v%s.0 or v%s.0-rc.1", r.version, minor, minor)
	case match[1] != minor:
		return release{}, fmt.Errorf("version %s: the agents' protocol version is %s (Current in pkg/envoy/version.go), "+
			"and a release has the same major and minor version", r.version, minor)
	}
	return r, nil
}

// protocolVersion returns the agents' protocol version, such as 0.1.
func protocolVersion(root string) (string, error) {
	data, err := os.ReadFile(filepath.Join(root, "pkg", "envoy", "version.go"))
	if err != nil {
		return "", err
	}
	match := protocol.FindSubmatch(data)
	if match == nil {
		return "", errors.New("pkg/envoy/version.go does not define Current")
	}
	return fmt.Sprintf("%s.%s", match[1], match[2]), nil
}

func (r *release) readGit(ctx context.Context, root string) error {
	out, err := command(ctx, root, nil, "git", "show", "--no-patch", "--format=%H %ct", "HEAD")
	if err != nil {
		return err
	}
	hash, seconds, _ := strings.Cut(out, " ")
	if r.time, err = strconv.ParseInt(seconds, 10, 64); err != nil {
		return err
	}
	changed, err := command(ctx, root, nil, "git", "status", "--porcelain")
	if err != nil {
		return err
	}
	if r.commit = hash; changed != "" {
		r.commit += "-dirty"
	}
	return nil
}

// compile builds all programs for one architecture into a folder. The environment is fixed as well as the flags,
// because each of these variables changes the programs.
func (r release) compile(ctx context.Context, root, to, arch string) error {
	if err := os.MkdirAll(to, 0o755); err != nil {
		return err
	}
	const version = "github.com/fairlead/fairlead/internal/version."
	args := []string{
		"build", "-trimpath", "-buildvcs=false", "-o", to + "/", "-ldflags",
		"-s -w -X " + version + "release=" + r.version + " -X " + version + "commit=" + r.commit,
	}
	for _, i := range images {
		args = append(args, "./cmd/"+i.program)
	}
	_, err := command(ctx, root, fixedEnvironment(arch), "go", args...)
	return err
}

func fixedEnvironment(arch string) []string {
	return []string{
		"GOOS=linux", "GOARCH=" + arch, "GOAMD64=v1", "GOARM64=v8.0", "CGO_ENABLED=0", "GOFLAGS=-mod=readonly", "GOWORK=off",
		"GOTOOLCHAIN=local", "GOEXPERIMENT=", "GOFIPS140=off",
	}
}

// waitDelay is how long an interrupted command may take before it is killed.
const waitDelay = 5 * time.Second

// command runs a command in dir and returns its output, trimmed.
func command(ctx context.Context, dir string, env []string, name string, args ...string) (string, error) {
	cmd := exec.CommandContext(ctx, name, args...)
	var stderr strings.Builder
	cmd.Dir, cmd.WaitDelay, cmd.Stderr = dir, waitDelay, &stderr
	cmd.Env = append(os.Environ(), env...)
	cmd.Cancel = func() error { return cmd.Process.Signal(os.Interrupt) }
	out, err := cmd.Output()
	if err != nil {
		return "", fmt.Errorf("%s %s: %w\n%s", name, args[0], err, strings.TrimSpace(stderr.String()))
	}
	return strings.TrimSpace(string(out)), nil
}
