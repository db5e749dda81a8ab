package main

import (
	"archive/tar"
	"bytes"
	"fmt"
	"io"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/ulikunitz/xz"
)

// testRelease is the release of the fixtures.
var testRelease = release{version: "v0.1.2", commit: strings.Repeat("c", 40), time: 1_790_000_000}

// repository writes a Go module with the names of Fairlead's programs. They print what they are linked with.
func repository(t *testing.T, dir string) string {
	t.Helper()
	files := map[string]string{
		"go.mod":               "module github.com/fairlead/fairlead\n\ngo 1.26\n",
		"pkg/envoy/version.go": "package envoy\n\nvar (\n\tCurrent = Version{0, 1}\n)\n",
		"internal/version/version.go": "package version\n\nvar release, commit string\n\n" +
			"func Line() string { return release + \" \" + commit }\n",
	}
	for _, i := range images {
		files["cmd/"+i.program+"/main.go"] = "package main\n\nimport \"github.com/fairlead/fairlead/internal/version\"\n\n" +
			"func main() { println(\"" + i.program + "\", version.Line()) }\n"
	}
	for name, text := range files {
		if err := writeFile(filepath.Join(dir, name), []byte(text)); err != nil {
			t.Fatal(err)
		}
	}
	return dir
}

// shared is a folder for what several tests read: the programs of the fixture, and its images.
var shared string

func TestMain(m *testing.M) {
	os.Exit(func() int {
		var err error
		if shared, err = os.MkdirTemp("", "images-test-"); err != nil {
			panic(err)
		}
		defer os.RemoveAll(shared)
		return m.Run()
	}())
}

// programs returns a folder with the programs of the fixture, which are compiled once.
func programs(t *testing.T) string {
	t.Helper()
	dir := filepath.Join(shared, "programs")
	if _, err := os.Stat(dir); err != nil {
		if err := os.Rename(compiled(t, repository(t, t.TempDir())), dir); err != nil {
			t.Fatal(err)
		}
	}
	return dir
}

// made returns a folder with the images of the fixture, which are built once.
func made(t *testing.T) string {
	t.Helper()
	dir := filepath.Join(shared, "made")
	if _, err := os.Stat(dir); err != nil {
		out := filepath.Join(t.TempDir(), "made")
		if err := testMaker(t, programs(t)).writeAll(out, io.Discard); err != nil {
			t.Fatal(err)
		}
		if err := os.Rename(out, dir); err != nil {
			t.Fatal(err)
		}
	}
	return dir
}

// compiled returns a folder with the programs of the fixture.
func compiled(t *testing.T, root string) string {
	t.Helper()
	programs := filepath.Join(t.TempDir(), "programs")
	for _, arch := range architectures {
		if err := testRelease.compile(t.Context(), root, filepath.Join(programs, arch), arch); err != nil {
			t.Fatal(err)
		}
	}
	return programs
}

// testMaker returns a maker whose Envoy is another program.
func testMaker(t *testing.T, programs string) *maker {
	t.Helper()
	m := &maker{
		release: testRelease, programs: programs, arches: architectures, bases: map[string]base{}, envoys: map[string]envoy{},
	}
	for _, arch := range architectures {
		var debs []deb
		for _, name := range []string{"base-files", "ca-certificates", "libc6"} {
			debs = append(debs, testDeb(t, name, arch))
		}
		var err error
		if m.bases[arch], err = newBase(debs, arch); err != nil {
			t.Fatal(err)
		}
		data, err := os.ReadFile(filepath.Join(programs, arch, "fairlead"))
		if err != nil {
			t.Fatal(err)
		}
		m.envoys[arch] = envoy{version: "1.40.0", data: data, wheel: strings.Repeat("e", 64)}
	}
	return m
}

// testDeb packs a package and reads it.
func testDeb(t *testing.T, name, arch string) deb {
	t.Helper()
	files := map[string]string{"usr/share/doc/" + name + "/copyright": "licence of " + name}
	links := map[string]string{}
	switch name {
	case "base-files":
		files["usr/lib/os-release"] = "ID=debian\nVERSION_ID=\"13\"\n"
	case "ca-certificates":
		for n := range 120 {
			files[fmt.Sprintf("usr/share/ca-certificates/mozilla/%03d.crt", n)] = fmt.Sprintf("BEGIN CERTIFICATE %03d\n", n)
		}
	case "libc6":
		for _, library := range libraries {
			files["usr/lib/"+triplets[arch]+"/"+library] = library
		}
		loader := filepath.Base(loaders[arch])
		files["usr/lib/"+triplets[arch]+"/ld-2.41.so"] = "loader"
		links["usr/lib/"+triplets[arch]+"/"+loader] = "ld-2.41.so"
	}
	control := map[string]string{"control": "Package: " + name + "\nVersion: 1.2+deb13u1\n"}
	d, err := readDeb(pack(t, control, nil, files, links))
	if err != nil {
		t.Fatal(err)
	}
	d.pin = pin{
		arch: arch, name: name, version: "1.2+deb13u1", archive: "debian",
		path: "pool/" + name + "_1.2+deb13u1_" + arch + ".deb", sha256: strings.Repeat("d", 64),
	}
	return d
}

// pack returns a package with two archives of files and links.
func pack(t *testing.T, control, controlLinks, files, links map[string]string) []byte {
	t.Helper()
	archive := []byte("!<arch>\n")
	for _, member := range []struct {
		name         string
		files, links map[string]string
	}{{"debian-binary", nil, nil}, {"control.tar.xz", control, controlLinks}, {"data.tar.xz", files, links}} {
		data := []byte("2.0\n")
		if member.files != nil {
			data = packTar(t, member.files, member.links)
		}
		archive = fmt.Appendf(archive, "%-16s%-12d%-6d%-6d%-8s%-10d`\n", member.name, 0, 0, 0, "100644", len(data))
		if archive = append(archive, data...); len(data)%2 != 0 {
			archive = append(archive, '\n')
		}
	}
	return archive
}

func packTar(t *testing.T, files, links map[string]string) []byte {
	t.Helper()
	var packed bytes.Buffer
	compress, err := xz.NewWriter(&packed)
	if err != nil {
		t.Fatal(err)
	}
	w := tar.NewWriter(compress)
	add := func(header *tar.Header, data string) {
		if err := w.WriteHeader(header); err != nil {
			t.Fatal(err)
		}
		if _, err := w.Write([]byte(data)); err != nil {
			t.Fatal(err)
		}
	}
	for _, name := range slices.Sorted(maps.Keys(files)) {
		add(&tar.Header{Name: "./" + name, Typeflag: tar.TypeReg, Mode: 0o600, Size: int64(len(files[name]))}, files[name])
	}
	for name, to := range links {
		add(&tar.Header{Name: "./" + name, Typeflag: tar.TypeSymlink, Linkname: to}, "")
	}
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	if err := compress.Close(); err != nil {
		t.Fatal(err)
	}
	return packed.Bytes()
}
