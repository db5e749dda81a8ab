package controller

import (
	"strings"

	certificatesv1 "k8s.io/api/certificates/v1"
	corev1 "k8s.io/api/core/v1"
	apimeta "k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"
	"sigs.k8s.io/controller-runtime/pkg/cache"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/fairlead/fairlead/api/v1alpha1"
	"github.com/fairlead/fairlead/pkg/controller/boot"
	"github.com/fairlead/fairlead/pkg/controller/config"
	"github.com/fairlead/fairlead/pkg/controller/reconciler"
	"github.com/fairlead/fairlead/pkg/controller/signer"
	"github.com/fairlead/fairlead/pkg/kubeconfig"
)

// CacheOptions returns options that keep in memory only what the controllers read: kubeconfig Secrets with Cluster
// API's label, one ConfigMap, Clusters without their topology and with only our condition and their phase in the
// status, and only the names of other CertificateSigningRequests. Clusters and Tunnels have neither a selector nor a
// list of namespaces, because setupInformers compares all of them.
func CacheOptions(config config.Config) cache.Options {
	return cache.Options{
		DefaultTransform: cache.TransformStripManagedFields(),
		ByObject: map[client.Object]cache.ByObject{
			&corev1.Secret{}: {Label: reconciler.HasLabel(clusterv1.ClusterNameLabel), Transform: slim},
			&corev1.ConfigMap{}: {Namespaces: map[string]cache.Config{
				config.Namespace: {
					FieldSelector: fields.OneTermEqualSelector(metav1.ObjectNameField, v1alpha1.InstallationConfigMapName),
				},
			}},
			&clusterv1.Cluster{}:                        {Transform: slim},
			&clusterv1.Machine{}:                        {Transform: slim},
			&certificatesv1.CertificateSigningRequest{}: {Transform: slim},
		},
	}
}

// slim drops the fields that no reconciler reads before an object enters the cache. The dropped fields are never
// written back: every write is a patch of differences, or goes to a subresource that accepts only its own part.
func slim(in any) (any, error) {
	switch o := in.(type) {
	case *corev1.Secret:
		if !strings.HasSuffix(o.Name, kubeconfig.Suffix) {
			o.Data = nil // such as the key of a cluster's CA, which has the same label
		}
	case *clusterv1.Cluster:
		ours, initialization := apimeta.FindStatusCondition(
			o.Status.Conditions, v1alpha1.ClusterConditionTunnelReady,
		), o.Status.Initialization
		o.Status, o.Spec.Topology = clusterv1.ClusterStatus{Initialization: initialization}, clusterv1.Topology{}
		if ours != nil {
			o.Status.Conditions = []metav1.Condition{*ours}
		}
	case *clusterv1.Machine:
		boot.Slim(o)
	case *certificatesv1.CertificateSigningRequest:
		if !signer.SignsFor(o.Spec.SignerName) {
			o.Spec, o.Status = certificatesv1.CertificateSigningRequestSpec{}, certificatesv1.CertificateSigningRequestStatus{}
		}
	}
	if o, ok := in.(client.Object); ok {
		o.SetManagedFields(nil)
	}
	return in, nil
}
