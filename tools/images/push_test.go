package main

import (
	"bytes"
	"io"
	"log"
	"net/http/httptest"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-containerregistry/pkg/name"
	"github.com/google/go-containerregistry/pkg/registry"
	"github.com/google/go-containerregistry/pkg/v1/remote"
)

// TestPush pushes to registries with and without the referrers API. A client gets the digests of the file and the
// document of each platform.
func TestPush(t *testing.T) {
	out := made(t)
	digests := read(t, out, digestsFile)
	for _, referrers := range []bool{true, false} {
		server := httptest.NewServer(
			registry.New(registry.WithReferrersSupport(referrers), registry.Logger(log.New(io.Discard, "", 0))),
		)
		defer server.Close()
		place := strings.TrimPrefix(server.URL, "http://") + "/project"
		var printed bytes.Buffer
		for range 2 { // a second push changes nothing
			if code := run(t.Context(), []string{"-push-only", "-out", out, "-registry", place}, &printed, &printed); code != 0 {
				t.Fatalf("exit code %d: %s", code, printed.String())
			}
		}
		for _, i := range images {
			repository := place + "/" + prefix + i.name
			tag, err := name.NewTag(repository + ":" + testRelease.version)
			if err != nil {
				t.Fatal(err)
			}
			index, err := remote.Index(tag)
			if err != nil {
				t.Fatal(err)
			}
			digest, err := index.Digest()
			if err != nil || !strings.Contains(digests, prefix+i.name+"@"+digest.String()+"\n") {
				t.Errorf("%s has digest %s (%v), and the file has\n%s", i.name, digest, err, digests)
			}
			if !strings.Contains(printed.String(), repository+":"+testRelease.version+"@"+digest.String()) {
				t.Errorf("it prints\n%s", printed.String())
			}
			for arch, image := range platforms(t, filepath.Join(out, prefix+i.name)) {
				digest, err := image.Digest()
				if err != nil {
					t.Fatal(err)
				}
				checkReferrer(t, repository+"@"+digest.String(), read(t, out, "sbom", prefix+i.name+"-"+arch+".spdx.json"))
			}
		}
	}
}

// checkReferrer checks that a manifest has one referrer: the document.
func checkReferrer(t *testing.T, reference, want string) {
	t.Helper()
	digest, err := name.NewDigest(reference)
	if err != nil {
		t.Fatal(err)
	}
	found, err := remote.Referrers(digest)
	if err != nil {
		t.Fatal(err)
	}
	manifest, err := found.IndexManifest()
	if err != nil || len(manifest.Manifests) != 1 || manifest.Manifests[0].ArtifactType != string(sbomType) {
		t.Fatalf("%s: referrers %+v, %v", reference, manifest, err)
	}
	attached, err := remote.Image(digest.Context().Digest(manifest.Manifests[0].Digest.String()))
	if err != nil {
		t.Fatal(err)
	}
	layers, err := attached.Layers()
	if err != nil || len(layers) != 1 {
		t.Fatalf("%v, %v", layers, err)
	}
	body, err := layers[0].Uncompressed()
	if err != nil {
		t.Fatal(err)
	}
	defer body.Close()
	if got, err := io.ReadAll(body); err != nil || string(got) != want {
		t.Errorf("%s: another document is attached (%v): %.100s", reference, err, got)
	}
}

func TestPushNeedsImages(t *testing.T) {
	for name, args := range map[string][]string{
		"no images":   {"-push-only", "-registry", "127.0.0.1:1/x", "-out", t.TempDir()},
		"no registry": {"-push-only", "-out", t.TempDir()},
		"a word":      {"gateway"},
	} {
		var out bytes.Buffer
		if code := run(t.Context(), args, &out, &out); code == 0 || out.Len() == 0 {
			t.Errorf("%s: exit code %d: %s", name, code, out.String())
		}
	}
}
