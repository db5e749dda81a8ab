package xdsproxy_test

import (
	"bytes"
	"errors"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"testing"

	"github.com/fairlead/fairlead/internal/eventually"
	"github.com/fairlead/fairlead/pkg/xdsproxy"
)

// cached leaves a cache of one upstream in a folder, and returns what Envoy has.
func cached(t testing.TB, dir string) map[string]map[string]string {
	t.Helper()
	s := newServer(t, named(cluster("c1", 1), cluster("c2", 1)), named(listener("l")))
	bed := newBed(t, dir)
	bed.follow(t, "a", s, nil)
	e := bed.envoy(t, nil)
	e.subscribe(t, cds, lds)
	e.until(t, cds, "c1", "c2")
	e.until(t, lds, "l")
	bed.file(t, "a.clusters.cache", "c1", "c2")
	bed.file(t, "a.listeners.cache", "l")
	bed.stop()
	return e.have
}

func TestAFileThatIsNotUsableIsPutAside(t *testing.T) {
	rewrite := func(change func([]byte) []byte) func(t *testing.T, path string) {
		return func(t *testing.T, path string) {
			t.Helper()
			data, err := os.ReadFile(path)
			if err == nil {
				err = os.WriteFile(path, change(data), 0o600)
			}
			if err != nil {
				t.Fatal(err)
			}
		}
	}
	tests := map[string]func(t *testing.T, path string){
		"empty":       rewrite(func([]byte) []byte { return nil }),
		"truncated":   rewrite(func(data []byte) []byte { return data[:len(data)-1] }),
		"only begun":  rewrite(func(data []byte) []byte { return data[:30] }),
		"one bit off": rewrite(func(data []byte) []byte { data[len(data)/2] ^= 1; return data }),
		"of a later format": rewrite(func(data []byte) []byte {
			return bytes.Replace(data, []byte("resources 2"), []byte("resources 3"), 1)
		}),
		"of something else": rewrite(func([]byte) []byte { return []byte("{}") }),
		"of another upstream": func(t *testing.T, path string) {
			t.Helper()
			cachedAs(t, "b", path)
		},
		"a folder": func(t *testing.T, path string) {
			t.Helper()
			if err := errors.Join(os.Remove(path), os.Mkdir(path, 0o700)); err != nil {
				t.Fatal(err)
			}
		},
	}
	for name, spoil := range tests {
		t.Run(name, func(t *testing.T) {
			dir := t.TempDir()
			cached(t, dir)
			path := filepath.Join(dir, "a.clusters.cache")
			spoil(t, path)
			bed := newBed(t, dir)
			expect(t, "log lines", bed.log.Count("level=ERROR"), 1)
			expect(t, "log lines with its name", bed.log.Count("level=ERROR", path+".corrupt"), 1)
			expect(t, "files", files(t, dir), []string{"a.clusters.cache.corrupt", "a.listeners.cache"})
			// Without Envoy clusters no listener of the cache is served, but a server's are.
			e := bed.envoy(t, nil)
			e.subscribe(t, cds, lds)
			e.quiet(t)
			bed.follow(t, "a", newServer(t, named(cluster("c3", 1)), nil), nil)
			e.until(t, cds, "c3")
			bed.file(t, "a.clusters.cache", "c3")
		})
	}
}

// cachedAs replaces a file by one of the same type of another upstream.
func cachedAs(t testing.TB, upstream, path string) {
	t.Helper()
	dir := t.TempDir()
	bed := newBed(t, dir)
	bed.follow(t, upstream, newServer(t, named(cluster("c1", 1)), nil), nil)
	e := bed.envoy(t, nil)
	e.subscribe(t, cds)
	e.until(t, cds, "c1")
	bed.file(t, upstream+".clusters.cache", "c1")
	bed.stop()
	if err := os.Rename(filepath.Join(dir, upstream+".clusters.cache"), path); err != nil {
		t.Fatal(err)
	}
}

func TestTheOlderGenerationIsServedIfTheNewerIsDamaged(t *testing.T) {
	dir := t.TempDir()
	bed, s, good := crashing(t, dir)
	bed.stop()
	s.grpc.Stop()
	if err := os.Truncate(filepath.Join(dir, "a.clusters.cache"), 100); err != nil {
		t.Fatal(err)
	}
	bed = newBed(t, dir)
	e := bed.envoy(t, nil)
	e.subscribe(t, cds, lds)
	e.until(t, cds, "c1")
	expect(t, "version", e.have[cds]["c1"], good)
}

func TestTheCacheIsDeterministic(t *testing.T) {
	one, other := t.TempDir(), t.TempDir()
	cached(t, one)
	cached(t, other)
	for _, name := range []string{"a.clusters.cache", "a.listeners.cache"} {
		a, err := os.ReadFile(filepath.Join(one, name))
		if err != nil {
			t.Fatal(err)
		}
		if b, err := os.ReadFile(filepath.Join(other, name)); err != nil || !bytes.Equal(a, b) {
			t.Errorf("%s differs: %v", name, err)
		}
		if info, err := os.Stat(filepath.Join(one, name)); err != nil || info.Mode().Perm() != 0o600 {
			t.Errorf("the mode of %s is %v: %v", name, info.Mode(), err)
		}
	}
}

