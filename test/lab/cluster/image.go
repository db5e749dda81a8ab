package cluster

import (
	"archive/tar"
	"bytes"
	"context"
	"encoding/binary"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"

	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/empty"
	"github.com/google/go-containerregistry/pkg/v1/mutate"
	"github.com/google/go-containerregistry/pkg/v1/tarball"
	"golang.org/x/sys/unix"
)

// user is the user of an Image, which Pod Security's restricted level accepts.
const user = "65532:65532"

// File is a file of an image.
type File struct {
	From string // on this machine
	To   string // in the image
	// NetAdmin gives the program the capability NET_ADMIN, as setcap cap_net_admin+ep does.
	NetAdmin bool
}

// ProgramImage returns an image whose only file is a statically linked program, in the root folder.
func ProgramImage(program string) (v1.Image, error) {
	at := "/" + filepath.Base(program)
	return Image(at, File{From: program, To: at})
}

// guest is the program of Pods in tests.
const guest = "github.com/fairlead/fairlead/test/lab/cluster/guest"

// GuestImage returns an image of the program guest, which it builds without C, so that it runs in an empty image. It
// needs a working directory in this repository, as tests have.
func GuestImage(ctx context.Context) (v1.Image, error) {
	dir, err := os.MkdirTemp("", "guest-")
	if err != nil {
		return nil, err
	}
	defer func() { _ = os.RemoveAll(dir) }()
	program := filepath.Join(dir, "guest")
	build := exec.CommandContext(ctx, "go", "build", "-ldflags=-s -w", "-o", program, guest)
	build.Env = append(os.Environ(), "CGO_ENABLED=0")
	if out, err := build.CombinedOutput(); err != nil {
		return nil, fmt.Errorf("building the guest: %w: %s", err, out)
	}
	return ProgramImage(program)
}

// Image returns an image for this machine that consists of files. It runs a program as an unprivileged user. All files
// belong to root and are executable.
func Image(entrypoint string, files ...File) (v1.Image, error) {
	image, err := build(entrypoint, files)
	if err != nil {
		return nil, fmt.Errorf("making an image with %s: %w", entrypoint, err)
	}
	return image, nil
}

func build(entrypoint string, files []File) (v1.Image, error) {
	var archive bytes.Buffer
	w := tar.NewWriter(&archive)
	for _, file := range files {
		if err := file.write(w); err != nil {
			return nil, err
		}
	}
	if err := w.Close(); err != nil {
		return nil, err
	}
	open := func() (io.ReadCloser, error) { return io.NopCloser(bytes.NewReader(archive.Bytes())), nil }
	layer, err := tarball.LayerFromOpener(open, tarball.WithCompressionLevel(1))
	if err != nil {
		return nil, err
	}
	image, err := mutate.AppendLayers(empty.Image, layer)
	if err != nil {
		return nil, err
	}
	config, err := image.ConfigFile()
	if err != nil {
		return nil, err
	}
	config = config.DeepCopy()
	config.Architecture, config.OS = runtime.GOARCH, "linux"
	config.Config.Entrypoint, config.Config.User = []string{entrypoint}, user
	return mutate.ConfigFile(image, config)
}

// write adds a file to an archive. A runtime makes the folders above it.
func (f File) write(w *tar.Writer) error {
	data, err := os.ReadFile(f.From)
	if err != nil {
		return err
	}
	header := &tar.Header{
		Name: strings.TrimPrefix(f.To, "/"), Mode: 0o755, Size: int64(len(data)), Typeflag: tar.TypeReg,
		Format: tar.FormatPAX,
	}
	if f.NetAdmin {
		header.PAXRecords = map[string]string{"SCHILY.xattr.security.capability": string(netAdmin())}
	}
	if err := w.WriteHeader(header); err != nil {
		return err
	}
	_, err = w.Write(data)
	return err
}

// netAdmin returns the capability of a file in the kernel's format, struct vfs_cap_data of version 2: permitted and
// effective.
func netAdmin() []byte {
	const version2, effective = 0x02000000, 1
	data := binary.LittleEndian.AppendUint32(nil, version2|effective)
	data = binary.LittleEndian.AppendUint32(data, 1<<unix.CAP_NET_ADMIN) // permitted; inheritable and the high words: none
	return append(data, make([]byte, 12)...)
}
