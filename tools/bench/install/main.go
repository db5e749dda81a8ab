// Command install puts the programs with which Fairlead is compared into bin/peers. It builds rancher/remotedialer and
// konnectivity from their Go modules, and rathole with cargo. It takes HAProxy and OpenSSH's server from the machine,
// or unpacks them from Debian's packages without installing them. It reports programs that are not available, and
// benchmarks skip them.
//
// wstunnel is missing: cargo found no crate of that name, and no other source can be pinned and built here.
//
//	cd tools/bench && go run ./install [PROGRAM ...]
//
// Without a name it makes all of them.
package main

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
)

// peer is one program, and how to make it if it is missing. Go builds its programs again, which is fast, so that a
// changed version takes effect.
type peer struct {
	name string
	make func(to string) error
	isGo bool
}

func main() {
	to, err := filepath.Abs(filepath.Join("..", "..", "bin", "peers"))
	if err == nil {
		err = os.MkdirAll(to, 0o755)
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, "install:", err)
		os.Exit(1)
	}
	selected, err := choose(os.Args[1:])
	if err != nil {
		fmt.Fprintln(os.Stderr, "install:", err)
		os.Exit(2)
	}
	for _, p := range selected {
		path := filepath.Join(to, p.name)
		if _, err := os.Stat(path); err == nil && !p.isGo {
			continue
		}
		fmt.Fprintln(os.Stderr, "installing", p.name)
		if err := p.make(path); err != nil {
			fmt.Fprintf(os.Stderr, "left out: %s: %v\n", p.name, err)
		}
	}
}

const konnectivity = "sigs.k8s.io/apiserver-network-proxy/cmd/"

var peers = []peer{
	{"remotedialer", goBuild("./remotedialer"), true},
	{"konnectivity-server", goBuild(konnectivity + "server"), true},
	{"konnectivity-agent", goBuild(konnectivity + "agent"), true},
	{"rathole", rathole, false},
	{
		"haproxy",
		debian("/usr/sbin/haproxy", "haproxy", "liblua5.3-0", "libopentracing-c-wrapper0", "libopentracing1"), false,
	},
	{"sshd", debian("/usr/sbin/sshd", "openssh-server", "libwrap0"), false},
}

// choose returns the named peers. No name stands for all of them.
func choose(names []string) ([]peer, error) {
	if len(names) == 0 {
		return peers, nil
	}
	var chosen []peer
	for _, name := range names {
		i := slices.IndexFunc(peers, func(p peer) bool { return p.name == name })
		if i < 0 {
			return nil, fmt.Errorf("unknown program %q", name)
		}
		chosen = append(chosen, peers[i])
	}
	return chosen, nil
}

// goBuild builds a program without C, so that it also runs in an image without libraries.
func goBuild(what string) func(string) error {
	return func(to string) error {
		return run("", "env", "CGO_ENABLED=0", "go", "build", "-trimpath", "-o", to, what)
	}
}

// rathole builds rathole with the dependencies that are pinned in the folder of the same name.
func rathole(to string) error {
	target := to + ".build"
	if err := run("rathole", "cargo", "build", "--release", "--locked", "--target-dir", target); err != nil {
		return err
	}
	if err := os.Rename(filepath.Join(target, "release", "rathole"), to); err != nil {
		return err
	}
	return os.RemoveAll(target)
}

// debian links a program of the machine, or unpacks it from Debian's packages together with its libraries.
func debian(program string, packages ...string) func(string) error {
	return func(to string) error {
		if _, err := os.Stat(program); err == nil {
			return os.Symlink(program, to)
		}
		root := to + ".root"
		if err := os.MkdirAll(root, 0o755); err != nil {
			return err
		}
		if err := run(root, "apt-get", append([]string{"download", "-q"}, packages...)...); err != nil {
			return fmt.Errorf("%w (apt-get update may help)", err)
		}
		archives, err := filepath.Glob(filepath.Join(root, "*.deb"))
		if err != nil {
			return err
		}
		for _, a := range archives {
			if err := run("", "dpkg-deb", "--extract", a, root); err != nil {
				return err
			}
		}
		libraries, err := filepath.Glob(filepath.Join(root, "usr", "lib", "*-linux-gnu*"))
		if err != nil {
			return err
		}
		script := fmt.Sprintf(
			"#!/bin/sh\nLD_LIBRARY_PATH='%s' exec '%s' \"$@\"\n", strings.Join(libraries, ":"), root+program,
		)
		return os.WriteFile(to, []byte(script), 0o755)
	}
}

func run(dir, name string, args ...string) error {
	cmd := exec.Command(name, args...)
	cmd.Dir, cmd.Stdout, cmd.Stderr = dir, os.Stderr, os.Stderr
	return cmd.Run()
}
