package controller

import (
	"testing"

	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"

	"github.com/fairlead/fairlead/api/v1alpha1"
	"github.com/fairlead/fairlead/pkg/controller/controllertest"
)

// TestTheCacheHasAllObjectsThatAreCompared: an object that a selector omits would look like one that an informer
// missed.
func TestTheCacheHasAllObjectsThatAreCompared(t *testing.T) {
	options := CacheOptions(controllertest.Config())
	if options.DefaultNamespaces != nil || options.DefaultLabelSelector != nil || options.DefaultFieldSelector != nil {
		t.Error("a default leaves objects out")
	}
	for object, by := range options.ByObject {
		switch object.(type) {
		case *clusterv1.Cluster, *v1alpha1.Tunnel:
			if by.Label != nil || by.Field != nil || by.Namespaces != nil {
				t.Errorf("%T: objects are left out", object)
			}
		}
	}
}
