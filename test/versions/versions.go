// Package versions builds the earlier versions of Fairlead from which an upgrade is supported. Input: versions.txt and
// a clone with its history. Output: a folder with the programs of a version. It does not know who runs them.
package versions

import (
	"context"
	_ "embed"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"

	"github.com/fairlead/fairlead/test/lab/workspace"
)

//go:embed versions.txt
var list string

// programs are what is built of an earlier version.
const programs = "./cmd/controller ./cmd/xds-server ./cmd/gateway-agent ./cmd/edge-agent ./cmd/fairlead"

// Version is an earlier version of Fairlead.
type Version struct {
	// Number is its minor version, such as 0.1; 0.0 stands for builds without a version.
	Number string
	// Commit is one of its commits.
	Commit string
}

// Earlier returns all versions from which an upgrade is supported, oldest first.
func Earlier() []Version {
	var all []Version
	for line := range strings.Lines(list) {
		if fields := strings.Fields(line); len(fields) == 2 {
			all = append(all, Version{fields[0], fields[1]})
		}
	}
	return all
}

// Build is the result of Version.Build.
type Build struct {
	// Repository is the folder of the sources, and Programs that of the programs.
	Repository, Programs string
}

// Build builds the programs of a version, linked statically, so that they run in images too. It does nothing if an
// earlier call has built them, and takes some minutes with an empty build cache. Two calls for one version at the same
// time are not allowed.
func (v Version) Build(ctx context.Context) (Build, error) {
	root, err := workspace.FindRoot()
	if err != nil {
		return Build{}, err
	}
	folder := filepath.Join(root, "bin", "test", "old-"+v.Commit[:7])
	b := Build{Repository: filepath.Join(folder, "source"), Programs: folder}
	complete := filepath.Join(folder, "complete")
	if _, err := os.Stat(complete); err == nil {
		return b, nil
	}
	if err := os.RemoveAll(folder); err != nil {
		return Build{}, fmt.Errorf("building version %s: %w", v.Number, err)
	}
	if err := os.MkdirAll(b.Repository, 0o755); err != nil {
		return Build{}, fmt.Errorf("building version %s: %w", v.Number, err)
	}
	for _, command := range []string{
		"git -C " + root + " archive " + v.Commit + " | tar -x -C " + b.Repository,
		"cd " + b.Repository + " && CGO_ENABLED=0 nice go build -trimpath -o .. " + programs,
	} {
		out, err := exec.CommandContext(ctx, "bash", "-euo", "pipefail", "-c", command).CombinedOutput()
		if err != nil {
			return Build{}, fmt.Errorf("building version %s, which takes a clone with its history: %w: %s", v.Number, err, out)
		}
	}
	if err := os.WriteFile(complete, nil, 0o644); err != nil {
		return Build{}, fmt.Errorf("building version %s: %w", v.Number, err)
	}
	return b, nil
}
