package main

import (
	"archive/tar"
	"bytes"
	"compress/gzip"
	"encoding/binary"
	"fmt"
	"io"
	"maps"
	"path"
	"slices"
	"time"

	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/tarball"
	"github.com/google/go-containerregistry/pkg/v1/types"
)

// user is the user and group of every process, the nonroot of distroless images. Files belong to root, so that a
// process cannot change its program.
const user = 65532

// A file is one entry of a layer.
type file struct {
	data         []byte
	link         string // target of a symbolic link; empty: none
	mode         int64
	folder       bool
	owner        int    // user and group
	capabilities uint32 // permitted when the file is executed, as bits 1<<CAP_X
}

// capNetAdmin is CAP_NET_ADMIN of linux/capability.h. The gateway's agent closes the sockets of revoked edges with it.
const capNetAdmin = 1 << 12

// capabilityRecord is the PAX record from which container runtimes set the extended attribute of a file.
const capabilityRecord = "SCHILY.xattr.security.capability"

// vfsCapabilities encodes a file capability as setcap does for "+p": struct vfs_cap_data of linux/capability.h,
// revision 2, with two words for each of permitted and inheritable. It lacks the effective bit, with which the kernel
// would refuse to start the program in a container without the capability: package sockets makes it effective.
func vfsCapabilities(permitted uint32) string {
	const revision2 = 0x02000000
	var record []byte
	for _, word := range []uint32{revision2, permitted, 0, 0, 0} {
		record = binary.LittleEndian.AppendUint32(record, word)
	}
	return string(record)
}

// A tree is the content of a layer by path, without a leading slash.
type tree map[string]file

// plain adds a file that everyone may read.
func (t tree) plain(name string, data []byte) { t[name] = file{data: data, mode: 0o644} }

// program adds a file that everyone may execute.
func (t tree) program(name string, data []byte) { t[name] = file{data: data, mode: 0o755} }

// layer returns a compressed layer, which depends only on the tree and the time. Folders that lead to files belong to
// root.
func (t tree) layer(when time.Time) (v1.Layer, error) {
	var archive bytes.Buffer
	if err := t.write(&archive, when); err != nil {
		return nil, err
	}
	return tarball.LayerFromOpener(
		func() (io.ReadCloser, error) { return io.NopCloser(bytes.NewReader(archive.Bytes())), nil },
		tarball.WithMediaType(types.OCILayer), tarball.WithCompressionLevel(gzip.DefaultCompression),
		tarball.WithCompressedCaching,
	)
}

func (t tree) write(to io.Writer, when time.Time) error {
	all := maps.Clone(t)
	for name := range t {
		for dir := path.Dir(name); dir != "."; dir = path.Dir(dir) {
			if _, ok := all[dir]; !ok {
				all[dir] = file{mode: 0o755, folder: true}
			}
		}
	}
	w := tar.NewWriter(to)
	for _, name := range slices.Sorted(maps.Keys(all)) { // a folder sorts before its content
		f := all[name]
		header := &tar.Header{
			Name: name, Typeflag: tar.TypeReg, Mode: f.mode, Size: int64(len(f.data)), Uid: f.owner, Gid: f.owner,
			ModTime: when, Format: tar.FormatPAX,
		}
		switch {
		case f.folder:
			header.Typeflag, header.Name = tar.TypeDir, name+"/"
		case f.link != "":
			header.Typeflag, header.Linkname = tar.TypeSymlink, f.link
		}
		if f.capabilities != 0 {
			header.PAXRecords = map[string]string{capabilityRecord: vfsCapabilities(f.capabilities)}
		}
		if err := w.WriteHeader(header); err != nil {
			return fmt.Errorf("%s: %w", name, err)
		}
		if _, err := w.Write(f.data); err != nil {
			return fmt.Errorf("%s: %w", name, err)
		}
	}
	return w.Close()
}
