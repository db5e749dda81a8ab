// Package disk replaces files atomically: a reader finds either the complete old content or the complete new one, even
// after a power failure. It knows nothing about the content.
package disk

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"time"
)

// leftoverAge is the age from which a temporary file is one that a crash has left.
const leftoverAge = time.Hour

// Replace replaces a file with mode 0600. It is safe for concurrent use; the last call wins. It removes temporary files
// that crashes have left.
func Replace(path string, data []byte) error {
	removeLeftovers(path)
	temporary, err := os.CreateTemp(filepath.Dir(path), filepath.Base(path)+".*.tmp") // CreateTemp uses mode 0600
	if err == nil {
		err = finish(temporary, path, data)
	}
	if err != nil {
		return fmt.Errorf("writing %s: %w", path, err)
	}
	return nil
}

// removeLeftovers removes old temporary files of a path. Errors are ignored, because Replace does not need it.
func removeLeftovers(path string) {
	entries, err := os.ReadDir(filepath.Dir(path))
	if err != nil {
		return
	}
	for _, e := range entries {
		name, ours := strings.CutPrefix(e.Name(), filepath.Base(path)+".")
		random, temporary := strings.CutSuffix(name, ".tmp")
		if !ours || !temporary || random == "" || strings.Trim(random, "0123456789") != "" { // as CreateTemp names them
			continue
		}
		if info, err := e.Info(); err == nil && info.Mode().IsRegular() && time.Since(info.ModTime()) > leftoverAge {
			_ = os.Remove(filepath.Join(filepath.Dir(path), e.Name()))
		}
	}
}

// ReplaceBy is Replace with a fixed name for the temporary file, in the same folder. Crashes therefore leave at most
// one temporary file. Only one caller may replace the file at a time. Errors are returned unwrapped from package os.
func ReplaceBy(temporary, path string, data []byte) error {
	file, err := os.OpenFile(temporary, os.O_WRONLY|os.O_CREATE|os.O_TRUNC, 0o600)
	if err != nil {
		return err
	}
	return finish(file, path, data)
}

// finish writes the temporary file and renames it to path.
func finish(temporary *os.File, path string, data []byte) error {
	_, err := temporary.Write(data)
	if err == nil {
		err = temporary.Sync()
	}
	if err = errors.Join(err, temporary.Close()); err == nil {
		err = os.Rename(temporary.Name(), path)
	}
	if err != nil {
		return errors.Join(err, os.Remove(temporary.Name())) // the temporary file may be what fills the disk
	}
	return SyncFolder(filepath.Dir(path))
}

// SyncFolder makes the renames in a folder durable, and orders them before later writes.
func SyncFolder(dir string) error {
	folder, err := os.Open(dir)
	if err != nil {
		return err
	}
	return errors.Join(folder.Sync(), folder.Close())
}
