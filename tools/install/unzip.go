package main

import (
	"archive/zip"
	"fmt"
	"io"
	"os"
)

// unzipOne copies one member of a zip archive to an executable file.
func unzipOne(archive, member, to string) error {
	z, err := zip.OpenReader(archive)
	if err != nil {
		return err
	}
	defer z.Close()
	in, err := z.Open(member)
	if err != nil {
		return fmt.Errorf("%s in %s: %w", member, archive, err)
	}
	defer in.Close()
	out, err := os.OpenFile(to, os.O_CREATE|os.O_WRONLY|os.O_EXCL, 0o755)
	if err != nil {
		return err
	}
	if _, err := io.Copy(out, in); err != nil {
		out.Close()
		return err
	}
	return out.Close()
}
