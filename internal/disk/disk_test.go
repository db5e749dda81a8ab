package disk_test

import (
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/fairlead/fairlead/internal/disk"
)

// ways are the two functions that replace a file.
var ways = map[string]func(path string, data []byte) error{
	"with any temporary name": disk.Replace,
	"with one temporary name": func(path string, data []byte) error { return disk.ReplaceBy(path+".tmp", path, data) },
}

func TestAFileIsReplacedAtomically(t *testing.T) {
	for name, replace := range ways {
		t.Run(name, func(t *testing.T) {
			path := filepath.Join(t.TempDir(), "file")
			if err := os.WriteFile(path, []byte("the old one, which is longer"), 0o644); err != nil {
				t.Fatal(err)
			}
			if err := os.WriteFile(path+".tmp", []byte("what a crash has left, longer than all others"), 0o600); err != nil {
				t.Fatal(err)
			}
			reader, err := os.Open(path)
			if err != nil {
				t.Fatal(err)
			}
			defer reader.Close()
			if err := replace(path, []byte("the new one")); err != nil {
				t.Fatal(err)
			}
			old := make([]byte, 64)
			if n, _ := reader.Read(old); string(old[:n]) != "the old one, which is longer" {
				t.Errorf("who had opened it reads %q", old[:n])
			}
			data, err := os.ReadFile(path)
			info, statErr := os.Stat(path)
			if err != nil || statErr != nil || string(data) != "the new one" || info.Mode() != 0o600 {
				t.Errorf("there is %q, %v, %v, want the new one, with mode 0600", data, info.Mode(), err)
			}
		})
	}
}

func TestAFailedReplaceLeavesNoTemporaryFile(t *testing.T) {
	for name, replace := range ways {
		t.Run(name, func(t *testing.T) {
			dir := t.TempDir()
			path := filepath.Join(dir, "file")
			if err := os.MkdirAll(filepath.Join(path, "a folder is in the way"), 0o700); err != nil {
				t.Fatal(err)
			}
			if err := replace(path, []byte("the new one")); err == nil || !strings.Contains(err.Error(), path) {
				t.Errorf("got %v, want an error that names %s", err, path)
			}
			if left := names(t, dir); !slices.Equal(left, []string{"file"}) {
				t.Errorf("there are %v", left)
			}
			if err := replace(filepath.Join(dir, "missing", "file"), nil); err == nil {
				t.Error("a file was written in a folder that is not there")
			}
		})
	}
}

func TestWhatCrashesHaveLeftIsRemoved(t *testing.T) {
	dir := t.TempDir()
	old := time.Now().Add(-2 * time.Hour)
	for _, name := range []string{
		"file.1.tmp", "file.2.tmp", "other.1.tmp", "file.txt", "file.3.tmp", "file.prod.tmp", "file.key.1.tmp", "file..tmp",
	} {
		if err := os.WriteFile(filepath.Join(dir, name), nil, 0o600); err != nil {
			t.Fatal(err)
		}
		if name == "file.3.tmp" { // another call may be writing it
			continue
		}
		if err := os.Chtimes(filepath.Join(dir, name), old, old); err != nil {
			t.Fatal(err)
		}
	}
	if err := disk.Replace(filepath.Join(dir, "file"), nil); err != nil {
		t.Fatal(err)
	}
	want := []string{
		"file", "file..tmp", "file.3.tmp", "file.key.1.tmp", "file.prod.tmp", "file.txt", "other.1.tmp",
	}
	if left := names(t, dir); !slices.Equal(left, want) {
		t.Errorf("there are %q, want %q", left, want)
	}
}

func names(t *testing.T, dir string) []string {
	t.Helper()
	entries, err := os.ReadDir(dir)
	if err != nil {
		t.Fatal(err)
	}
	var all []string
	for _, e := range entries {
		all = append(all, e.Name())
	}
	return all
}
