package controller

import (
	"fmt"
	"strings"

	certificatesv1 "k8s.io/api/certificates/v1"
	corev1 "k8s.io/api/core/v1"
	apimeta "k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/selection"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/cache"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/fairlead/fairlead/api/v1alpha1"
	"github.com/fairlead/fairlead/pkg/kubeconfig"
)

// CacheOptions keeps in memory only what the controllers look at: kubeconfig Secrets with Cluster API's label, one
// ConfigMap, Clusters without topology and of their status our condition and how far they are alone, and CertificateSigningRequests of others as no more than a name.
// Clusters and Tunnels have no selector and no list of namespaces: setupInformers compares all of them.
func CacheOptions(config Config) cache.Options {
	return cache.Options{
		DefaultTransform: cache.TransformStripManagedFields(),
		ByObject: map[client.Object]cache.ByObject{
			&corev1.Secret{}: {Label: mustSelect(clusterv1.ClusterNameLabel), Transform: slim},
			&corev1.ConfigMap{}: {Namespaces: map[string]cache.Config{
				config.Namespace: {FieldSelector: fields.OneTermEqualSelector(metav1.ObjectNameField, v1alpha1.InstallationConfigMapName)},
			}},
			&clusterv1.Cluster{}:                        {Transform: slim},
			&clusterv1.Machine{}:                        {Transform: slim},
			&certificatesv1.CertificateSigningRequest{}: {Transform: slim},
		},
	}
}

// slim drops what nobody here reads from an object on its way into the cache. What is dropped is never written back,
// because every write is a patch of differences, or to a subresource that takes no more than its own part.
func slim(in any) (any, error) {
	switch o := in.(type) {
	case *corev1.Secret:
		if !strings.HasSuffix(o.Name, kubeconfig.Suffix) {
			o.Data = nil // such as a cluster's CA key, which has the same label
		}
	case *clusterv1.Cluster:
		ours, initialization := apimeta.FindStatusCondition(o.Status.Conditions, v1alpha1.ClusterConditionTunnelReady), o.Status.Initialization
		o.Status, o.Spec.Topology = clusterv1.ClusterStatus{Initialization: initialization}, clusterv1.Topology{}
		if ours != nil {
			o.Status.Conditions = []metav1.Condition{*ours}
		}
	case *clusterv1.Machine:
		slimMachine(o)
	case *certificatesv1.CertificateSigningRequest:
		if _, ours := profiles[o.Spec.SignerName]; !ours {
			o.Spec, o.Status = certificatesv1.CertificateSigningRequestSpec{}, certificatesv1.CertificateSigningRequestStatus{}
		}
	}
	if o, ok := in.(client.Object); ok {
		o.SetManagedFields(nil)
	}
	return in, nil
}

// mustSelect selects the objects that have a label, whatever its value. The label is one of ours and always valid.
func mustSelect(label string) labels.Selector {
	requirement, err := labels.NewRequirement(label, selection.Exists, nil)
	if err != nil {
		panic(err)
	}
	return labels.NewSelector().Add(*requirement)
}

func secretMetadata() *metav1.PartialObjectMetadata {
	o := &metav1.PartialObjectMetadata{}
	o.SetGroupVersionKind(corev1.SchemeGroupVersion.WithKind("Secret"))
	return o
}

// secretCache is a cache of its own for some Secrets, because a cache has one selector for one kind. It holds their metadata
// alone: enough to see that somebody has changed one, and no key.
func secretCache(mgr ctrl.Manager, which cache.ByObject) (cache.Cache, error) {
	c, err := cache.New(mgr.GetConfig(), cache.Options{
		HTTPClient: mgr.GetHTTPClient(), Scheme: mgr.GetScheme(), Mapper: mgr.GetRESTMapper(),
		ByObject:         map[client.Object]cache.ByObject{secretMetadata(): which},
		DefaultTransform: cache.TransformStripManagedFields(),
	})
	if err != nil {
		return nil, fmt.Errorf("making cache of Secrets: %w", err)
	}
	return c, mgr.Add(c)
}
