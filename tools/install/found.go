package main

import (
	"context"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"syscall"
	"time"
)

// A check identifies the pinned version of a program, and how the program prints its version.
type check struct {
	module, path string   // the module with go.mod, and the path of the pinned module in it
	args         []string // with which the program prints its version
	line         string   // a line of the output, with VERSION for v1.2.3 and NUMBER for 1.2.3
	any          bool     // accepts every version; the fields module, path and line have no effect
}

// versionTime bounds printing the version.
const versionTime = 10 * time.Second

// find searches the machine for the files of a part. It returns their paths, or nil unless all exist, have the pinned
// version, and cannot be changed by other users: the demo and the tests run them as root.
func (p part) find(ctx context.Context, root string) (map[string]string, error) {
	if p.check == nil {
		return nil, nil
	}
	var version string
	if !p.check.any {
		var err error
		if version, err = moduleVersion(ctx, p.check.module, p.check.path); err != nil {
			return nil, err
		}
	}
	places := map[string]string{}
	for _, file := range p.files {
		place := firstWith(ctx, candidates(root, file), p.check, version)
		if place == "" {
			return nil, nil
		}
		places[file] = place
	}
	return places, nil
}

// firstWith returns the first of some files that is a program of the version.
func firstWith(ctx context.Context, files []string, c *check, version string) string {
	i := slices.IndexFunc(files, func(file string) bool { return ownedSafely(file) && c.passes(ctx, file, version) })
	if i < 0 {
		return ""
	}
	return files[i]
}

// passes reports whether a program prints the version.
func (c *check) passes(ctx context.Context, file, version string) bool {
	ctx, cancel := context.WithTimeout(ctx, versionTime)
	defer cancel()
	out, err := workdir{dir: "/"}.command(ctx, file, c.args...).Output()
	want := strings.NewReplacer("VERSION", version, "NUMBER", strings.TrimPrefix(version, "v")).Replace(c.line)
	if c.any {
		return err == nil
	}
	return err == nil && slices.ContainsFunc(strings.Split(string(out), "\n"), func(line string) bool {
		return strings.TrimSpace(line) == want
	})
}

// ownedSafely reports whether only root and this user can replace a file.
func ownedSafely(file string) bool {
	for _, path := range []string{file, filepath.Dir(file)} {
		info, err := os.Stat(path)
		if err != nil {
			return false
		}
		stat, ok := info.Sys().(*syscall.Stat_t)
		if !ok || info.Mode().Perm()&0o022 != 0 || stat.Uid != 0 && int(stat.Uid) != os.Geteuid() {
			return false
		}
	}
	return true
}

// candidates returns the files of a name on this machine: in the folder of envtest, in the cache of setup-envtest, and
// in PATH. It skips links into bin/ of the repository, which this program makes itself.
func candidates(root, file string) []string {
	folders := []string{os.Getenv("KUBEBUILDER_ASSETS"), "/usr/local/kubebuilder/bin"}
	data := os.Getenv("XDG_DATA_HOME")
	if home, err := os.UserHomeDir(); data == "" && err == nil {
		data = filepath.Join(home, ".local", "share")
	}
	if data != "" {
		stored, _ := filepath.Glob(filepath.Join(data, "kubebuilder-envtest", "k8s", "*-"+runtime.GOOS+"-"+runtime.GOARCH))
		folders = append(folders, stored...)
	}
	folders = append(folders, filepath.SplitList(os.Getenv("PATH"))...)
	var files []string
	for _, folder := range folders {
		if !filepath.IsAbs(folder) {
			continue
		}
		found, err := exec.LookPath(filepath.Join(folder, file))
		if err != nil || within(filepath.Join(root, "bin"), found) {
			continue
		}
		if found, err = filepath.EvalSymlinks(found); err == nil && !slices.Contains(files, found) {
			files = append(files, found)
		}
	}
	return files
}

// within reports whether a path, or the target of its links, is in a folder.
func within(folder, path string) bool {
	for _, f := range []func(string) (string, error){filepath.Abs, filepath.EvalSymlinks} {
		base, err := f(folder)
		at, errAt := f(path)
		if err == nil && errAt == nil && strings.HasPrefix(at, base+string(filepath.Separator)) {
			return true
		}
	}
	return false
}
