package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"time"

	"github.com/google/go-containerregistry/pkg/authn"
	"github.com/google/go-containerregistry/pkg/name"
	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/empty"
	"github.com/google/go-containerregistry/pkg/v1/layout"
	"github.com/google/go-containerregistry/pkg/v1/mutate"
	"github.com/google/go-containerregistry/pkg/v1/partial"
	"github.com/google/go-containerregistry/pkg/v1/remote"
	"github.com/google/go-containerregistry/pkg/v1/static"
	"github.com/google/go-containerregistry/pkg/v1/types"
	"golang.org/x/sync/errgroup"
)

const (
	sbomType    types.MediaType = "application/spdx+json"
	refName                     = "org.opencontainers.image.ref.name"
	digestsFile                 = "digests"
	kustomize                   = "kustomization.yaml" // a component that sets the digests
	helmValues                  = "values.yaml"
)

// mostCompressed bounds the compressed layers of one platform, which a node pulls before it starts an edge.
const mostCompressed = 60 << 20

// writeAll writes the layouts of all images, their SPDX documents, and the digests in three forms: one reference on
// each line, a component for kustomizations, and values for the Helm chart.
func (m *maker) writeAll(to string, out io.Writer) error {
	var digests, component, values bytes.Buffer
	component.WriteString("apiVersion: kustomize.config.k8s.io/v1alpha1\nkind: Component\nimages:\n")
	fmt.Fprintf(&values, "image:\n  tag: %q\n  digests:\n", m.release.version)
	all, sizes := make([]v1.Hash, len(images)), make([]bytes.Buffer, len(images))
	var group errgroup.Group
	group.SetLimit(runtime.NumCPU())
	for n, i := range images {
		group.Go(func() (err error) {
			if all[n], err = m.write(i, to, &sizes[n]); err != nil {
				return fmt.Errorf("%s: %w", i.name, err)
			}
			return nil
		})
	}
	if err := group.Wait(); err != nil {
		return err
	}
	for n, i := range images {
		fmt.Fprint(out, sizes[n].String())
		fmt.Fprintf(&digests, "%s%s@%s\n", prefix, i.name, all[n])
		fmt.Fprintf(&component, "  - {name: %s%s, digest: %q}\n", prefix, i.name, all[n])
		fmt.Fprintf(&values, "    %s: %q\n", i.name, all[n])
	}
	return errors.Join(
		writeFile(filepath.Join(to, digestsFile), digests.Bytes()),
		writeFile(filepath.Join(to, kustomize), component.Bytes()), writeFile(filepath.Join(to, helmValues), values.Bytes()),
	)
}

// write writes one image, and returns the digest of its index.
func (m *maker) write(i image, to string, out io.Writer) (v1.Hash, error) {
	var platforms []platformImage
	for _, arch := range m.arches {
		p, err := m.make(i, arch)
		if err != nil {
			return v1.Hash{}, err
		}
		size, err := compressedSize(p.image)
		if err != nil {
			return v1.Hash{}, err
		}
		if size > mostCompressed {
			return v1.Hash{}, fmt.Errorf("%s has %d bytes, more than %d", arch, size, mostCompressed)
		}
		fmt.Fprintf(out, "images: %s%s for %s: %.1f MB\n", prefix, i.name, arch, float64(size)/1e6)
		document := filepath.Join(to, "sbom", prefix+i.name+"-"+arch+".spdx.json")
		if err := writeFile(document, p.sbom); err != nil {
			return v1.Hash{}, err
		}
		platforms = append(platforms, p)
	}
	index := m.index(i, platforms)
	if err := writeLayout(filepath.Join(to, prefix+i.name), index, platforms, m.release); err != nil {
		return v1.Hash{}, err
	}
	return index.Digest()
}

func compressedSize(i v1.Image) (total int64, err error) {
	manifest, err := i.Manifest()
	if err != nil {
		return 0, err
	}
	for _, l := range manifest.Layers {
		total += l.Size
	}
	return total, nil
}

// writeLayout writes an index with its tag, and the SPDX document of each platform as a referrer of that platform's
// manifest.
func writeLayout(dir string, index v1.ImageIndex, platforms []platformImage, r release) error {
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return err
	}
	path, err := layout.Write(dir, empty.Index)
	if err != nil {
		return err
	}
	if err := path.AppendIndex(index, layout.WithAnnotations(map[string]string{refName: r.version})); err != nil {
		return err
	}
	for _, p := range platforms {
		document, err := referrer(p, r)
		if err != nil {
			return err
		}
		if err := path.AppendImage(document); err != nil {
			return err
		}
	}
	return nil
}

// referrer returns the manifest that attaches an SPDX document to the image of its platform. Its artifact type is the
// media type of the document, by which cosign, oras and trivy find it.
func referrer(p platformImage, r release) (v1.Image, error) {
	subject, err := partial.Descriptor(p.image)
	if err != nil {
		return nil, err
	}
	made := mutate.ConfigMediaType(mutate.MediaType(empty.Image, types.OCIManifestSchema1), sbomType)
	if made, err = mutate.AppendLayers(made, static.NewLayer(p.sbom, sbomType)); err != nil {
		return nil, err
	}
	made = mutate.Annotations(made, map[string]string{
		"org.opencontainers.image.created": r.created().Format(time.RFC3339),
		"org.opencontainers.image.title":   "sbom.spdx.json",
	}).(v1.Image)
	return mutate.Subject(made, v1.Descriptor{
		MediaType: subject.MediaType, Digest: subject.Digest, Size: subject.Size,
	}).(v1.Image), nil
}

// push pushes all layouts of a folder to a registry, with the credentials of docker's configuration. It prints each
// reference with its digest.
func push(ctx context.Context, from, registry string, out io.Writer) error {
	var options []name.Option
	if plain, ok := strings.CutPrefix(registry, "http://"); ok {
		registry, options = plain, append(options, name.Insecure)
	}
	registry = strings.TrimSuffix(strings.TrimPrefix(registry, "https://"), "/")
	for _, i := range images {
		top, err := layout.ImageIndexFromPath(filepath.Join(from, prefix+i.name))
		if err != nil {
			return fmt.Errorf("reading %s: %w: `make images` builds it", i.name, err)
		}
		if err := pushLayout(ctx, top, registry+"/"+prefix+i.name, options, out); err != nil {
			return fmt.Errorf("pushing %s: %w", i.name, err)
		}
	}
	return nil
}

// pushLayout pushes the image of a layout with its tag, and then the documents that refer to it.
func pushLayout(ctx context.Context, top v1.ImageIndex, repository string, options []name.Option, out io.Writer) error {
	manifest, err := top.IndexManifest()
	if err != nil {
		return err
	}
	remotely := []remote.Option{remote.WithContext(ctx), remote.WithAuthFromKeychain(authn.DefaultKeychain)}
	for _, d := range manifest.Manifests {
		if d.MediaType.IsIndex() {
			tag, err := name.NewTag(repository+":"+d.Annotations[refName], append(options, name.StrictValidation)...)
			if err != nil {
				return err
			}
			index, err := top.ImageIndex(d.Digest)
			if err != nil {
				return err
			}
			if err := remote.WriteIndex(tag, index, remotely...); err != nil {
				return err
			}
			fmt.Fprintf(out, "images: pushed %s@%s\n", tag, d.Digest)
			continue
		}
		digest, err := name.NewDigest(repository+"@"+d.Digest.String(), options...)
		if err != nil {
			return err
		}
		document, err := top.Image(d.Digest)
		if err != nil {
			return err
		}
		if err := remote.Write(digest, document, remotely...); err != nil {
			return err
		}
	}
	return nil
}
