// Command install puts the real parts that Fairlead runs with and is tested with into bin/: the official Envoy, and
// kube-apiserver, kube-controller-manager, etcd, kubectl, kubeadm, clusterctl, Cluster API's managers, its AWS provider's way with
// kubeconfigs, the stand-ins for a kubelet and for a machine, grpcurl, and Prometheus, built from their Go modules; kubeadm and kube-apiserver also with
// the number of the next release.
//
//	go run . [-root DIR] [PART ...]     without a PART: all of them
//
// Each part is kept in a cache outside of the tree under a hash of everything that it is made from, so that a second
// run, also in another clone, only sets a link. The browser for the tests of the status page is Debian's package chromium, and is installed
// as such (part chromium).
package main

import (
	"context"
	"flag"
	"fmt"
	"io"
	"os"
	"os/signal"
	"path/filepath"
	"strings"
	"syscall"
	"time"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	os.Exit(run(ctx, os.Args[1:], os.Stderr))
}

func run(ctx context.Context, args []string, stderr io.Writer) int {
	flags := flag.NewFlagSet("install", flag.ContinueOnError)
	flags.SetOutput(stderr)
	root := flags.String("root", "../..", "root of the repository")
	cache := flags.String("cache", defaultCache(), "folder that keeps built parts between runs and clones")
	if err := flags.Parse(args); err != nil {
		return 2
	}
	if err := install(ctx, *root, *cache, flags.Args(), stderr); err != nil {
		fmt.Fprintln(stderr, "install:", err)
		return 1
	}
	return 0
}

// defaultCache is $FAIRLEAD_CACHE, else a folder of the user's cache directory.
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

func install(ctx context.Context, root, cache string, names []string, out io.Writer) error {
	root, err := filepath.Abs(root)
	if err != nil {
		return err
	}
	browser, rest := takeChromium(names)
	var wanted []part
	if len(rest) > 0 || len(names) == 0 {
		if wanted, err = choose(parts(root), rest); err != nil {
			return err
		}
	}
	bin := filepath.Join(root, "bin")
	if err := os.MkdirAll(bin, 0o755); err != nil {
		return err
	}
	if err := os.MkdirAll(cache, 0o755); err != nil {
		return err
	}
	unlock, err := lock(filepath.Join(cache, "lock"))
	if err != nil {
		return err
	}
	defer unlock()
	if browser {
		if err := installChromium(ctx, len(names) > 0, out); err != nil {
			return fmt.Errorf("installing %s: %w", chromiumPart, err)
		}
	}
	for _, p := range wanted {
		if err := one(ctx, p, cache, bin, out); err != nil {
			return fmt.Errorf("installing %s: %w", p.name, err)
		}
	}
	return nil
}

// choose returns the named parts, or all where no name is given.
func choose(all []part, names []string) ([]part, error) {
	if len(names) == 0 {
		return all, nil
	}
	var known []string
	byName := map[string]part{}
	for _, p := range all {
		byName[p.name] = p
		known = append(known, p.name)
	}
	var wanted []part
	for _, name := range names {
		p, ok := byName[name]
		if !ok {
			return nil, fmt.Errorf("unknown part %q: want one of %s", name, strings.Join(known, ", "))
		}
		wanted = append(wanted, p)
	}
	return wanted, nil
}

// one makes a part unless the cache has it, and links it into bin.
func one(ctx context.Context, p part, cache, bin string, out io.Writer) error {
	key, err := p.key(ctx)
	if err != nil {
		return err
	}
	kept := filepath.Join(cache, p.name+"-"+key)
	if _, err := os.Stat(kept); err != nil {
		fmt.Fprintf(out, "%s: making it, about %s the first time\n", p.name, p.cold)
		if err := makePart(ctx, p, kept, out); err != nil {
			return err
		}
	}
	for _, file := range p.files {
		link := filepath.Join(bin, file)
		if err := os.RemoveAll(link); err != nil {
			return err
		}
		if err := os.Symlink(filepath.Join(kept, file), link); err != nil {
			return err
		}
	}
	fmt.Fprintf(out, "%s: ready\n", p.name)
	return nil
}

// makePart builds into a folder beside kept and renames it, so that an interrupted build leaves nothing that looks whole.
func makePart(ctx context.Context, p part, kept string, out io.Writer) error {
	work, err := os.MkdirTemp(filepath.Dir(kept), "making-")
	if err != nil {
		return err
	}
	defer os.RemoveAll(work)
	start := time.Now()
	done := make(chan struct{})
	go func() {
		tick := time.NewTicker(20 * time.Second)
		defer tick.Stop()
		for {
			select {
			case <-done:
				return
			case <-tick.C:
				fmt.Fprintf(out, "%s: still at it after %s\n", p.name, time.Since(start).Round(time.Second))
			}
		}
	}()
	err = p.make(ctx, work)
	close(done)
	if err != nil {
		return err
	}
	if err := os.Chmod(work, 0o755); err != nil {
		return err
	}
	fmt.Fprintf(out, "%s: made in %s\n", p.name, time.Since(start).Round(time.Second))
	return os.Rename(work, kept)
}

// lock takes an exclusive lock on a file, so that two runs do not build the same part twice.
func lock(path string) (unlock func(), err error) {
	f, err := os.OpenFile(path, os.O_CREATE|os.O_RDWR, 0o644)
	if err != nil {
		return nil, err
	}
	if err := syscall.Flock(int(f.Fd()), syscall.LOCK_EX); err != nil {
		f.Close()
		return nil, err
	}
	return func() { f.Close() }, nil
}
