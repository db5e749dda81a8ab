package main

import (
	"archive/tar"
	"bytes"
	"encoding/hex"
	"errors"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"testing"
	"time"

	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/layout"
	"github.com/google/go-containerregistry/pkg/v1/validate"
	spdxjson "github.com/spdx/tools-golang/json"
	spdx "github.com/spdx/tools-golang/spdx/v2/v2_3"
)

func read(t *testing.T, path ...string) string {
	t.Helper()
	data, err := os.ReadFile(filepath.Join(path...))
	if err != nil {
		t.Fatal(err)
	}
	return string(data)
}

// platforms returns the images of a layout by architecture.
func platforms(t *testing.T, dir string) map[string]v1.Image {
	t.Helper()
	top, err := layout.ImageIndexFromPath(dir)
	if err != nil {
		t.Fatal(err)
	}
	manifest, err := top.IndexManifest()
	if err != nil {
		t.Fatal(err)
	}
	index, err := top.ImageIndex(manifest.Manifests[0].Digest)
	if err != nil {
		t.Fatal(err)
	}
	if err := validate.Index(index); err != nil {
		t.Errorf("%s is no valid index: %v", dir, err)
	}
	inner, err := index.IndexManifest()
	if err != nil {
		t.Fatal(err)
	}
	all := map[string]v1.Image{}
	for _, d := range inner.Manifests {
		if all[d.Platform.Architecture], err = index.Image(d.Digest); err != nil {
			t.Fatal(err)
		}
	}
	if len(all) != len(architectures) {
		t.Fatalf("%s has %d platforms", dir, len(all))
	}
	return all
}

// entries calls do for each entry of each layer.
func entries(t *testing.T, i v1.Image, do func(*tar.Header, []byte)) {
	t.Helper()
	layers, err := i.Layers()
	if err != nil {
		t.Fatal(err)
	}
	for _, l := range layers {
		unpacked, err := l.Uncompressed()
		if err != nil {
			t.Fatal(err)
		}
		for r := tar.NewReader(unpacked); ; {
			header, err := r.Next()
			if errors.Is(err, io.EOF) {
				break
			}
			if err != nil {
				t.Fatal(err)
			}
			data, err := io.ReadAll(r)
			if err != nil {
				t.Fatal(err)
			}
			do(header, data)
		}
		unpacked.Close()
	}
}

func TestTwoCheckoutsGiveTheSameImages(t *testing.T) {
	first, second := t.TempDir(), t.TempDir()
	roots := []string{repository(t, t.TempDir()), repository(t, filepath.Join(t.TempDir(), "a", "longer", "path"))}
	old := time.Now().Add(-1000 * time.Hour)
	for _, i := range images {
		if err := os.Chtimes(filepath.Join(roots[1], "cmd", i.program, "main.go"), old, old); err != nil {
			t.Fatal(err)
		}
	}
	for n, out := range []string{first, second} {
		if err := testMaker(t, compiled(t, roots[n])).writeAll(out, io.Discard); err != nil {
			t.Fatal(err)
		}
	}
	digests := read(t, first, digestsFile)
	if other := read(t, second, digestsFile); digests != other {
		t.Errorf("digests differ:\n%s\n%s", digests, other)
	}
	if lines := strings.Count(digests, "@sha256:"); lines != len(images) {
		t.Errorf("%d digests, want one for each image:\n%s", lines, digests)
	}
	changed := testMaker(t, programs(t))
	changed.release.time++
	out := t.TempDir()
	if err := changed.writeAll(out, io.Discard); err != nil {
		t.Fatal(err)
	}
	for line := range strings.Lines(read(t, out, digestsFile)) {
		if strings.Contains(digests, line) {
			t.Errorf("the image of another commit has the same digest: %s", line)
		}
	}
}

func TestProgramsContainNoPathOfTheBuild(t *testing.T) {
	root := repository(t, t.TempDir())
	programs := compiled(t, root)
	for _, arch := range architectures {
		data := read(t, programs, arch, "edge-agent")
		for _, path := range []string{root, runtime.GOROOT(), programs} {
			if path != "" && strings.Contains(data, path) {
				t.Errorf("the program for %s contains %s", arch, path)
			}
		}
	}
}

func TestAProgramReportsItsRelease(t *testing.T) {
	program := filepath.Join(programs(t), runtime.GOARCH, "gateway-agent")
	out, err := exec.CommandContext(t.Context(), program).CombinedOutput()
	want := "gateway-agent " + testRelease.version + " " + testRelease.commit + "\n"
	if err != nil || string(out) != want {
		t.Errorf("it prints %q (%v), want %q", out, err, want)
	}
}

