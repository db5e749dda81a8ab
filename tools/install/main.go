// Command install puts the real parts with which Fairlead runs and is tested into bin/: the official Envoy, and
// programs of Kubernetes, Cluster API, CoreDNS and Prometheus that it builds from their Go modules.
//
//	go run . [-root DIR] [-bin DIR] [-at PART=VERSION] [-n] [-build PACKAGE,...] [SET|PART ...]
//
// Without a name it installs every part; sets.go lists the sets. It prints the plan and its duration before it begins,
// and its progress. With -n it only prints the plan. With -at, which may be repeated, a part of Kubernetes or of
// Cluster API has another version than the pinned one (release.go).
//
// Each part is stored in a cache outside of the repository, under a hash of everything from which it is made. A second
// run, also in another clone, only sets a link. A program of exactly the pinned version that is already on the machine
// is used instead (found.go). Parts of the same Go module are built by one go build (build.go).
package main

import (
	"cmp"
	"context"
	"flag"
	"fmt"
	"io"
	"os"
	"os/signal"
	"path/filepath"
	"strings"
	"syscall"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	os.Exit(run(ctx, os.Args[1:], os.Stderr))
}

// options are the command line.
type options struct {
	root   string   // of the repository
	bin    string   // folder of the links; by default bin of the repository
	cache  string   // folder of the cache
	at     versions // that are not the pinned ones
	names  []string // of sets and parts; empty: everything
	own    []string // packages of the product's module to build into bin after the parts
	dryRun bool
}

func run(ctx context.Context, args []string, stderr io.Writer) int {
	flags := flag.NewFlagSet("install", flag.ContinueOnError)
	flags.SetOutput(stderr)
	o := options{at: versions{}}
	flags.StringVar(&o.root, "root", "../..", "root of the repository")
	flags.StringVar(&o.cache, "cache", defaultCache(), "folder that keeps built parts between runs and clones")
	flags.StringVar(&o.bin, "bin", "", "folder that gets the links (default bin of the repository)")
	flags.Var(o.at, "at", "PART=VERSION: install another version of a part of Kubernetes or Cluster API")
	flags.BoolVar(&o.dryRun, "n", false, "print the plan and end")
	own := flags.String("build", "", "packages of Fairlead to build into bin/ as the last step, separated by commas")
	if err := flags.Parse(args); err != nil {
		return 2
	}
	o.names = flags.Args()
	if *own != "" {
		o.own = strings.Split(*own, ",")
	}
	if err := install(ctx, o, stderr); err != nil {
		fmt.Fprintln(stderr, "install:", err)
		return 1
	}
	return 0
}

// defaultCache returns $FAIRLEAD_CACHE, or a folder of the user's cache directory.
func defaultCache() string {
	if dir := os.Getenv("FAIRLEAD_CACHE"); dir != "" {
		return dir
	}
	dir, err := os.UserCacheDir()
	if err != nil {
		dir = os.TempDir()
	}
	return filepath.Join(dir, "fairlead", "parts")
}

func install(ctx context.Context, o options, out io.Writer) error {
	var err error
	if o.root, err = filepath.Abs(o.root); err != nil {
		return err
	}
	browser, rest := takeChromium(o.names)
	var wanted []part
	if len(rest) > 0 || len(o.names) == 0 {
		if wanted, err = choose(parts(o.root), rest); err != nil {
			return err
		}
	}
	if wanted, err = o.at.replace(wanted, o.cache); err != nil {
		return err
	}
	return installParts(ctx, o, wanted, browser, out)
}

// installParts installs the requested parts, and the browser if it is requested.
func installParts(ctx context.Context, o options, wanted []part, browser browserWish, out io.Writer) error {
	bin := cmp.Or(o.bin, filepath.Join(o.root, "bin"))
	for _, dir := range []string{bin, o.cache} {
		if err := os.MkdirAll(dir, 0o755); err != nil {
			return err
		}
	}
	p, err := newPlan(ctx, o, wanted, browser)
	if err != nil {
		return err
	}
	unlock := func() {}
	if p.installs() && !o.dryRun {
		if unlock, err = lock(ctx, filepath.Join(o.cache, "lock"), out); err != nil {
			return err
		}
		if p, err = newPlan(ctx, o, wanted, browser); err != nil { // another run may have installed something
			unlock()
			return err
		}
	}
	defer unlock()
	p.describe(out)
	if o.dryRun {
		return nil
	}
	progress := newProgress(out, len(p.steps))
	for _, s := range p.steps {
		if s.own {
			unlock() // go build has its own lock
		}
		if err := progress.step(ctx, s); err != nil {
			return err
		}
	}
	return p.link(bin)
}
