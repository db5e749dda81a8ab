package install

import (
	"archive/tar"
	"cmp"
	"errors"
	"fmt"
	"io"
	"os"
	"path"
	"path/filepath"
	"testing"

	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/layout"
	"sigs.k8s.io/yaml"

	"github.com/fairlead/fairlead/test/lab/cluster"
	"github.com/fairlead/fairlead/test/lab/workspace"
)

// imagesEnv is the environment variable with the folder of the images; by default it is bin/test/images.
const imagesEnv = "FAIRLEAD_IMAGES"

// repository is the registry and the path of images and charts in docs/install.md.
const repository = cluster.RegistryName + "/fairlead"

// release is the images of one version, as tools/images writes them.
type release struct {
	dir, version string
	digests      map[string]string // by the name of the image, without a prefix
}

func imagesOf(root string) string {
	return cmp.Or(os.Getenv(imagesEnv), filepath.Join(root, "bin", "test", "images"))
}

func findRelease(t *testing.T) release {
	t.Helper()
	root, err := workspace.FindRoot()
	must(t, err)
	r := release{dir: imagesOf(root)}
	data, err := os.ReadFile(filepath.Join(r.dir, "values.yaml"))
	must(t, err)
	var values struct {
		Image struct {
			Tag     string
			Digests map[string]string
		}
	}
	must(t, yaml.Unmarshal(data, &values))
	r.version, r.digests = values.Image.Tag, values.Image.Digests
	if r.version == "" || r.digests["gateway"] == "" || r.digests["edge"] == "" {
		t.Fatalf("the images in %s have no version, or no digests", r.dir)
	}
	return r
}

// image returns the reference of an image.
func (r release) image(name string) string { return repository + "/fairlead-" + name + ":" + r.version }

// pinned returns the reference of an image by its digest.
func (r release) pinned(name string) string {
	return repository + "/fairlead-" + name + "@" + r.digests[name]
}

// push pushes all images to a cluster's registry, as make push-images does.
func (r release) push(t *testing.T, w *World, c *cluster.Cluster) {
	t.Helper()
	w.run(t, c, fmt.Sprintf("cd tools/images; HOME=%s CGO_ENABLED=0 go run -trimpath . -push-only -registry http://%s "+
		"-out %s", os.Getenv("HOME"), repository, r.dir))
}

// pushChart packages the chart and pushes it to a cluster's registry.
func (r release) pushChart(t *testing.T, w *World, c *cluster.Cluster) {
	t.Helper()
	w.run(t, c, fmt.Sprintf("make --old-file=parts.chart chart-push VERSION=%s REGISTRY=%s HELM_PUSH_FLAGS=--plain-http",
		r.version, repository))
}

// extract writes a program of an image to a folder.
func (r release) extract(t *testing.T, image, program, to string) {
	t.Helper()
	layer, err := r.lastLayer(image)
	must(t, err)
	archive, err := layer.Uncompressed()
	must(t, err)
	defer archive.Close()
	for files := tar.NewReader(archive); ; {
		header, err := files.Next()
		if errors.Is(err, io.EOF) {
			t.Fatalf("the image %s has no program %s", image, program)
		}
		must(t, err)
		if header.Typeflag != tar.TypeReg || path.Base(header.Name) != program {
			continue
		}
		file, err := os.OpenFile(filepath.Join(to, program), os.O_CREATE|os.O_WRONLY, 0o755)
		must(t, err)
		_, err = io.Copy(file, files)
		must(t, errors.Join(err, file.Close()))
		return
	}
}

// lastLayer returns the layer of an image with our program.
func (r release) lastLayer(name string) (v1.Layer, error) {
	top, err := layout.ImageIndexFromPath(filepath.Join(r.dir, "fairlead-"+name))
	for range 2 { // the layout, and the image's own index with its platforms
		if err != nil {
			return nil, err
		}
		manifest, err := top.IndexManifest()
		if err != nil {
			return nil, err
		}
		first := manifest.Manifests[0]
		if first.MediaType.IsIndex() {
			if top, err = top.ImageIndex(first.Digest); err != nil {
				return nil, err
			}
			continue
		}
		image, err := top.Image(first.Digest)
		if err != nil {
			return nil, err
		}
		layers, err := image.Layers()
		if err != nil {
			return nil, err
		}
		return layers[len(layers)-1], nil
	}
	return nil, fmt.Errorf("image %s has no platform", name)
}
