package cluster

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log"
	"net/http"
	"net/netip"
	"time"

	"github.com/google/go-containerregistry/pkg/name"
	"github.com/google/go-containerregistry/pkg/registry"
	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/layout"
	"github.com/google/go-containerregistry/pkg/v1/remote"
)

const (
	registryPort = 5000
	// RegistryName is a name of the cluster's registry, at port 80, for clients such as Helm in the control plane's
	// network.
	RegistryName = "registry.example.com"
)

// The images of the cluster itself.
const (
	pauseImage   = "registry.test/pause:lab"
	coreDNSImage = "registry.test/coredns:lab"
)

// startRegistry serves an empty registry in the router, for the nodes and for clients in the cluster's networks.
func (c *Cluster) startRegistry(ctx context.Context) error {
	dir, err := c.folder("registry")
	if err != nil {
		return err
	}
	handler := registry.New(
		registry.WithBlobHandler(registry.NewDiskBlobHandler(dir)), registry.Logger(log.New(io.Discard, "", 0)),
	)
	server := &http.Server{Handler: handler, ReadHeaderTimeout: time.Minute}
	c.OnClose(func(context.Context) { _ = server.Close() })
	for _, port := range []uint16{registryPort, 80} {
		at := netip.AddrPortFrom(c.segment.Gateway(), port)
		listener, err := c.segment.Router.Listen(ctx, at.String())
		if err != nil {
			return fmt.Errorf("starting the registry: %w", err)
		}
		go func() { _ = server.Serve(listener) }() // ends with Close
	}
	return nil
}

// Load adds the image of an OCI layout to the cluster's registry: the first entry of its index, an image or an index
// with one image for each platform. Pods use it by the name that is given here, with any registry in it:
// example.com/team/program:v1, or program:v1 as with docker.io.
func (c *Cluster) Load(ctx context.Context, layoutDir, image string) error {
	send, err := readLayout(layoutDir)
	if err != nil {
		return fmt.Errorf("reading the image in %s: %w", layoutDir, err)
	}
	return c.push(ctx, image, send)
}

// A sender writes an image to a registry.
type sender func(to name.Reference, options ...remote.Option) error

func readLayout(dir string) (sender, error) {
	index, err := layout.ImageIndexFromPath(dir)
	if err != nil {
		return nil, err
	}
	manifest, err := index.IndexManifest()
	if err != nil {
		return nil, err
	}
	if len(manifest.Manifests) == 0 {
		return nil, errors.New("it has no entry")
	}
	first := manifest.Manifests[0]
	if first.MediaType.IsIndex() {
		platforms, err := index.ImageIndex(first.Digest)
		return func(to name.Reference, options ...remote.Option) error {
			return remote.WriteIndex(to, platforms, options...)
		}, err
	}
	image, err := index.Image(first.Digest)
	return func(to name.Reference, options ...remote.Option) error { return remote.Write(to, image, options...) }, err
}

// LoadImage is Load for an image that is not in a layout.
func (c *Cluster) LoadImage(ctx context.Context, image v1.Image, as string) error {
	return c.push(ctx, as, func(to name.Reference, options ...remote.Option) error {
		return remote.Write(to, image, options...)
	})
}

// push sends an image to the registry, under its name without the registry in it.
func (c *Cluster) push(ctx context.Context, image string, send sender) error {
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
