package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"
)

// containersParts are what a node needs besides Kubernetes: containerd, runc, the CNI plugins and the program of a
// Pod's sandbox.
func containersParts(module string) []part {
	const containerd = "github.com/containerd/containerd/v2/cmd/"
	const plugins = "github.com/containernetworking/plugins/plugins/"
	from := stripped(module)
	from.tags = "no_btrfs,no_zfs,no_devmapper,no_aufs" // snapshotters that need C libraries or that no node uses
	one := func(name string, alone, added time.Duration, packages ...string) part {
		p := part{name: name, from: modFiles(module), alone: alone, added: added, source: from}
		for _, pkg := range packages {
			p.files = append(p.files, executable(pkg))
			p.programs = append(p.programs, program{pkg, executable(pkg)})
		}
		return p
	}
	pause := one("pause", 10*time.Second, 2*time.Second, "./pause")
	pause.from = append(pause.from, filepath.Join(module, "pause"))
	return []part{
		one("containerd", 2*time.Minute, 90*time.Second,
			containerd+"containerd", containerd+"containerd-shim-runc-v2", containerd+"ctr"),
		one("cni", 40*time.Second, 20*time.Second,
			plugins+"main/bridge", plugins+"main/loopback", plugins+"ipam/host-local", plugins+"meta/portmap"),
		pause,
		runc(module),
		nft(),
	}
}

// runc is built with seccomp, for which it needs C and the static library of libseccomp.
func runc(module string) part {
	return part{
		name: "runc", files: []string{"runc"}, from: modFiles(module), alone: 30 * time.Second,
		make: func(ctx context.Context, dir string) error {
			libraries, err := unpackDebian(ctx, dir, "libseccomp-dev")
			if err != nil {
				return err
			}
			defer os.RemoveAll(libraries)
			config := filepath.Join(libraries, "pkg-config")
			if err := os.WriteFile(config, []byte(pkgConfig(libraries)), 0o755); err != nil {
				return err
			}
			in := pinned(module)
			in.env = append(in.env, "CGO_ENABLED=1", "PKG_CONFIG="+config)
			said, err := in.command(ctx, "go", "build", "-trimpath", "-tags=seccomp,netgo,osusergo",
				"-ldflags=-s -w -extldflags=-static", "-o", filepath.Join(dir, "runc"),
				"github.com/opencontainers/runc").CombinedOutput()
			if err != nil {
				return fmt.Errorf("go build: %w\n%s", err, said)
			}
			return nil
		},
	}
}

// pkgConfig returns a program in place of pkg-config, which prints where an unpacked libseccomp is.
func pkgConfig(root string) string {
	return fmt.Sprintf(`#!/bin/sh
case "$*" in
*--cflags*) echo "-I%[1]s/usr/include" ;;
*--libs*) for dir in "%[1]s"/usr/lib/*-linux-gnu* "%[1]s"/usr/lib; do echo "-L$dir"; done; echo -lseccomp ;;
esac
`, root)
}

// nftPackages are nft and the libraries that it links, except those that every Debian has.
var nftPackages = []string{
	"nftables", "libnftables1", "libnftnl11", "libmnl0", "libjansson4", "libxtables12", "libedit2", "libbsd0", "libmd0",
	"libgmp10", "libtinfo6",
}

// nft is Debian's program, unpacked beside its libraries and not installed. kube-proxy and the CNI plugin portmap run
// it. Debian has one version at a time, and apt checks its signature, so it has no other pin. An nft of the machine is
// used if there is one.
func nft() part {
	p := part{name: "nft", files: []string{"nft"}, alone: 5 * time.Second, make: unpackNFT}
	p.check = &check{args: []string{"--version"}, any: true}
	return p
}

func unpackNFT(ctx context.Context, dir string) error {
	unpacked, err := unpackDebian(ctx, dir, nftPackages...)
	if err != nil {
		return err
	}
	if err := os.Rename(unpacked, filepath.Join(dir, "root")); err != nil {
		return err
	}
	start := `#!/bin/sh
root=$(dirname "$(readlink -f "$0")")/root
for dir in "$root"/usr/lib/*-linux-gnu* "$root"/lib/*-linux-gnu*; do path=$path:$dir; done
LD_LIBRARY_PATH=${path#:} exec "$root/usr/sbin/nft" "$@"
`
	if err := os.WriteFile(filepath.Join(dir, "nft"), []byte(start), 0o755); err != nil {
		return err
	}
	_, err = output(ctx, dir, filepath.Join(dir, "nft"), "--version")
	return err
}

// errNoDebian reports that a package cannot be downloaded because this is another system.
var errNoDebian = errors.New("it needs apt-get and dpkg-deb, of Debian or Ubuntu")

// downloadDebian downloads packages into a folder. If the machine's lists of packages are missing or old, it reads new
// ones into the folder, so that it changes nothing else.
func downloadDebian(ctx context.Context, dir string, packages []string) error {
	options := []string{"-qq", "-o", "APT::Sandbox::User=root"}
	download := append([]string{"download"}, packages...)
	if _, err := output(ctx, dir, "apt-get", slices.Concat(options, download)...); err == nil {
		return nil
	}
	lists := filepath.Join(dir, "lists")
	if err := os.MkdirAll(filepath.Join(lists, "partial"), 0o755); err != nil {
		return err
	}
	options = append(options, "-o", "Dir::State::Lists="+lists)
	if _, err := output(ctx, dir, "apt-get", append(options, "update")...); err != nil {
		return err
	}
	_, err := output(ctx, dir, "apt-get", slices.Concat(options, download)...)
	return err
}

// unpackDebian downloads Debian's packages, unpacks them into one new folder of dir and returns it. It installs
// nothing.
func unpackDebian(ctx context.Context, dir string, packages ...string) (string, error) {
	downloads, err := os.MkdirTemp(dir, "download-")
	if err != nil {
		return "", err
	}
	defer os.RemoveAll(downloads)
	if err := downloadDebian(ctx, downloads, packages); err != nil {
		return "", fmt.Errorf("downloading %s: %w; %w", strings.Join(packages, ", "), err, errNoDebian)
	}
	found, err := filepath.Glob(filepath.Join(downloads, "*.deb"))
	if err != nil {
		return "", err
	}
	unpacked, err := os.MkdirTemp(dir, "root-")
	if err != nil {
		return "", err
	}
	for _, file := range found {
		if _, err := output(ctx, dir, "dpkg-deb", "--extract", file, unpacked); err != nil {
			return "", errors.Join(err, os.RemoveAll(unpacked))
		}
	}
	return unpacked, nil
}
