package main

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"
)

// packagesFile pins the packages, in the folder of this program.
const packagesFile = "packages.txt"

// A pin identifies one package of Debian.
type pin struct {
	arch, name, version string
	archive, path       string // debian or debian-security, and the path in it
	size                int64
	sha256              string
}

// pins are the packages of all images, and the time of a snapshot that has all of them.
type pins struct {
	snapshot string
	all      []pin
}

func readPackages(file string) (pins, error) {
	data, err := os.ReadFile(file)
	if err != nil {
		return pins{}, err
	}
	var p pins
	for n, line := range strings.Split(string(data), "\n") {
		fields := strings.Fields(line)
		switch {
		case len(fields) == 0 || strings.HasPrefix(line, "#"):
		case len(fields) == 2 && fields[0] == "snapshot":
			p.snapshot = fields[1]
		case len(fields) == 7:
			size, err := strconv.ParseInt(fields[5], 10, 64)
			if sum, errSum := hex.DecodeString(fields[6]); err != nil || errSum != nil || len(sum) != sha256.Size {
				return pins{}, fmt.Errorf("%s:%d: no size and SHA-256", file, n+1)
			}
			p.all = append(p.all, pin{fields[0], fields[1], fields[2], fields[3], fields[4], size, fields[6]})
		default:
			return pins{}, fmt.Errorf("%s:%d: want 7 fields", file, n+1)
		}
	}
	if p.snapshot == "" || len(p.all) == 0 {
		return pins{}, fmt.Errorf("%s: no snapshot or no package", file)
	}
	return p, nil
}

// defaultMirror is Debian's own network of mirrors. $DEBIAN_MIRROR replaces it. HTTP suffices, because the pins are
// hashes.
const defaultMirror = "http://deb.debian.org"

// snapshots keeps every version of every package. A mirror removes a version when a newer one replaces it.
var snapshots = "https://snapshot.debian.org"

// places returns the URLs of a package, in the order in which they are tried.
func (p pins) places(one pin) []string {
	mirror := defaultMirror
	if set := os.Getenv("DEBIAN_MIRROR"); set != "" {
		mirror = strings.TrimSuffix(set, "/")
	}
	return []string{
		mirror + "/" + one.archive + "/" + one.path,
		snapshots + "/archive/" + one.archive + "/" + p.snapshot + "/" + one.path,
	}
}

// fetchAll returns the packages of an architecture.
func fetchAll(ctx context.Context, p pins, arch, cache string) ([]deb, error) {
	var debs []deb
	for _, one := range p.all {
		if one.arch != arch {
			continue
		}
		data, err := fetch(ctx, p, one, cache)
		if err != nil {
			return nil, fmt.Errorf("package %s %s of %s: %w", one.name, one.version, arch, err)
		}
		d, err := readDeb(data)
		if err != nil {
			return nil, fmt.Errorf("package %s of %s: %w", one.name, arch, err)
		}
		d.pin = one
		debs = append(debs, d)
	}
	slices.SortFunc(debs, func(a, b deb) int { return strings.Compare(a.pin.name, b.pin.name) })
	return debs, nil
}

// fetch returns a package from the cache, the mirror, or the snapshot. What it returns has the pinned SHA-256.
func fetch(ctx context.Context, p pins, one pin, cache string) ([]byte, error) {
	kept := filepath.Join(cache, one.sha256+".deb")
	if data, err := os.ReadFile(kept); err == nil && one.verify(data) == nil {
		return data, nil
	}
	var errs []error
	for _, url := range p.places(one) {
		data, err := download(ctx, url, one.size)
		if err == nil {
			err = one.verify(data)
		}
		if err == nil {
			return data, writeFile(kept, data)
		}
		errs = append(errs, fmt.Errorf("%s: %w", url, err))
	}
	return nil, fmt.Errorf("%w\n`make update-image-packages` pins the current packages", errors.Join(errs...))
}

func (one pin) verify(data []byte) error {
	if sum := sha256.Sum256(data); hex.EncodeToString(sum[:]) != one.sha256 {
		return fmt.Errorf("its SHA-256 is %x, and %s is pinned", sum, one.sha256)
	}
	return nil
}

// writeFile replaces a file as a whole.
func writeFile(path string, data []byte) error {
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		return err
	}
	temporary, err := os.CreateTemp(filepath.Dir(path), ".new-")
	if err != nil {
		return err
	}
	defer os.Remove(temporary.Name())
	_, err = temporary.Write(data)
	if err := errors.Join(err, temporary.Chmod(0o644), temporary.Close()); err != nil {
		return err
	}
	return os.Rename(temporary.Name(), path)
}

const (
	attempts     = 3
	downloadTime = 3 * time.Minute
)

// firstPause is the mean of the pause after the first failed attempt. Each later one is twice as long.
var firstPause = time.Second

// errMissing reports that a server does not have the file, so another attempt is useless.
var errMissing = errors.New("it is not there")

// download returns at most size bytes of a URL.
func download(ctx context.Context, url string, size int64) (data []byte, err error) {
	pause := firstPause
	for attempt := 1; ; attempt++ {
		data, err = downloadOnce(ctx, url, size)
		if err == nil || attempt == attempts || errors.Is(err, errMissing) || ctx.Err() != nil {
			return data, err
		}
		select {
		case <-ctx.Done():
			return nil, ctx.Err()
		case <-time.After(pause/2 + rand.N(pause)):
			pause *= 2
		}
	}
}

func downloadOnce(ctx context.Context, url string, size int64) ([]byte, error) {
	ctx, cancel := context.WithTimeout(ctx, downloadTime)
	defer cancel()
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, url, http.NoBody)
	if err != nil {
		return nil, err
	}
	response, err := http.DefaultClient.Do(request)
	if err != nil {
		return nil, err
	}
	defer response.Body.Close()
	switch {
	case response.StatusCode == http.StatusNotFound || response.StatusCode == http.StatusGone:
		return nil, errMissing
	case response.StatusCode != http.StatusOK:
		return nil, fmt.Errorf("the server answers %s", response.Status)
	}
	data, err := io.ReadAll(io.LimitReader(response.Body, size+1))
	if err == nil && int64(len(data)) > size {
		return nil, fmt.Errorf("it has more than %d bytes", size)
	}
	return data, err
}
