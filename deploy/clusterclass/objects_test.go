package clusterclass_test

import (
	"os"
	"testing"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"

	"github.com/fairlead/fairlead/internal/kubetest"
	"github.com/fairlead/fairlead/pkg/capi/inject"
	"github.com/fairlead/fairlead/pkg/model"
)

// options returns the options of a Cluster with the defaults.
func options(namespace, name string) inject.Options {
	return inject.Options{
		Cluster: model.Key{Namespace: namespace, Name: name}, Domain: model.TunnelDomain(defaults.TunnelDomain),
		Image: defaults.Image, APIServerPort: defaults.APIServerPort,
	}
}

// example returns the objects of example.yaml.
func example(t *testing.T) []*unstructured.Unstructured {
	t.Helper()
	data, err := os.ReadFile("example.yaml")
	if err != nil {
		t.Fatal(err)
	}
	objects, err := kubetest.Decode(data)
	if err != nil {
		t.Fatal(err)
	}
	return objects
}

// convert converts strictly: an unknown field is an error.
func convert(t *testing.T, from *unstructured.Unstructured, into any) {
	t.Helper()
	if err := runtime.DefaultUnstructuredConverter.FromUnstructuredWithValidation(from.Object, into, true); err != nil {
		t.Fatalf("%s %s: %v", from.GetKind(), from.GetName(), err)
	}
}
