package cluster

import (
	"archive/tar"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"log"
	"net/http"
	"os"
	"path/filepath"
	"runtime"
	"time"

	"github.com/google/go-containerregistry/pkg/name"
	"github.com/google/go-containerregistry/pkg/registry"
	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/empty"
	"github.com/google/go-containerregistry/pkg/v1/layout"
	"github.com/google/go-containerregistry/pkg/v1/mutate"
	"github.com/google/go-containerregistry/pkg/v1/remote"
	"github.com/google/go-containerregistry/pkg/v1/tarball"
)

const registryPort = 5000

// The images of the cluster itself.
const (
	pauseImage   = "registry.test/pause:lab"
	coreDNSImage = "registry.test/coredns:lab"
)

// user is the user of ProgramImage, which Pod Security's restricted level accepts.
const user = "65532:65532"

// startRegistry serves an empty registry in the router, for the nodes and for clients in the cluster's networks.
func (c *Cluster) startRegistry(ctx context.Context) error {
	dir, err := c.folder("registry")
	if err != nil {
		return err
	}
	handler := registry.New(
		registry.WithBlobHandler(registry.NewDiskBlobHandler(dir)), registry.Logger(log.New(io.Discard, "", 0)),
	)
	listener, err := c.segment.Router.Listen(ctx, c.Registry().String())
	if err != nil {
		return fmt.Errorf("starting the registry: %w", err)
	}
	server := &http.Server{Handler: handler, ReadHeaderTimeout: time.Minute}
	go func() { _ = server.Serve(listener) }() // ends with Close
	c.OnClose(func(context.Context) { _ = server.Close() })
	return nil
}

// Load adds the image of an OCI layout to the cluster's registry. Pods use it by the name that is given here, with any
// registry in it: example.com/team/program:v1, or program:v1 as with docker.io.
func (c *Cluster) Load(ctx context.Context, layoutDir, image string) error {
	index, err := layout.ImageIndexFromPath(layoutDir)
	if err != nil {
		return fmt.Errorf("reading the image in %s: %w", layoutDir, err)
	}
	manifest, err := index.IndexManifest()
	if err != nil {
		return fmt.Errorf("reading the image in %s: %w", layoutDir, err)
	}
	if len(manifest.Manifests) != 1 {
		return c.push(ctx, image, func(to name.Reference, options ...remote.Option) error {
			return remote.WriteIndex(to, index, options...)
		})
	}
	// The only entry of a layout's index is the image, or an index with one image for each platform.
	only := manifest.Manifests[0]
	if only.MediaType.IsIndex() {
		inner, err := index.ImageIndex(only.Digest)
		if err != nil {
			return fmt.Errorf("reading the image in %s: %w", layoutDir, err)
		}
		return c.push(ctx, image, func(to name.Reference, options ...remote.Option) error {
			return remote.WriteIndex(to, inner, options...)
		})
	}
	one, err := index.Image(only.Digest)
	if err != nil {
		return fmt.Errorf("reading the image in %s: %w", layoutDir, err)
	}
	return c.LoadImage(ctx, one, image)
}

// LoadImage is Load for an image that is not in a layout.
func (c *Cluster) LoadImage(ctx context.Context, image v1.Image, as string) error {
	return c.push(ctx, as, func(to name.Reference, options ...remote.Option) error {
		return remote.Write(to, image, options...)
	})
}

// push sends an image to the registry, under its name without the registry in it.
func (c *Cluster) push(ctx context.Context, image string, send func(name.Reference, ...remote.Option) error) error {
	reference, err := name.ParseReference(image)
	if err == nil {
		own := fmt.Sprintf("%s/%s:%s", c.Registry(), reference.Context().RepositoryStr(), reference.Identifier())
		reference, err = name.NewTag(own, name.Insecure)
	}
	if err == nil {
		transport := &http.Transport{DialContext: c.segment.Router.DialContext}
		defer transport.CloseIdleConnections()
		err = send(reference, remote.WithContext(ctx), remote.WithTransport(transport))
	}
	if err != nil {
		return fmt.Errorf("loading image %s: %w", image, err)
	}
	return nil
}

// loadOwnImages loads the images of the cluster itself.
func (c *Cluster) loadOwnImages(ctx context.Context) error {
	var errs []error
	for image, program := range map[string]string{pauseImage: "pause", coreDNSImage: "coredns"} {
		built, err := ProgramImage(c.Parts.RealPath(program))
		if err == nil {
			err = c.LoadImage(ctx, built, image)
		}
		errs = append(errs, err)
	}
	return errors.Join(errs...)
}

// ProgramImage returns an image whose only file is a statically linked program, which it runs as an unprivileged user.
func ProgramImage(file string) (v1.Image, error) {
	program, err := os.ReadFile(file)
	if err != nil {
		return nil, fmt.Errorf("making an image: %w", err)
	}
	at := "/" + filepath.Base(file)
	var archive bytes.Buffer
	w := tar.NewWriter(&archive)
	header := &tar.Header{Name: at[1:], Mode: 0o755, Size: int64(len(program)), Typeflag: tar.TypeReg}
	err = w.WriteHeader(header)
	if err == nil {
		_, err = w.Write(program)
	}
	if err := errors.Join(err, w.Close()); err != nil {
		return nil, fmt.Errorf("making an image of %s: %w", file, err)
	}
	layer, err := tarball.LayerFromOpener(func() (io.ReadCloser, error) {
		return io.NopCloser(bytes.NewReader(archive.Bytes())), nil
	}, tarball.WithCompressionLevel(1))
	if err != nil {
		return nil, fmt.Errorf("making an image of %s: %w", file, err)
	}
	image, err := mutate.AppendLayers(empty.Image, layer)
	var config *v1.ConfigFile
	if err == nil {
		config, err = image.ConfigFile()
	}
	if err != nil {
		return nil, fmt.Errorf("making an image of %s: %w", file, err)
	}
	config = config.DeepCopy()
	config.Architecture, config.OS = runtime.GOARCH, "linux"
	config.Config.Entrypoint, config.Config.User = []string{at}, user
	return mutate.ConfigFile(image, config)
}