func TestLayers(t *testing.T) {
	out := made(t)
	for _, i := range images {
		for arch, image := range platforms(t, filepath.Join(out, prefix+i.name)) {
			var capable []string
			found := map[string]*tar.Header{}
			entries(t, image, func(h *tar.Header, data []byte) {
				found[strings.TrimSuffix(h.Name, "/")] = h
				if !h.ModTime.Equal(testRelease.created()) {
					t.Errorf("%s, %s: %s has time %s", i.name, arch, h.Name, h.ModTime)
				}
				if h.Typeflag != tar.TypeDir && (h.Uid != 0 || h.Gid != 0 || h.Mode&0o6022 != 0 && h.Typeflag == tar.TypeReg) {
					t.Errorf("%s, %s: %s belongs to %d:%d with mode %o", i.name, arch, h.Name, h.Uid, h.Gid, h.Mode)
				}
				if record := h.PAXRecords[capabilityRecord]; record != "" {
					capable = append(capable, h.Name+"="+hex.EncodeToString([]byte(record)))
				}
			})
			// cap_net_admin+p: revision 2 without the effective bit, then bit 12, in little endian.
			want := "usr/local/bin/gateway-agent=0000000200100000000000000000000000000000"
			if got := strings.Join(capable, " "); i.name == "gateway" && got != want || i.name != "gateway" && got != "" {
				t.Errorf("%s, %s: capabilities %q", i.name, arch, got)
			}
			checkEntries(t, i, arch, found)
		}
	}
}

func checkEntries(t *testing.T, i image, arch string, found map[string]*tar.Header) {
	t.Helper()
	for name, want := range map[string]int64{
		programFolder + i.program: 0o755, certificates: 0o644, "etc/passwd": 0o644, "tmp": 0o1777, "var/lib/fairlead": 0o700,
		"home/nonroot": 0o700, sbomFolder + prefix + i.name + ".spdx.json": 0o644,
		"var/lib/dpkg/status.d/ca-certificates": 0o644,
	} {
		if h := found[name]; h == nil || h.Mode != want {
			t.Errorf("%s, %s: %s is %+v, want mode %o", i.name, arch, name, h, want)
		}
	}
	for _, name := range []string{"var/lib/fairlead", "home/nonroot"} {
		if h := found[name]; h != nil && (h.Uid != user || h.Gid != user) {
			t.Errorf("%s, %s: %s belongs to %d:%d", i.name, arch, name, h.Uid, h.Gid)
		}
	}
	library := "usr/lib/" + triplets[arch] + "/libc.so.6"
	for _, name := range []string{programFolder + "envoy", "usr/" + loaders[arch], library} {
		if got := found[name] != nil; got != i.envoy {
			t.Errorf("%s, %s: has %s: %v", i.name, arch, name, got)
		}
	}
}

func TestConfigurations(t *testing.T) {
	out := made(t)
	for _, i := range images {
		for arch, image := range platforms(t, filepath.Join(out, prefix+i.name)) {
			config, err := image.ConfigFile()
			if err != nil {
				t.Fatal(err)
			}
			manifest, err := image.Manifest()
			if err != nil {
				t.Fatal(err)
			}
			if config.Architecture != arch || config.OS != "linux" || config.Config.User != "65532:65532" ||
				strings.Join(config.Config.Entrypoint, " ") != "/usr/local/bin/"+i.program {
				t.Errorf("%s, %s: %+v", i.name, arch, config)
			}
			for key, want := range map[string]string{
				"title": i.title, "version": "v0.1.2", "revision": testRelease.commit, "created": "2026-09-21T14:13:20Z",
				"source": "https://github.com/fairlead/fairlead",
			} {
				key = "org.opencontainers.image." + key
				if got := config.Config.Labels[key]; got != want || manifest.Annotations[key] != want {
					t.Errorf("%s, %s: %s is %q and %q, want %q", i.name, arch, key, got, manifest.Annotations[key], want)
				}
			}
			licences := manifest.Annotations["org.opencontainers.image.licenses"]
			if !strings.HasPrefix(licences, "Apache-2.0 AND ") || strings.Contains(licences, "LGPL") != i.envoy {
				t.Errorf("%s, %s: licences %q", i.name, arch, licences)
			}
		}
	}
}

