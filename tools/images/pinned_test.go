package main

import (
	"crypto/sha256"
	"fmt"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"reflect"
	"runtime"
	"strings"
	"sync/atomic"
	"testing"
	"time"
)

// archive serves files, and counts the requests.
func archive(t *testing.T, files map[string]string) (url string, requests *atomic.Int32) {
	t.Helper()
	requests = &atomic.Int32{}
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		requests.Add(1)
		switch text := files[r.URL.Path]; text {
		case "":
			http.NotFound(w, r)
		case "busy":
			http.Error(w, "busy", http.StatusServiceUnavailable)
		default:
			fmt.Fprint(w, text)
		}
	}))
	t.Cleanup(server.Close)
	return server.URL, requests
}

func TestPackagesAreFetchedFromTheFirstPlaceThatHasThem(t *testing.T) {
	content := "content of the package"
	one := pin{
		arch: "amd64", name: "libc6", archive: "debian", path: "pool/libc6.deb", size: int64(len(content)),
		sha256: fmt.Sprintf("%x", sha256.Sum256([]byte(content))),
	}
	const inMirror, inSnapshot = "/debian/pool/libc6.deb", "/archive/debian/20260101T000000Z/pool/libc6.deb"
	for name, c := range map[string]struct {
		mirror, snapshot string // what they have; empty: nothing
		wantErr          string
		requests         int32 // to the snapshot
	}{
		"the mirror has it":            {mirror: content},
		"it has left the mirror":       {snapshot: content, requests: 1},
		"the mirror has other content": {mirror: "attack", snapshot: content, requests: 1},
		"the mirror is busy":           {mirror: "busy", snapshot: content, requests: 1},
		"the mirror has more":          {mirror: content + "x", snapshot: content, requests: 1},
		"no place has it":              {wantErr: "make update-image-packages", requests: 1},
		"no place has the content":     {mirror: "a", snapshot: "b", wantErr: "is pinned", requests: 1},
		"the snapshot is busy":         {mirror: "a", snapshot: "busy", wantErr: "503", requests: attempts},
	} {
		t.Run(name, func(t *testing.T) {
			mirror, _ := archive(t, map[string]string{inMirror: c.mirror})
			snapshot, requests := archive(t, map[string]string{inSnapshot: c.snapshot})
			t.Setenv("DEBIAN_MIRROR", mirror)
			oldSnapshots, oldPause := snapshots, firstPause
			t.Cleanup(func() { snapshots, firstPause = oldSnapshots, oldPause })
			snapshots, firstPause = snapshot, time.Millisecond
			cache := t.TempDir()
			for range 2 { // the second time from the cache, if there was a first
				data, err := fetch(t.Context(), pins{snapshot: "20260101T000000Z"}, one, cache)
				if c.wantErr == "" && (err != nil || string(data) != content) {
					t.Fatalf("%q, %v", data, err)
				}
				if c.wantErr != "" {
					if err == nil || !strings.Contains(err.Error(), c.wantErr) {
						t.Errorf("the error is %v", err)
					}
					break
				}
			}
			if got := requests.Load(); got != c.requests {
				t.Errorf("%d requests to the snapshot, want %d", got, c.requests)
			}
		})
	}
}

func TestACorruptedCacheIsNotUsed(t *testing.T) {
	content := "content"
	one := pin{archive: "debian", path: "x.deb", size: 7, sha256: fmt.Sprintf("%x", sha256.Sum256([]byte(content)))}
	mirror, _ := archive(t, map[string]string{"/debian/x.deb": content})
	t.Setenv("DEBIAN_MIRROR", mirror)
	cache := t.TempDir()
	if err := writeFile(filepath.Join(cache, one.sha256+".deb"), []byte("changed")); err != nil {
		t.Fatal(err)
	}
	if data, err := fetch(t.Context(), pins{}, one, cache); err != nil || string(data) != content {
		t.Errorf("%q, %v", data, err)
	}
}

