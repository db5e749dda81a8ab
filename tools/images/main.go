// Command images builds Fairlead's container images for linux/amd64 and linux/arm64, without a container runtime.
//
//	go run . [-root DIR] [-out DIR] [-version vX.Y.Z] [-arch amd64,arm64] [-registry HOST/PATH] [-reuse]
//	go run . -push-only -registry HOST/PATH
//	go run . -update-packages
//
// Input: the commit that is checked out, the wheels of Envoy (deploy/envoy/requirements.txt) and packages of Debian
// (packages.txt), each pinned by SHA-256. Output: an OCI layout for each image, an SPDX document for each image and
// platform, and the file digests. With a registry it pushes them there.
//
// The same commit, version and Go release give the same bytes: the programs contain no path and no time of the build
// (-trimpath, -buildvcs=false), and every time in an image is that of the commit. It does not know how the images are
// run.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"os/signal"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"time"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	os.Exit(run(ctx, os.Args[1:], os.Stdout, os.Stderr))
}

// options are the command line.
type options struct {
	root     string // of the repository
	out      string // folder of the layouts
	cache    string // folder of downloads
	registry string // where to push; empty: nowhere
	release  release
	arches   []string // of the images to build
	pushOnly bool
	reuse    bool // keep images whose input has not changed
	update   bool
}

// longest bounds a run: compiling six programs for two platforms on a slow machine, and pushing 400 MB.
const longest = 3 * time.Hour

func run(ctx context.Context, args []string, stdout, stderr io.Writer) int {
	ctx, cancel := context.WithTimeout(ctx, longest)
	defer cancel()
	o, err := parse(args, stderr)
	if err != nil {
		return 2
	}
	if err := o.run(ctx, stdout); err != nil {
		fmt.Fprintln(stderr, "images:", err)
		return 1
	}
	return 0
}

func parse(args []string, stderr io.Writer) (o options, err error) {
	flags := flag.NewFlagSet("images", flag.ContinueOnError)
	flags.SetOutput(stderr)
	flags.StringVar(&o.root, "root", "../..", "root of the repository")
	flags.StringVar(&o.out, "out", "", "folder of the layouts (default: bin/images of the repository)")
	flags.StringVar(&o.cache, "cache", defaultCache(), "folder that keeps downloads between runs and clones")
	flags.StringVar(&o.registry, "registry", "", "push to this registry, such as registry.example.com/fairlead")
	flags.StringVar(&o.release.version, "version", "", "version of the images, and their tag (default: of the commit)")
	flags.StringVar(&o.release.commit, "commit", "", "commit, where the sources are no clone")
	flags.Int64Var(&o.release.time, "time", 0, "time of the commit in seconds since 1970, where the sources are no clone")
	o.arches = architectures
	flags.Func("arch", "build only for these architectures, such as amd64 (default: all)", o.setArches)
	flags.BoolVar(&o.pushOnly, "push-only", false, "push the layouts that are there, and build nothing")
	flags.BoolVar(&o.reuse, "reuse", false, "keep the programs beside the layouts, and the layouts if nothing has changed")
	flags.BoolVar(&o.update, "update-packages", false, "pin the current versions of Debian's packages, and end")
	if err := flags.Parse(args); err != nil {
		return options{}, err
	}
	if flags.NArg() > 0 {
		fmt.Fprintln(stderr, "images: unexpected argument", flags.Arg(0))
		return options{}, errors.New("unexpected argument")
	}
	return o, nil
}

// setArches sets the architectures from a list with commas.
func (o *options) setArches(list string) error {
	o.arches = strings.Split(list, ",")
	for _, arch := range o.arches {
		if !slices.Contains(architectures, arch) {
			return fmt.Errorf("must be of %s", strings.Join(architectures, ","))
		}
	}
	return nil
}

// defaultCache returns the folder beside the cache of real parts.
func defaultCache() string {
	if dir := os.Getenv("FAIRLEAD_CACHE"); dir != "" {
		return filepath.Join(dir, "images")
	}
	dir, err := os.UserCacheDir()
	if err != nil {
		dir = os.TempDir()
	}
	return filepath.Join(dir, "fairlead", "images")
}

func (o options) run(ctx context.Context, out io.Writer) error {
	var err error
	if o.root, err = filepath.Abs(o.root); err != nil {
		return err
	}
	if o.out == "" {
		o.out = filepath.Join(o.root, "bin", "images")
	}
	switch {
	case o.update:
		return updatePackages(ctx, filepath.Join(o.root, "tools", "images", packagesFile), out)
	case o.pushOnly && o.registry == "":
		return errors.New("-push-only: name a registry with -registry")
	case !o.pushOnly:
		if err := o.build(ctx, out); err != nil {
			return err
		}
	}
	if o.registry == "" {
		return nil
	}
	return push(ctx, o.out, o.registry, out)
}

// build builds every image into a new folder, and then replaces the previous one, so that an interrupted build leaves
// the previous images.
func (o options) build(ctx context.Context, out io.Writer) error {
	r, err := o.release.complete(ctx, o.root)
	if err != nil {
		return err
	}
	fmt.Fprintf(out, "images: %s of commit %s\n", r.version, r.commit)
	if err := errors.Join(os.MkdirAll(filepath.Dir(o.out), 0o755), os.MkdirAll(o.cache, 0o755)); err != nil {
		return err
	}
	work, err := os.MkdirTemp(filepath.Dir(o.out), "images-")
	if err != nil {
		return err
	}
	defer os.RemoveAll(work)
	programs := filepath.Join(work, "programs")
	if o.reuse {
		programs = o.out + "-programs"
	}
	for _, arch := range o.arches {
		fmt.Fprintf(out, "images: building the programs for %s\n", arch)
		if err := r.compile(ctx, o.root, filepath.Join(programs, arch), arch); err != nil {
			return err
		}
	}
	inputs := ""
	if o.reuse {
		if inputs, err = o.inputs(r, programs); err != nil {
			return err
		}
		if o.current(inputs) {
			fmt.Fprintf(out, "images: nothing has changed since %s was written\n", o.out)
			return nil
		}
	}
	m, err := o.gather(ctx, r, programs)
	if err != nil {
		return err
	}
	return o.replace(m, filepath.Join(work, "made"), inputs, out)
}

// replace writes the images to a new folder, which then replaces the previous one.
func (o options) replace(m *maker, made, inputs string, out io.Writer) error {
	if err := m.writeAll(made, out); err != nil {
		return err
	}
	if inputs != "" {
		if err := writeFile(filepath.Join(made, inputsFile), []byte(inputs)); err != nil {
			return err
		}
	}
	if err := os.Chmod(made, 0o755); err != nil {
		return err
	}
	if err := os.RemoveAll(o.out); err != nil {
		return err
	}
	return os.Rename(made, o.out)
}

// gather downloads what is pinned.
func (o options) gather(ctx context.Context, r release, programs string) (*maker, error) {
	m := &maker{release: r, programs: programs, arches: o.arches, bases: map[string]base{}, envoys: map[string]envoy{}}
	pinned, err := readPackages(filepath.Join(o.root, "tools", "images", packagesFile))
	if err != nil {
		return nil, err
	}
	for _, arch := range o.arches {
		debs, err := fetchAll(ctx, pinned, arch, o.cache)
		if err != nil {
			return nil, err
		}
		if m.bases[arch], err = newBase(debs, arch); err != nil {
			return nil, err
		}
		if m.envoys[arch], err = fetchEnvoy(ctx, o.root, arch, o.cache); err != nil {
			return nil, err
		}
	}
	return m, nil
}