func TestAnUnwritableDiskIsReported(t *testing.T) {
	// The file that the proxy writes before it renames it.
	const temporary = "a.clusters.cache.tmp"
	tests := map[string]struct {
		spoil, mend func(path string) error
		want        string
	}{
		"full": {
			// ENOSPC at each write. The file is removed after the first, so that the disk is full only once.
			func(path string) error { return os.Symlink("/dev/full", path) },
			func(string) error { return nil }, "no space left on device",
		},
		"not writable": {
			func(path string) error { return os.MkdirAll(filepath.Join(path, "in"), 0o700) },
			os.RemoveAll, "is a directory",
		},
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			dir := t.TempDir()
			if err := test.spoil(filepath.Join(dir, temporary)); err != nil {
				t.Fatal(err)
			}
			bed := newBed(t, dir)
			bed.follow(t, "a", newServer(t, named(cluster("c1", 1)), named(listener("l"))), nil)
			e := bed.envoy(t, nil)
			e.subscribe(t, cds, lds)
			e.until(t, cds, "c1")
			e.until(t, lds, "l") // Envoy does not wait for the disk
			eventually.True(t, patience, "it is logged", func() error {
				if bed.log.Count("level=ERROR", test.want) == 0 {
					return errors.New("it is not")
				}
				return nil
			})
			if err := test.mend(filepath.Join(dir, temporary)); err != nil {
				t.Fatal(err)
			}
			bed.file(t, "a.clusters.cache", "c1")
			eventually.True(t, patience, "that is logged too", func() error {
				if n := bed.log.Count("level=INFO", "written to disk again"); n != 1 {
					return fmt.Errorf("%d lines", n)
				}
				return nil
			})
			expect(t, "lines of error", bed.log.Count("level=ERROR"), 1)
		})
	}
}

// TestALargeCacheIsExtended changes one of many Envoy clusters: that must not rewrite them all, and must be there
// after a restart. A section that a crash left incomplete must not affect the others.
func TestALargeCacheIsExtended(t *testing.T) {
	const many, large = 300, 300 << 10
	dir := t.TempDir()
	path := filepath.Join(dir, "a.clusters.cache")
	s := newServer(t, heavy(many), nil)
	bed := newBed(t, dir)
	bed.follow(t, "a", s, nil)
	e := bed.envoy(t, nil)
	e.subscribe(t, cds)
	names := slices.Sorted(maps.Keys(heavy(many)))
	e.until(t, cds, names...)
	bed.file(t, "a.clusters.cache", "cluster-00000")
	first := size(t, path)
	if first < large {
		t.Fatalf("%d bytes are no large cache", first)
	}
	before, err := os.Stat(path)
	if err != nil {
		t.Fatal(err)
	}
	s.set(t, cluster("another", 1))
	e.until(t, cds, append(slices.Clone(names), "another")...)
	bed.file(t, "a.clusters.cache", "another")
	bed.stop()
	after, err := os.Stat(path)
	if err != nil {
		t.Fatal(err)
	}
	if more := after.Size() - first; !os.SameFile(before, after) || more <= 0 || more > 1000 {
		t.Errorf("one change wrote %d bytes, in the same file: %v", more, os.SameFile(before, after))
	}
	s.grpc.Stop()

	bed = newBed(t, dir)
	e = bed.envoy(t, nil)
	e.subscribe(t, cds)
	e.until(t, cds, append(slices.Clone(names), "another")...)
	bed.stop()

	if err := os.Truncate(path, size(t, path)-1); err != nil {
		t.Fatal(err)
	}
	bed = newBed(t, dir)
	e = bed.envoy(t, nil)
	e.subscribe(t, cds)
	e.next(t)
	expect(t, "Envoy clusters", len(e.have[cds]), many)
	expect(t, "log lines", bed.log.Count("is incomplete, ignoring it", path), 1)
	expect(t, "log lines of errors", bed.log.Count("level=ERROR"), 0)
}

// TestAVeryLargeCacheIsRead: a file of 100,000 Envoy clusters and their changes may have more than 256 MiB. This one is
// that large because its last section is incomplete.
func TestAVeryLargeCacheIsRead(t *testing.T) {
	dir := t.TempDir()
	cached(t, dir)
	if err := os.Truncate(filepath.Join(dir, "a.clusters.cache"), 256<<20+1); err != nil {
		t.Fatal(err)
	}
	bed := newBed(t, dir)
	expect(t, "log lines of errors", bed.log.Count("level=ERROR"), 0)
	e := bed.envoy(t, nil)
	e.subscribe(t, cds)
	e.until(t, cds, "c1", "c2")
}

func size(t testing.TB, path string) int64 {
	t.Helper()
	info, err := os.Stat(path)
	if err != nil {
		t.Fatal(err)
	}
	return info.Size()
}

func TestAnInvalidCacheFolderIsAnError(t *testing.T) {
	path := filepath.Join(t.TempDir(), "file")
	if err := os.WriteFile(path, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := xdsproxy.New(path, nil); err == nil {
		t.Error("no error")
	}
}
