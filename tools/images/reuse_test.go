package main

import (
	"os"
	"path/filepath"
	"testing"
)

// TestImagesAreReusedOnlyIfNothingHasChanged changes each input of images, one after the other.
func TestImagesAreReusedOnlyIfNothingHasChanged(t *testing.T) {
	root, programs := t.TempDir(), t.TempDir()
	o := options{root: root, out: filepath.Join(t.TempDir(), "images"), arches: []string{"amd64"}}
	files := []string{filepath.Join(root, "tools", "images", packagesFile), pinnedWheels(root)}
	for _, i := range images {
		files = append(files, filepath.Join(programs, "amd64", i.program))
	}
	set := func(file, content string) {
		t.Helper()
		if err := writeFile(file, []byte(content)); err != nil {
			t.Fatal(err)
		}
	}
	inputs := func(o options, r release) string {
		t.Helper()
		got, err := o.inputs(r, programs)
		if err != nil {
			t.Fatal(err)
		}
		return got
	}
	for _, file := range files {
		set(file, "first")
	}
	first := inputs(o, testRelease)
	if o.current(first) {
		t.Error("a folder that does not exist is current")
	}
	set(filepath.Join(o.out, inputsFile), first)
	if !o.current(inputs(o, testRelease)) {
		t.Error("images with the same input are not current")
	}
	for _, file := range files {
		set(file, "second")
		if o.current(inputs(o, testRelease)) {
			t.Errorf("images are current after a change of %s", filepath.Base(file))
		}
		set(file, "first")
	}
	for name, changed := range map[string]release{
		"version": {version: "v0.1.3", commit: testRelease.commit, time: testRelease.time},
		"commit":  {version: testRelease.version, commit: testRelease.commit + "-dirty", time: testRelease.time},
		"time":    {version: testRelease.version, commit: testRelease.commit, time: testRelease.time + 1},
	} {
		if o.current(inputs(o, changed)) {
			t.Errorf("images are current with another %s", name)
		}
	}
	other := o
	other.arches = []string{"arm64"}
	if err := os.CopyFS(filepath.Join(programs, "arm64"), os.DirFS(filepath.Join(programs, "amd64"))); err != nil {
		t.Fatal(err)
	}
	if o.current(inputs(other, testRelease)) {
		t.Error("images are current for another architecture")
	}
	if err := os.Remove(files[2]); err != nil {
		t.Fatal(err)
	}
	if _, err := o.inputs(testRelease, programs); err == nil {
		t.Error("a missing program gives no error")
	}
}
