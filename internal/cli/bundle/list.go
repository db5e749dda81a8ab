package bundle

import (
	"fmt"
	"slices"
	"strings"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"sigs.k8s.io/controller-runtime/pkg/client"
)

// kind is a kind of objects to gather.
type kind struct {
	schema.GroupVersionKind
	own      bool // in the namespace of the installation; otherwise in the namespaces of Clusters
	metadata bool // metadata only
	keep     func(o *unstructured.Unstructured) bool
}

func kinds() []kind {
	of := func(group, version, name string) schema.GroupVersionKind {
		return schema.GroupVersionKind{Group: group, Version: version, Kind: name}
	}
	ours := func(o *unstructured.Unstructured) bool { return strings.Contains(o.GetName(), "fairlead") }
	return []kind{
		{GroupVersionKind: of("fairlead.dev", "v1alpha1", "Tunnel")},
		{GroupVersionKind: of("fairlead.dev", "v1alpha1", "RemoteNetwork")},
		{GroupVersionKind: of("cluster.x-k8s.io", "v1beta2", "Cluster")},
		{GroupVersionKind: of("cluster.x-k8s.io", "v1beta2", "Machine")},
		{GroupVersionKind: of("", "v1", "Secret"), metadata: true, keep: secretOfCluster},
		{GroupVersionKind: of("", "v1", "Event"), keep: eventOfOurs},
		{GroupVersionKind: of("apps", "v1", "Deployment"), own: true},
		{GroupVersionKind: of("apps", "v1", "StatefulSet"), own: true},
		{GroupVersionKind: of("", "v1", "Pod"), own: true},
		{GroupVersionKind: of("", "v1", "Service"), own: true},
		{GroupVersionKind: of("", "v1", "ConfigMap"), own: true, keep: ours},
		{GroupVersionKind: of("", "v1", "Secret"), own: true, metadata: true},
		{GroupVersionKind: of("", "v1", "Event"), own: true},
		{GroupVersionKind: of("coordination.k8s.io", "v1", "Lease"), own: true},
		{GroupVersionKind: of("certificates.k8s.io", "v1", "CertificateSigningRequest"), keep: requestOfOurs},
		{GroupVersionKind: of("admissionregistration.k8s.io", "v1", "MutatingWebhookConfiguration"), keep: ours},
		{GroupVersionKind: of("admissionregistration.k8s.io", "v1", "ValidatingAdmissionPolicy"), keep: ours},
	}
}

// secretOfCluster reports whether Fairlead reads or writes a Secret.
func secretOfCluster(o *unstructured.Unstructured) bool {
	return slices.ContainsFunc(
		[]string{"-kubeconfig", "-edge-bootstrap", "-edge-resources", "-boot-report", "-ca"},
		func(suffix string) bool { return strings.HasSuffix(o.GetName(), suffix) },
	) ||
		slices.ContainsFunc(slices.Collect(keysOf(o.GetLabels())), func(key string) bool {
			return strings.HasPrefix(key,
				"fairlead.dev/")
		})
}

func keysOf[V any](m map[string]V) func(yield func(string) bool) {
	return func(yield func(string) bool) {
		for key := range m {
			if !yield(key) {
				return
			}
		}
	}
}

func eventOfOurs(o *unstructured.Unstructured) bool {
	of, _, _ := unstructured.NestedString(o.Object, "involvedObject", "kind")
	return slices.Contains([]string{"Tunnel", "RemoteNetwork", "Cluster", "Machine"}, of)
}

func requestOfOurs(o *unstructured.Unstructured) bool {
	signer, _, _ := unstructured.NestedString(o.Object, "spec", "signerName")
	return strings.HasPrefix(signer, "fairlead.dev/")
}

// itemsOf returns the objects of a list in either form.
func itemsOf(list client.ObjectList) ([]unstructured.Unstructured, error) {
	switch list := list.(type) {
	case *unstructured.UnstructuredList:
		return list.Items, nil
	case *metav1.PartialObjectMetadataList:
		all := make([]unstructured.Unstructured, len(list.Items))
		for i := range list.Items {
			o, err := runtime.DefaultUnstructuredConverter.ToUnstructured(&list.Items[i])
			if err != nil {
				return nil, fmt.Errorf("reading metadata: %w", err)
			}
			all[i].Object = o
		}
		return all, nil
	}
	return nil, fmt.Errorf("%T is not a list of objects", list)
}
