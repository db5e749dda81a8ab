package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
)

// A release is one version of a module. Its programs are built in a module that requires it.
type release struct {
	path    string // of the module
	dir     string // of the module that requires it
	version string // "": the one that dir pins
}

// pinnedRelease is the version that a module of this repository requires.
func pinnedRelease(path, dir string) release { return release{path: path, dir: dir} }

// source returns where go builds the programs of the release.
func (r release) source(ldflags func(ctx context.Context) (string, error)) *source {
	s := &source{dir: r.dir, ldflags: ldflags}
	if r.version != "" {
		s.prepare = r.writeModule
	}
	return s
}

// number returns the version.
func (r release) number(ctx context.Context) (string, error) {
	if r.version != "" {
		return r.version, nil
	}
	return moduleVersion(ctx, r.dir, r.path)
}

// sources returns the folder with the files of the module.
func (r release) sources(ctx context.Context) (string, error) {
	if r.version == "" {
		return moduleDir(ctx, r.dir, r.path)
	}
	out, err := output(ctx, ".", "go", "mod", "download", "-json", r.path+"@"+r.version)
	if err != nil {
		return "", err
	}
	var downloaded struct{ Dir string }
	err = json.Unmarshal([]byte(out), &downloaded)
	return downloaded.Dir, err
}

// goMod is what this program reads from go mod edit -json.
type goMod struct {
	Replace []struct {
		Old, New struct{ Path string }
	}
	Tool []struct{ Path string }
}

// writeModule writes the module that requires the release, unless it exists. It requires the versions of the release's
// own go.mod and go.sum, and replaces local folders of the release by their published modules.
func (r release) writeModule(ctx context.Context) error {
	if _, err := os.Stat(r.dir); err == nil {
		return nil
	}
	from, err := r.sources(ctx)
	if err != nil {
		return err
	}
	if err := os.MkdirAll(filepath.Dir(r.dir), 0o755); err != nil {
		return err
	}
	work, err := os.MkdirTemp(filepath.Dir(r.dir), "making-")
	if err != nil {
		return err
	}
	defer os.RemoveAll(work)
	for _, name := range []string{"go.mod", "go.sum"} {
		data, err := os.ReadFile(filepath.Join(from, name))
		if err := errors.Join(err, os.WriteFile(filepath.Join(work, name), data, 0o644)); err != nil {
			return err
		}
	}
	if err := r.edit(ctx, work); err != nil {
		return err
	}
	return keep(work, r.dir)
}

// edit makes a copy of the release's go.mod that of a module which requires the release.
func (r release) edit(ctx context.Context, dir string) error {
	out, err := output(ctx, dir, "go", "mod", "edit", "-json")
	if err != nil {
		return err
	}
	var mod goMod
	if err := json.Unmarshal([]byte(out), &mod); err != nil {
		return err
	}
	args := []string{"mod", "edit", "-module=fairlead.dev/parts", "-require=" + r.path + "@" + r.version}
	for _, one := range mod.Replace {
		if strings.HasPrefix(one.New.Path, "./") {
			args = append(args, "-replace="+one.Old.Path+"="+one.Old.Path+"@"+r.nested())
		}
	}
	for _, tool := range mod.Tool {
		args = append(args, "-droptool="+tool.Path)
	}
	_, err = output(ctx, dir, "go", args...)
	return err
}

// nested is the version of modules that are published together with the release: Kubernetes publishes its libraries as
// v0.
func (r release) nested() string {
	if rest, ok := strings.CutPrefix(r.version, "v1."); ok && r.path == kubernetes {
		return "v0." + rest
	}
	return r.version
}

// versions are the ones of parts that are not the pinned ones, by the names of the parts. It is a flag.Value.
type versions map[string]string

// String implements flag.Value.
func (v versions) String() string { return fmt.Sprint(map[string]string(v)) }

// Set implements flag.Value.
func (v versions) Set(text string) error {
	name, version, ok := strings.Cut(text, "=")
	if !ok || name == "" || !strings.HasPrefix(version, "v") || !fs.ValidPath(version) || strings.Contains(version, "/") {
		return fmt.Errorf("%q is not PART=VERSION, such as kube-apiserver=v1.33.13", text)
	}
	v[name] = version
	return nil
}

// replace returns parts in which the ones of v have the versions of v. Parts of one module and version are built
// together.
func (v versions) replace(wanted []part, cache string) ([]part, error) {
	others := map[string][]part{} // by version
	replaced := slices.Clone(wanted)
	for name, version := range v {
		if others[version] == nil {
			others[version] = partsAt(version, cache)
		}
		at := slices.IndexFunc(replaced, func(p part) bool { return p.name == name })
		other := slices.IndexFunc(others[version], func(p part) bool { return p.name == name && p.released() })
		if at < 0 || other < 0 {
			return nil, fmt.Errorf("part %q is not one of the requested parts of Kubernetes and Cluster API", name)
		}
		// The name has the version, which determines everything; a program on the machine has the pinned version.
		replaced[at] = others[version][other]
		replaced[at].name, replaced[at].from, replaced[at].check = name+"-"+version, nil, nil
	}
	return replaced, nil
}

// partsAt returns the parts of Kubernetes and of Cluster API in a version.
func partsAt(version, cache string) []part {
	at := func(path, name string) release {
		return release{path: path, dir: filepath.Join(cache, "modules", name+"-"+version), version: version}
	}
	return append(kubernetesParts(at(kubernetes, "kubernetes")), clusterAPIParts(at(clusterAPI, "cluster-api"))...)
}

// released reports whether all programs of a part belong to Kubernetes or Cluster API.
func (p part) released() bool {
	return !slices.ContainsFunc(p.programs, func(one program) bool {
		return !strings.HasPrefix(one.pkg, kubernetes+"/") && !strings.HasPrefix(one.pkg, clusterAPI)
	})
}
