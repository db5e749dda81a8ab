package main

import (
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"io"
	"os"
	"path/filepath"
)

// inputsFile is the file beside the layouts with the hash of everything from which they were made.
const inputsFile = "inputs"

// inputs returns a hash of everything from which images are made: the release, the programs, the pinned packages and
// wheels of Envoy, and this command itself.
func (o options) inputs(r release, programs string) (string, error) {
	h := sha256.New()
	if err := json.NewEncoder(h).Encode([]any{r.version, r.commit, r.time, o.arches}); err != nil {
		return "", err
	}
	self, err := os.Executable()
	if err != nil {
		return "", err
	}
	files := []string{self, filepath.Join(o.root, "tools", "images", packagesFile), pinnedWheels(o.root)}
	for _, arch := range o.arches {
		for _, i := range images {
			files = append(files, filepath.Join(programs, arch, i.program))
		}
	}
	for _, file := range files {
		if err := hashFile(h, file); err != nil {
			return "", err
		}
	}
	return hex.EncodeToString(h.Sum(nil)), nil
}

// hashFile adds the hash of a file to h.
func hashFile(h io.Writer, file string) error {
	f, err := os.Open(file)
	if err != nil {
		return err
	}
	defer f.Close()
	content := sha256.New()
	if _, err := io.Copy(content, f); err != nil {
		return err
	}
	_, err = h.Write(content.Sum(nil))
	return err
}

// current reports whether the images of the output folder were made from inputs. An interrupted build leaves no folder
// that looks complete.
func (o options) current(inputs string) bool {
	data, err := os.ReadFile(filepath.Join(o.out, inputsFile))
	return err == nil && string(data) == inputs
}
