// Package disk replaces files so that a reader finds all of the old one or all of the new one, after a power cut too. It
// knows nothing about what is in them.
package disk

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
)

// Replace replaces a file, with mode 0600. Several may do so at the same time, and the last one wins.
func Replace(path string, data []byte) error {
	temporary, err := os.CreateTemp(filepath.Dir(path), filepath.Base(path)+".*.tmp") // CreateTemp makes it with mode 0600
	if err == nil {
		err = finish(temporary, path, data)
	}
	if err != nil {
		return fmt.Errorf("writing %s: %w", path, err)
	}
	return nil
}

// ReplaceBy is Replace with a name for the temporary file, in the same folder: crashes leave one of it at most, however many
// there are. Only one may replace the file at a time. Its errors are those of package os, for the caller to wrap.
func ReplaceBy(temporary, path string, data []byte) error {
	file, err := os.OpenFile(temporary, os.O_WRONLY|os.O_CREATE|os.O_TRUNC, 0o600)
	if err != nil {
		return err
	}
	return finish(file, path, data)
}

// finish writes the temporary file and gives it its name.
func finish(temporary *os.File, path string, data []byte) error {
	_, err := temporary.Write(data)
	if err == nil {
		err = temporary.Sync()
	}
	if err = errors.Join(err, temporary.Close()); err == nil {
		err = os.Rename(temporary.Name(), path)
	}
	if err != nil {
		return errors.Join(err, os.Remove(temporary.Name())) // it may be what fills the disk
	}
	return SyncFolder(filepath.Dir(path))
}

// SyncFolder makes renames in a folder last, and come before what follows.
func SyncFolder(dir string) error {
	folder, err := os.Open(dir)
	if err != nil {
		return err
	}
	return errors.Join(folder.Sync(), folder.Close())
}