// TestDigestsAreTheSameInAllForms compares the three files with the layouts.
func TestDigestsAreTheSameInAllForms(t *testing.T) {
	out := made(t)
	digests, component, values := read(t, out, digestsFile), read(t, out, kustomize), read(t, out, helmValues)
	for _, i := range images {
		top, err := layout.ImageIndexFromPath(filepath.Join(out, prefix+i.name))
		if err != nil {
			t.Fatal(err)
		}
		manifest, err := top.IndexManifest()
		if err != nil {
			t.Fatal(err)
		}
		first := manifest.Manifests[0]
		if first.Annotations[refName] != testRelease.version || !first.MediaType.IsIndex() {
			t.Errorf("%s: the first manifest of the layout is %+v", i.name, first)
		}
		digest := first.Digest.String()
		for in, want := range map[string]string{
			digests:   prefix + i.name + "@" + digest + "\n",
			component: "\n  - {name: " + prefix + i.name + ", digest: \"" + digest + "\"}\n",
			values:    "\n    " + i.name + ": \"" + digest + "\"\n",
		} {
			if !strings.Contains(in, want) {
				t.Errorf("no %q in\n%s", want, in)
			}
		}
	}
	if !strings.Contains(values, "\n  tag: \"v0.1.2\"\n") {
		t.Errorf("no tag in\n%s", values)
	}
}

// document reads an SPDX document and checks that each relationship leads to a package.
func document(t *testing.T, data []byte) *spdx.Document {
	t.Helper()
	document, err := spdxjson.Read(bytes.NewReader(data))
	if err != nil {
		t.Fatal(err)
	}
	read, ok := any(document).(*spdx.Document)
	if !ok || read.SPDXVersion != "SPDX-2.3" || read.DataLicense != "CC0-1.0" || read.DocumentNamespace == "" {
		t.Fatalf("no SPDX 2.3: %.200s", data)
	}
	ids := map[string]bool{"DOCUMENT": true}
	for _, p := range read.Packages {
		id := string(p.PackageSPDXIdentifier)
		if ids[id] || unusualInID.MatchString(id) {
			t.Errorf("identifier %s is not unique or not valid", id)
		}
		if ids[id] = true; p.PackageDownloadLocation == "" || p.FilesAnalyzed {
			t.Errorf("package %s: %+v", p.PackageName, p)
		}
	}
	for _, r := range read.Relationships {
		if !ids[string(r.RefA.ElementRefID)] || !ids[string(r.RefB.ElementRefID)] {
			t.Errorf("relationship %+v", r)
		}
	}
	if len(read.Relationships) != len(read.Packages) {
		t.Errorf("%d relationships for %d packages", len(read.Relationships), len(read.Packages))
	}
	return read
}

// locators returns the package URLs of a document.
func locators(d *spdx.Document) map[string]bool {
	all := map[string]bool{}
	for _, p := range d.Packages {
		for _, r := range p.PackageExternalReferences {
			all[r.Locator] = true
		}
	}
	return all
}

func TestDocumentsListWhatImagesContain(t *testing.T) {
	out := made(t)
	for _, i := range images {
		for arch, image := range platforms(t, filepath.Join(out, prefix+i.name)) {
			var inside []byte
			entries(t, image, func(h *tar.Header, data []byte) {
				if h.Name == sbomFolder+prefix+i.name+".spdx.json" {
					inside = data
				}
			})
			if beside := read(t, out, "sbom", prefix+i.name+"-"+arch+".spdx.json"); beside != string(inside) {
				t.Errorf("%s, %s: the document beside the layout is another one than that in the image", i.name, arch)
			}
			got := locators(document(t, inside))
			for locator, want := range map[string]bool{
				"pkg:golang/github.com/fairlead/fairlead@v0.1.2":                                  true,
				"pkg:golang/stdlib@" + strings.TrimPrefix(runtime.Version(), "go"):                true,
				"pkg:deb/debian/ca-certificates@1.2%2Bdeb13u1?arch=" + arch + "&distro=debian-13": true,
				"pkg:deb/debian/libc6@1.2%2Bdeb13u1?arch=" + arch + "&distro=debian-13":           i.envoy,
				"pkg:github/envoyproxy/envoy@v1.40.0":                                             i.envoy,
			} {
				if got[locator] != want {
					t.Errorf("%s, %s: %s: %v, want %v", i.name, arch, locator, got[locator], want)
				}
			}
		}
	}
}

func TestAnImageThatIsTooLargeIsRejected(t *testing.T) {
	m := testMaker(t, programs(t))
	e := m.envoys["arm64"]
	random := make([]byte, 0, mostCompressed+1<<20)
	for state := uint64(1); len(random) < cap(random); { // does not compress
		state ^= state << 13
		state ^= state >> 7
		state ^= state << 17
		random = append(random, byte(state), byte(state>>8), byte(state>>16), byte(state>>24))
	}
	e.data = append(bytes.Clone(e.data), random...)
	m.envoys["arm64"] = e
	if err := m.writeAll(t.TempDir(), io.Discard); err == nil || !strings.Contains(err.Error(), "more than") {
		t.Errorf("the error is %v", err)
	}
}
