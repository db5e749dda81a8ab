package main

import (
	"bufio"
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/ulikunitz/xz"
)

// suites are where Debian publishes packages of its release 13: by archive, in the order of their names.
var suites = map[string]string{"debian": "trixie", "debian-security": "trixie-security"}

// keyring is in Debian's package debian-archive-keyring.
const keyring = "/usr/share/keyrings/debian-archive-keyring.gpg"

const mostIndex = 64 << 20

// updatePackages pins the newest version of each package that the file pins. It requires Debian: gpgv verifies the
// signature of each suite, and dpkg compares versions. The signature covers the index of packages, which has the
// hashes.
func updatePackages(ctx context.Context, path string, out io.Writer) error {
	old, err := readPackages(path)
	if err != nil {
		return err
	}
	found := map[string][]pin{} // by architecture and name
	for archive, suite := range suites {
		sums, err := releaseOf(ctx, archive, suite)
		if err != nil {
			return fmt.Errorf("suite %s: %w", suite, err)
		}
		for _, arch := range architectures {
			if err := addIndex(ctx, archive, suite, arch, sums, found); err != nil {
				return fmt.Errorf("suite %s, %s: %w", suite, arch, err)
			}
		}
	}
	next := pins{snapshot: time.Now().UTC().Format("20060102T150405Z")}
	changed := false
	for _, one := range old.all {
		newest, err := newestOf(ctx, found[one.arch+" "+one.name])
		if err != nil {
			return fmt.Errorf("%s of %s: %w", one.name, one.arch, err)
		}
		if newest != one {
			changed = true
			fmt.Fprintf(out, "images: %s of %s: %s, before %s\n", one.name, one.arch, newest.version, one.version)
		}
		next.all = append(next.all, newest)
	}
	if !changed {
		fmt.Fprintln(out, "images: the pinned packages are current")
		return nil
	}
	return writeFile(path, next.text())
}

func (p pins) text() []byte {
	var b bytes.Buffer
	b.WriteString("# Debian's packages in the images, pinned by SHA-256; `make update-image-packages` writes them.\n" +
		"# architecture package version archive path size sha256\nsnapshot " + p.snapshot + "\n")
	for _, one := range p.all {
		fmt.Fprintln(&b, one.arch, one.name, one.version, one.archive, one.path, one.size, one.sha256)
	}
	return b.Bytes()
}

// releaseOf returns the SHA-256 sums that the signed file of a suite lists, by path.
func releaseOf(ctx context.Context, archive, suite string) (map[string]string, error) {
	signed, err := download(ctx, mirrored(archive, "dists/"+suite+"/InRelease"), mostIndex)
	if err != nil {
		return nil, err
	}
	dir, err := os.MkdirTemp("", "release-")
	if err != nil {
		return nil, err
	}
	defer os.RemoveAll(dir)
	in, verified := filepath.Join(dir, "InRelease"), filepath.Join(dir, "Release")
	if err := writeFile(in, signed); err != nil {
		return nil, err
	}
	if _, err := command(ctx, dir, nil, "gpgv", "--keyring", keyring, "--output", verified, in); err != nil {
		return nil, err
	}
	text, err := os.ReadFile(verified)
	if err != nil {
		return nil, err
	}
	sums := map[string]string{}
	_, list, ok := strings.Cut(string(text), "\nSHA256:\n")
	if !ok {
		return nil, errors.New("it lists no SHA-256")
	}
	for _, line := range strings.Split(list, "\n") {
		fields := strings.Fields(line)
		if !strings.HasPrefix(line, " ") || len(fields) != 3 {
			break
		}
		sums[fields[2]] = fields[0]
	}
	return sums, nil
}

func mirrored(archive, path string) string {
	return pins{}.places(pin{archive: archive, path: path})[0]
}

// addIndex adds the packages of one index.
func addIndex(
	ctx context.Context, archive, suite, arch string, sums map[string]string, found map[string][]pin,
) error {
	path := "main/binary-" + arch + "/Packages.xz"
	packed, err := download(ctx, mirrored(archive, "dists/"+suite+"/"+path), mostIndex)
	if err != nil {
		return err
	}
	if sum := sha256.Sum256(packed); hex.EncodeToString(sum[:]) != sums[path] {
		return fmt.Errorf("the SHA-256 of %s is %x, and the suite lists %q", path, sum, sums[path])
	}
	unpacked, err := xz.NewReader(bytes.NewReader(packed))
	if err != nil {
		return err
	}
	lines := bufio.NewScanner(unpacked)
	lines.Buffer(nil, 1<<20)
	fields := map[string]string{}
	for lines.Scan() {
		key, value, ok := strings.Cut(lines.Text(), ": ")
		switch {
		case lines.Text() == "":
			addPackage(archive, arch, fields, found)
			clear(fields)
		case ok && !strings.HasPrefix(key, " "):
			fields[key] = value
		}
	}
	addPackage(archive, arch, fields, found)
	return lines.Err()
}

func addPackage(archive, arch string, fields map[string]string, found map[string][]pin) {
	size, err := strconv.ParseInt(fields["Size"], 10, 64)
	if err != nil {
		return // of another kind than a package
	}
	key := arch + " " + fields["Package"]
	found[key] = append(found[key], pin{
		arch, fields["Package"], fields["Version"], archive, fields["Filename"], size, fields["SHA256"],
	})
}

// newestOf returns the newest version by dpkg's order.
func newestOf(ctx context.Context, all []pin) (pin, error) {
	if len(all) == 0 {
		return pin{}, errors.New("no suite has it")
	}
	all = slices.Clone(all)
	slices.SortFunc(all, func(a, b pin) int { return strings.Compare(a.archive, b.archive) })
	newest := all[0]
	for _, one := range all[1:] {
		_, err := command(ctx, ".", nil, "dpkg", "--compare-versions", one.version, "gt", newest.version)
		if err == nil {
			newest = one
		} else if ctx.Err() != nil {
			return pin{}, err
		}
	}
	return newest, nil
}
