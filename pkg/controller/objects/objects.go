// Package objects reads the objects that belong to one Cluster, decides which action they require, and has the patches
// and error classes that all writers of the controller use. Its input is a client and a key; its output is a Group and
// an Action. It writes nothing, keeps no state and does not know what a reconciler does with an action.
package objects

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"time"

	admissionv1 "k8s.io/api/admissionregistration/v1"
	certificatesv1 "k8s.io/api/certificates/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/fairlead/fairlead/api/v1alpha1"
	"github.com/fairlead/fairlead/pkg/kubeconfig"
)

// Wrap adds a description to an error. It returns nil for nil.
func Wrap(doing string, err error) error {
	if err == nil {
		return nil
	}
	return fmt.Errorf("%s: %w", doing, err)
}

// Conflict reports whether another writer was faster. It is not a fault: the other change starts another
// reconciliation.
func Conflict(err error) bool { return apierrors.IsConflict(err) || apierrors.IsAlreadyExists(err) }

// TimeOrNil returns a time to the second; nil for the zero time.
func TimeOrNil(t time.Time) *metav1.Time {
	if t.IsZero() {
		return nil
	}
	at := metav1.NewTime(t.UTC().Truncate(time.Second))
	return &at
}

// Denied reports whether the apiserver, a policy or a webhook rejects a write permanently, so that an immediate retry
// is useless.
func Denied(err error) bool {
	var status apierrors.APIStatus
	if !errors.As(err, &status) {
		return false
	}
	switch code := status.Status().Code; code {
	case http.StatusUnauthorized, http.StatusNotFound, http.StatusRequestTimeout, http.StatusConflict,
		http.StatusTooManyRequests:
		return false
	default:
		return code >= 400 && code < 500
	}
}

// Load reads the objects of one Cluster.
func Load(ctx context.Context, from client.Reader, key client.ObjectKey) (o Group, err error) {
	o.Key = key
	if o.Cluster, err = Get(ctx, from, key, &clusterv1.Cluster{}); err != nil {
		return o, Wrap("reading Cluster", err)
	}
	if o.Tunnel, err = Get(ctx, from, key, &v1alpha1.Tunnel{}); err != nil {
		return o, Wrap("reading Tunnel", err)
	}
	secret := client.ObjectKey{Namespace: key.Namespace, Name: key.Name + kubeconfig.Suffix}
	o.Kubeconfig, err = Get(ctx, from, secret, &corev1.Secret{})
	return o, Wrap("reading kubeconfig Secret", err)
}

// ClusterOf reads the Cluster that a Tunnel serves: the one with its name, the one whose apiservers enrol with it, or
// the one whose RemoteNetwork controls it. It returns nil if that Cluster, or that RemoteNetwork, does not exist.
func ClusterOf(ctx context.Context, from client.Reader, tunnel *v1alpha1.Tunnel) (*clusterv1.Cluster, error) {
	key := client.ObjectKeyFromObject(tunnel)
	switch {
	case tunnel.Spec.EgressOf != "":
		key.Name = tunnel.Spec.EgressOf
	case tunnel.Spec.Network != "":
		network := client.ObjectKey{Namespace: tunnel.Namespace, Name: tunnel.Spec.Network}
		owner, err := Get(ctx, from, network, &v1alpha1.RemoteNetwork{})
		if err != nil || owner == nil || !metav1.IsControlledBy(tunnel, owner) {
			return nil, Wrap("reading RemoteNetwork", err)
		}
		key.Name = owner.Spec.ClusterName
	}
	cluster, err := Get(ctx, from, key, &clusterv1.Cluster{})
	return cluster, Wrap("reading Cluster", err)
}

// Get reads one object into into. It returns nil if the object does not exist.
func Get[T client.Object](ctx context.Context, from client.Reader, key client.ObjectKey, into T) (T, error) {
	if err := from.Get(ctx, key, into); err != nil {
		var none T
		return none, client.IgnoreNotFound(err)
	}
	return into, nil
}

// LockedPatch returns a patch from base that is a conflict if the object has changed since base was read.
func LockedPatch(base client.Object) client.Patch {
	return client.MergeFromWithOptions(base, client.MergeFromWithOptimisticLock{})
}

// HasCondition reports whether a CertificateSigningRequest has a true condition of a type.
func HasCondition(csr *certificatesv1.CertificateSigningRequest, kind certificatesv1.RequestConditionType) bool {
	for _, c := range csr.Status.Conditions {
		if c.Type == kind && c.Status == corev1.ConditionTrue {
			return true
		}
	}
	return false
}

// NewScheme returns a scheme with every type that the controller reads or writes.
func NewScheme() (*runtime.Scheme, error) {
	scheme := runtime.NewScheme()
	for _, add := range []func(*runtime.Scheme) error{
		corev1.AddToScheme, certificatesv1.AddToScheme, admissionv1.AddToScheme, clusterv1.AddToScheme, v1alpha1.AddToScheme,
	} {
		if err := add(scheme); err != nil {
			return nil, fmt.Errorf("building scheme: %w", err)
		}
	}
	return scheme, nil
}
