package kube

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"

	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	yamlutil "k8s.io/apimachinery/pkg/util/yaml"
)

// ReadObjects reads all objects of a YAML file, or of all YAML files of a folder and the folders in it.
func ReadObjects(path string) ([]*unstructured.Unstructured, error) {
	var objects []*unstructured.Unstructured
	err := filepath.WalkDir(path, func(file string, entry fs.DirEntry, err error) error {
		if err != nil || entry.IsDir() || filepath.Ext(file) != ".yaml" {
			return err
		}
		data, err := os.ReadFile(file)
		if err != nil {
			return err
		}
		more, err := ParseObjects(data)
		if err != nil {
			return fmt.Errorf("%s: %w", file, err)
		}
		objects = append(objects, more...)
		return nil
	})
	if err != nil {
		return nil, fmt.Errorf("reading manifests: %w", err)
	}
	return objects, nil
}

// ParseObjects reads all objects of YAML documents.
func ParseObjects(data []byte) ([]*unstructured.Unstructured, error) {
	var objects []*unstructured.Unstructured
	decoder := yamlutil.NewYAMLOrJSONDecoder(bytes.NewReader(data), 4096)
	for {
		object := &unstructured.Unstructured{}
		switch err := decoder.Decode(object); {
		case errors.Is(err, io.EOF):
			return objects, nil
		case err != nil:
			return nil, fmt.Errorf("reading an object: %w", err)
		case len(object.Object) > 0:
			objects = append(objects, object)
		}
	}
}

// IsNoMatch reports whether an apiserver doesn't serve a kind, possibly only not yet.
func IsNoMatch(err error) bool { return meta.IsNoMatchError(err) }
