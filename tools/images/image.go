package main

import (
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"sync"
	"time"

	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/empty"
	"github.com/google/go-containerregistry/pkg/v1/mutate"
	"github.com/google/go-containerregistry/pkg/v1/types"
)

// architectures are those of every image.
var architectures = []string{"amd64", "arm64"}

// An image names a program and what its image has beside it.
type image struct {
	name, program, title string
	envoy                bool   // has Envoy too, on the base with glibc
	capabilities         uint32 // of the file of the program
}

// prefix is the first part of the name of every repository.
const prefix = "fairlead-"

var images = []image{
	{name: "controller", program: "controller", title: "Fairlead controller"},
	{name: "xds-server", program: "xds-server", title: "Fairlead xds-server"},
	{
		name: "gateway", program: "gateway-agent", title: "Fairlead gateway with Envoy", envoy: true,
		capabilities: capNetAdmin,
	},
	{name: "edge", program: "edge-agent", title: "Fairlead edge with Envoy", envoy: true},
	{name: "runtime-extension", program: "runtime-extension", title: "Fairlead runtime extension for Cluster API"},
	{name: "cli", program: "fairlead", title: "Fairlead command line"},
}

// Paths in the images.
const (
	programFolder = "usr/local/bin/"
	sbomFolder    = "var/lib/db/sbom/" // where scanners look for documents about an image
	source        = "https://github.com/fairlead/fairlead"
)

// A maker makes images of one release from parts that are on this machine.
type maker struct {
	release  release
	programs string // folder of the programs: <architecture>/<program>
	arches   []string
	bases    map[string]base
	envoys   map[string]envoy

	mu     sync.Mutex
	shared map[string]func() (v1.Layer, error) // layers that several images have, compressed once
}

// A platformImage is an image for one architecture, with its SPDX document.
type platformImage struct {
	arch  string
	image v1.Image
	sbom  []byte
}

// make makes an image for one architecture. Each layer changes less often than the next: system, Envoy, program.
func (m *maker) make(i image, arch string) (platformImage, error) {
	program, err := os.ReadFile(filepath.Join(m.programs, arch, i.program))
	if err != nil {
		return platformImage{}, err
	}
	if err := checkProgram(program, arch); err != nil {
		return platformImage{}, fmt.Errorf("%s for %s: %w", i.program, arch, err)
	}
	sbom, err := m.sbom(i, arch, program)
	if err != nil {
		return platformImage{}, fmt.Errorf("describing %s for %s: %w", i.name, arch, err)
	}
	own := tree{}
	own[programFolder+i.program] = file{data: program, mode: 0o755, capabilities: i.capabilities}
	own.plain(sbomFolder+prefix+i.name+".spdx.json", sbom)
	var layers []mutate.Addendum
	for _, l := range m.layers(i, arch, own) {
		layer, err := m.layer(l)
		if err != nil {
			return platformImage{}, err
		}
		layers = append(layers, mutate.Addendum{
			Layer: layer, History: v1.History{Created: v1.Time{Time: m.release.created()}, CreatedBy: l.title},
		})
	}
	made, err := m.assemble(i, arch, layers)
	return platformImage{arch: arch, image: made, sbom: sbom}, err
}

// A namedLayer is a layer with its line in the history of the image.
type namedLayer struct {
	title string
	key   string // of a layer that images share; empty: it is not shared
	tree  tree
}

func (m *maker) layers(i image, arch string, own tree) []namedLayer {
	b := m.bases[arch]
	all := []namedLayer{{"base: CA certificates, accounts", "static-" + arch, b.static}}
	if i.envoy {
		e := m.envoys[arch]
		all = append(all, namedLayer{"base: glibc", "glibc-" + arch, b.glibc})
		all = append(all, namedLayer{
			"Envoy " + e.version, "envoy-" + arch, tree{programFolder + "envoy": {data: e.data, mode: 0o755}},
		})
	}
	return append(all, namedLayer{i.program + " " + m.release.version, "", own})
}

// layer returns a compressed layer. Images that are made at the same time share it.
func (m *maker) layer(l namedLayer) (v1.Layer, error) {
	compress := func() (v1.Layer, error) {
		made, err := l.tree.layer(m.release.created())
		if err != nil {
			return nil, fmt.Errorf("layer %s: %w", l.title, err)
		}
		return made, nil
	}
	if l.key == "" {
		return compress()
	}
	m.mu.Lock()
	once, ok := m.shared[l.key]
	if !ok {
		if m.shared == nil {
			m.shared = map[string]func() (v1.Layer, error){}
		}
		once = sync.OnceValues(compress)
		m.shared[l.key] = once
	}
	m.mu.Unlock()
	return once()
}

// assemble returns the image with its configuration and annotations.
func (m *maker) assemble(i image, arch string, layers []mutate.Addendum) (v1.Image, error) {
	made := mutate.ConfigMediaType(mutate.MediaType(empty.Image, types.OCIManifestSchema1), types.OCIConfigJSON)
	made, err := mutate.Append(made, layers...)
	if err != nil {
		return nil, err
	}
	config, err := made.ConfigFile()
	if err != nil {
		return nil, err
	}
	config = config.DeepCopy()
	config.Architecture, config.OS, config.Created = arch, "linux", v1.Time{Time: m.release.created()}
	if arch == "arm64" {
		config.Variant = "v8"
	}
	config.Config = v1.Config{
		User:       strconv.Itoa(user) + ":" + strconv.Itoa(user),
		Entrypoint: []string{"/" + programFolder + i.program},
		Env:        []string{"PATH=/usr/local/bin:/usr/bin:/bin", "HOME=/home/nonroot", "SSL_CERT_FILE=/" + certificates},
		WorkingDir: "/home/nonroot",
		Labels:     m.labels(i),
	}
	if made, err = mutate.ConfigFile(made, config); err != nil {
		return nil, err
	}
	return mutate.Annotations(made, m.labels(i)).(v1.Image), nil
}

// labels are the annotations that the image specification defines. Configurations have them as labels too.
func (m *maker) labels(i image) map[string]string {
	licences := "Apache-2.0"
	if i.envoy {
		licences += " AND LGPL-2.1-or-later AND MPL-2.0" // glibc, Mozilla's list of certificates
	} else {
		licences += " AND MPL-2.0"
	}
	const key = "org.opencontainers.image."
	return map[string]string{
		key + "title":         i.title,
		key + "source":        source,
		key + "documentation": source + "/blob/main/docs/images.md",
		key + "version":       m.release.version,
		key + "revision":      m.release.commit,
		key + "created":       m.release.created().Format(time.RFC3339),
		key + "licenses":      licences,
		"dev.fairlead.envoy":  m.envoys["amd64"].version,
	}
}

// index returns the image for all platforms.
func (m *maker) index(i image, platforms []platformImage) v1.ImageIndex {
	index := mutate.IndexMediaType(empty.Index, types.OCIImageIndex)
	for _, p := range platforms {
		platform := &v1.Platform{OS: "linux", Architecture: p.arch}
		if p.arch == "arm64" {
			platform.Variant = "v8"
		}
		index = mutate.AppendManifests(
			index, mutate.IndexAddendum{Add: p.image, Descriptor: v1.Descriptor{Platform: platform}},
		)
	}
	return mutate.Annotations(index, m.labels(i)).(v1.ImageIndex)
}