// TestPackagesFile checks that the file is as the program writes it, and pins what the images need.
func TestPackagesFile(t *testing.T) {
	p, err := readPackages(packagesFile)
	if err != nil {
		t.Fatal(err)
	}
	if text := read(t, packagesFile); text != string(p.text()) {
		t.Errorf("the program would write it as\n%s", p.text())
	}
	pinned := map[string]bool{}
	for _, one := range p.all {
		pinned[one.arch+" "+one.name] = true
	}
	for _, arch := range architectures {
		for _, name := range append([]string{"libc6"}, staticPackages...) {
			if !pinned[arch+" "+name] {
				t.Errorf("%s of %s is not pinned", name, arch)
			}
		}
	}
	broken := filepath.Join(t.TempDir(), packagesFile)
	for _, text := range []string{"", "snapshot x\namd64 a 1 debian p 1 zz\n", "snapshot x\namd64 a\n"} {
		if err := os.WriteFile(broken, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		if p, err := readPackages(broken); err == nil {
			t.Errorf("%q is read as %v", text, p)
		}
	}
}

func TestDebsAreReadAndChecked(t *testing.T) {
	control := map[string]string{"control": "Package: a\nVersion: 1\n"}
	links := map[string]string{"usr/lib/b": "a", "c": "usr/lib/b"}
	whole := pack(t, control, nil, map[string]string{"usr/lib/a": "text"}, links)
	d, err := readDeb(whole)
	if err != nil {
		t.Fatal(err)
	}
	want := map[string][]byte{"usr/lib/a": []byte("text"), "usr/lib/b": []byte("text"), "c": []byte("text")}
	if !reflect.DeepEqual(d.files, want) || string(d.control) != control["control"] {
		t.Errorf("%q, %q", d.files, d.control)
	}
	for name, data := range map[string][]byte{
		"cut":                  whole[:len(whole)-40],
		"no package":           []byte("text"),
		"nothing but a header": whole[:68],
		"no control":           pack(t, map[string]string{"other": ""}, nil, map[string]string{"a": ""}, nil),
	} {
		if d, err := readDeb(data); err == nil {
			t.Errorf("%s: read as %+v", name, d)
		}
	}
}

func TestABaseRequiresEachFile(t *testing.T) {
	for name, remove := range map[string]string{
		"libc6":           "usr/lib/x86_64-linux-gnu/libm.so.6",
		"ca-certificates": "usr/share/doc/ca-certificates/copyright",
		"base-files":      "usr/lib/os-release",
	} {
		var debs []deb
		for _, one := range []string{"base-files", "ca-certificates", "libc6"} {
			d := testDeb(t, one, "amd64")
			if one == name {
				if _, ok := d.files[remove]; !ok {
					t.Fatalf("%s has no %s", name, remove)
				}
				delete(d.files, remove)
			}
			debs = append(debs, d)
		}
		if _, err := newBase(debs, "amd64"); err == nil || !strings.Contains(err.Error(), name) {
			t.Errorf("without %s: %v", remove, err)
		}
	}
}

func TestReleases(t *testing.T) {
	root := repository(t, t.TempDir())
	commit := strings.Repeat("a", 40)
	for name, c := range map[string]struct {
		in      release
		want    string
		wantErr string
	}{
		"a release":                      {in: release{"v0.1.7", commit, 1}, want: "v0.1.7"},
		"a candidate":                    {in: release{"v0.1.7-rc.1", commit, 1}, want: "v0.1.7-rc.1"},
		"no version":                     {in: release{"", commit, 1}, want: "v0.1.0-dev.gaaaaaaaaaaaa"},
		"no version, changed files":      {in: release{"", commit + "-dirty", 1}, want: "v0.1.0-dev.gaaaaaaaaaaaa.dirty"},
		"another minor version":          {in: release{"v0.2.0", commit, 1}, wantErr: "protocol version is 0.1"},
		"another major version":          {in: release{"v1.1.0", commit, 1}, wantErr: "protocol version is 0.1"},
		"no v":                           {in: release{"0.1.0", commit, 1}, wantErr: "form"},
		"a build, which no tag can have": {in: release{"v0.1.0+build", commit, 1}, wantErr: "form"},
		"no clone":                       {in: release{"v0.1.0", "", 0}, wantErr: "without git"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Setenv("GIT_CEILING_DIRECTORIES", filepath.Dir(root))
			got, err := c.in.complete(t.Context(), root)
			if c.wantErr == "" && (err != nil || got.version != c.want) ||
				c.wantErr != "" && (err == nil || !strings.Contains(err.Error(), c.wantErr)) {
				t.Errorf("%+v, %v", got, err)
			}
		})
	}
}

func TestTheCommitComesFromGit(t *testing.T) {
	root := repository(t, t.TempDir())
	git := func(args ...string) string {
		t.Helper()
		out, err := command(t.Context(), root, []string{
			"GIT_AUTHOR_NAME=a", "GIT_AUTHOR_EMAIL=a@example.com", "GIT_COMMITTER_NAME=a", "GIT_COMMITTER_EMAIL=a@example.com",
			"GIT_AUTHOR_DATE=2026-01-02T03:04:05Z", "GIT_COMMITTER_DATE=2026-01-02T03:04:05Z", "GIT_CONFIG_GLOBAL=/dev/null",
		}, "git", args...)
		if err != nil {
			t.Fatal(err)
		}
		return out
	}
	git("init", "--quiet")
	git("add", ".")
	git("commit", "--quiet", "--no-gpg-sign", "--message=first")
	hash := git("rev-parse", "HEAD")
	got, err := release{}.complete(t.Context(), root)
	if err != nil || got.commit != hash || got.created() != time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC) {
		t.Errorf("%+v of %s, %v", got, hash, err)
	}
	if err := writeFile(filepath.Join(root, "cmd", "new.go"), nil); err != nil {
		t.Fatal(err)
	}
	if got, err := (release{}).complete(t.Context(), root); err != nil || got.commit != hash+"-dirty" {
		t.Errorf("with a new file: %+v, %v", got, err)
	}
}

func TestTheProtocolVersionIsRead(t *testing.T) {
	if version, err := protocolVersion(filepath.Join("..", "..")); err != nil || version == "" {
		t.Errorf("%q, %v", version, err)
	}
}

func TestProgramsOfAnotherPlatformAreRejected(t *testing.T) {
	programs := programs(t)
	for _, arch := range architectures {
		for _, of := range architectures {
			err := checkProgram([]byte(read(t, programs, of, "fairlead")), arch)
			if (err == nil) != (arch == of) {
				t.Errorf("a program for %s as one for %s: %v", of, arch, err)
			}
		}
	}
	shell, err := os.ReadFile("/proc/self/exe") // a test program that is linked with cgo requires libraries
	if err != nil {
		t.Fatal(err)
	}
	if err := checkProgram(shell, runtime.GOARCH); err != nil {
		t.Errorf("this program: %v", err)
	}
	if err := checkProgram([]byte("text"), "amd64"); err == nil {
		t.Error("a text is accepted")
	}
}
