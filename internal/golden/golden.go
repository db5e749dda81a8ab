// Package golden compares the output of a test with the sections of a txtar file, and rewrites the file when the test
// runs with -update. One file is one case: its comment states the point of the case, its first section is the input,
// and the other sections are the expected output. It knows nothing about the content of the sections.
package golden

import (
	"flag"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"golang.org/x/tools/txtar"
)

var update = flag.Bool("update", false, "rewrite golden files with what the tests make now")

// Case is one golden file.
type Case struct {
	Name string // the file name without .txtar

	path    string
	archive *txtar.Archive
}

// Cases reads all files that match a pattern, sorted by name. It fails the test if no file matches, if a file has no
// comment, or if the first section of a file is not the one named input.
func Cases(t *testing.T, pattern, input string) []Case {
	t.Helper()
	paths, err := filepath.Glob(pattern)
	if err != nil {
		t.Fatal(err)
	}
	if len(paths) == 0 {
		t.Fatalf("no golden file matches %s", pattern)
	}
	var cases []Case
	for _, path := range paths {
		archive, err := txtar.ParseFile(path)
		if err != nil {
			t.Fatal(err)
		}
		if len(archive.Files) == 0 || archive.Files[0].Name != input || len(archive.Comment) == 0 {
			t.Fatalf("%s does not begin with a comment and the section %s", path, input)
		}
		cases = append(cases, Case{Name: strings.TrimSuffix(filepath.Base(path), ".txtar"), path: path, archive: archive})
	}
	return cases
}

// Input returns the content of the first section.
func (c Case) Input() []byte { return c.archive.Files[0].Data }

// Section returns the content of an output section. It fails the test if there is no section with that name.
func (c Case) Section(t *testing.T, name string) []byte {
	t.Helper()
	for _, f := range c.archive.Files[1:] {
		if f.Name == name {
			return f.Data
		}
	}
	t.Fatalf("%s has no section %s: make update-golden", c.path, name)
	return nil
}

// Check compares the output sections with what the test made. With -update it replaces them instead, and drops sections
// that are not made any longer.
func (c Case) Check(t *testing.T, made ...txtar.File) {
	t.Helper()
	want := &txtar.Archive{Comment: c.archive.Comment, Files: append(c.archive.Files[:1:1], made...)}
	if *update {
		if err := os.WriteFile(c.path, txtar.Format(want), 0o644); err != nil {
			t.Fatal(err)
		}
		return
	}
	if diff := cmp.Diff(string(txtar.Format(c.archive)), string(txtar.Format(want))); diff != "" {
		t.Errorf("%s differs (-golden +made); if it should, make update-golden:\n%s", c.path, diff)
	}
}

// Updating reports whether the test runs with -update, for expected output that is not a file of its own.
func Updating() bool { return *update }

// CheckFile compares a whole file with what the test made. With -update it replaces the file instead.
func CheckFile(t *testing.T, path string, made []byte) {
	t.Helper()
	if *update {
		if err := os.WriteFile(path, made, 0o644); err != nil {
			t.Fatal(err)
		}
		return
	}
	have, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(string(have), string(made)); diff != "" {
		t.Errorf("%s differs (-golden +made); if it should, make update-golden:\n%s", path, diff)
	}
}
