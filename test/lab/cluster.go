package lab

import (
	"context"
	"fmt"
	"maps"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/types"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/fairlead/fairlead/api/v1alpha1"
	"github.com/fairlead/fairlead/test/lab/kube"
)

// ClusterSpec describes a Cluster.
type ClusterSpec struct {
	Name      string
	Namespace string                  // created if it doesn't exist
	Labels    map[string]string       // labels; by default the ones that opt in
	APIServer *kube.APIServer         // of the workload cluster
	Mode      v1alpha1.KubeconfigMode // set in the Tunnel by a user from the start; empty: not set
}

// Cluster is a Cluster object, with methods that act as its providers.
type Cluster struct {
	types.NamespacedName
	APIServer *kube.APIServer
	Created   time.Time
	mode      v1alpha1.KubeconfigMode
	lab       *Lab
}

// CreateCluster creates a Cluster and what its providers would create: their own objects, the CA and the kubeconfig
// Secret. The infrastructure is not provisioned yet: see SetProvisioned.
func (l *Lab) CreateCluster(ctx context.Context, spec ClusterSpec) (*Cluster, error) {
	c := &Cluster{
		NamespacedName: types.NamespacedName{Namespace: spec.Namespace, Name: spec.Name},
		APIServer:      spec.APIServer, Created: time.Now(), mode: spec.Mode, lab: l,
	}
	if spec.Labels == nil {
		spec.Labels = map[string]string{v1alpha1.TunnelLabel: v1alpha1.TunnelEnabled}
	}
	if err := c.collectGarbage(ctx); err != nil {
		return nil, err
	}
	namespace := &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: spec.Namespace}}
	controlPlane := c.provider("controlplane.cluster.x-k8s.io", "LabControlPlane")
	objects := []client.Object{
		namespace, c.provider("infrastructure.cluster.x-k8s.io", "LabCluster"), controlPlane,
		c.object(spec.Labels),
	}
	for _, object := range objects {
		if err := l.Management.Client.Create(ctx, object); err != nil &&
			(object != namespace || !apierrors.IsAlreadyExists(err)) {
			return nil, fmt.Errorf("creating the Cluster %s: %w", c, err)
		}
	}
	if spec.Mode != "" {
		if err := c.PatchTunnel(ctx, nil); err != nil {
			return nil, err
		}
	}
	return c, c.createSecrets(ctx, controlPlane)
}

// collectGarbage removes the Secrets of an earlier Cluster of this name. Kubernetes' garbage collector, which would do
// that, does not run here.
func (c *Cluster) collectGarbage(ctx context.Context) error {
	for _, purpose := range []string{"ca", "kubeconfig"} {
		if err := c.lab.Management.Client.Delete(ctx, c.secret(purpose, nil)); client.IgnoreNotFound(err) != nil {
			return fmt.Errorf("deleting Secrets of %s: %w", c, err)
		}
	}
	return nil
}

// provider returns an object of one of the Cluster's stub providers.
func (c *Cluster) provider(group, kind string) *unstructured.Unstructured {
	object := &unstructured.Unstructured{}
	object.SetAPIVersion(group + "/v1beta2")
	object.SetKind(kind)
	object.SetNamespace(c.Namespace)
	object.SetName(c.Name)
	return object
}

func (c *Cluster) object(labels map[string]string) *clusterv1.Cluster {
	return &clusterv1.Cluster{
		ObjectMeta: metav1.ObjectMeta{Namespace: c.Namespace, Name: c.Name, Labels: labels},
		Spec: clusterv1.ClusterSpec{
			ControlPlaneEndpoint: clusterv1.APIEndpoint{
				Host: c.APIServer.Endpoint.Addr().String(),
				Port: int32(c.APIServer.Endpoint.Port()),
			},
			InfrastructureRef: clusterv1.ContractVersionedObjectReference{
				APIGroup: "infrastructure.cluster.x-k8s.io",
				Kind:     "LabCluster", Name: c.Name,
			},
			ControlPlaneRef: clusterv1.ContractVersionedObjectReference{
				APIGroup: "controlplane.cluster.x-k8s.io",
				Kind:     "LabControlPlane", Name: c.Name,
			},
		},
	}
}

// createSecrets creates the CA and the kubeconfig as Cluster API's contract requires of a control-plane provider.
func (c *Cluster) createSecrets(ctx context.Context, owner *unstructured.Unstructured) error {
	kubeconfig, err := c.ProviderSecret()
	if err != nil {
		return err
	}
	authority := c.secret("ca", map[string][]byte{"tls.crt": c.APIServer.CA.CertPEM, "tls.key": c.APIServer.CA.KeyPEM})
	for _, secret := range []*corev1.Secret{authority, kubeconfig} {
		secret.OwnerReferences = []metav1.OwnerReference{*metav1.NewControllerRef(owner, owner.GroupVersionKind())}
		if err := c.lab.Management.Client.Create(ctx, secret); err != nil {
			return fmt.Errorf("creating Secret %s: %w", secret.Name, err)
		}
	}
	return nil
}

// ProviderSecret returns the kubeconfig Secret as the control-plane provider writes it, without its owner.
func (c *Cluster) ProviderSecret() (*corev1.Secret, error) {
	kubeconfig, err := c.APIServer.AdminKubeconfig(c.Name)
	if err != nil {
		return nil, err
	}
	return c.secret("kubeconfig", map[string][]byte{"value": kubeconfig}), nil
}

func (c *Cluster) secret(purpose string, data map[string][]byte) *corev1.Secret {
	return &corev1.Secret{
		ObjectMeta: metav1.ObjectMeta{
			Namespace: c.Namespace, Name: c.Name + "-" + purpose,
			Labels: map[string]string{clusterv1.ClusterNameLabel: c.Name},
		},
		Type: clusterv1.ClusterSecretType,
		Data: data,
	}
}

// SetProvisioned sets the status that providers report when machines run. Cluster API then connects.
func (c *Cluster) SetProvisioned(ctx context.Context) error {
	statuses := map[*unstructured.Unstructured]map[string]any{
		c.provider("infrastructure.cluster.x-k8s.io", "LabCluster"): {"initialization": map[string]any{"provisioned": true}},
		c.provider("controlplane.cluster.x-k8s.io", "LabControlPlane"): {
			"initialization": map[string]any{"controlPlaneInitialized": true}, "externalManagedControlPlane": true,
			"conditions": []any{map[string]any{
				"type": "Available", "status": "True", "reason": "Available",
				"lastTransitionTime": time.Now().UTC().Format(time.RFC3339),
			}},
		},
	}
	for object, status := range statuses {
		patch := client.RawPatch(types.MergePatchType, jsonOf(map[string]any{"status": status}))
		if err := c.lab.Management.Client.Status().Patch(ctx, object, patch); err != nil {
			return fmt.Errorf("setting the status of %s %s: %w", object.GetKind(), c, err)
		}
	}
	return nil
}

// Get reads the Cluster.
func (c *Cluster) Get(ctx context.Context) (*clusterv1.Cluster, error) {
	cluster := &clusterv1.Cluster{}
	return cluster, c.lab.Management.Client.Get(ctx, c.NamespacedName, cluster)
}

// Tunnel reads the Cluster's Tunnel.
func (c *Cluster) Tunnel(ctx context.Context) (*v1alpha1.Tunnel, error) {
	tunnel := &v1alpha1.Tunnel{}
	return tunnel, c.lab.Management.Client.Get(ctx, c.NamespacedName, tunnel)
}

// PatchTunnel writes fields of the Tunnel's spec as a user would with kubectl apply, whether or not the controller has
// created the Tunnel. If spec has no mode, the mode that the Cluster was created with remains.
func (c *Cluster) PatchTunnel(ctx context.Context, spec map[string]any) error {
	if _, given := spec["kubeconfig"]; !given && c.mode != "" {
		withMode := map[string]any{"kubeconfig": map[string]any{"mode": string(c.mode)}}
		maps.Copy(withMode, spec)
		spec = withMode
	}
	tunnel := &unstructured.Unstructured{Object: map[string]any{"spec": spec}}
	tunnel.SetGroupVersionKind(v1alpha1.GroupVersion.WithKind("Tunnel"))
	tunnel.SetNamespace(c.Namespace)
	tunnel.SetName(c.Name)
	configuration := client.ApplyConfigurationFromUnstructured(tunnel)
	if err := c.lab.Management.Client.Apply(ctx, configuration, client.FieldOwner("user"),
		client.ForceOwnership); err != nil {
		return fmt.Errorf("applying the Tunnel %s: %w", c, err)
	}
	return nil
}

// Secret reads a Secret of the Cluster. Its name is the Cluster's with a suffix.
func (c *Cluster) Secret(ctx context.Context, suffix string) (*corev1.Secret, error) {
	secret := &corev1.Secret{}
	return secret, c.lab.Management.Client.Get(ctx, types.NamespacedName{Namespace: c.Namespace, Name: c.Name + suffix},
		secret)
}

// Bootstrap waits for the bootstrap Secret, and returns the file for the edge.
func (c *Cluster) Bootstrap(ctx context.Context) ([]byte, error) {
	name := types.NamespacedName{Namespace: c.Namespace, Name: c.Name + v1alpha1.BootstrapSecretSuffix}
	secret, err := c.lab.waitSecret(ctx, name, v1alpha1.BootstrapFileKey)
	if err != nil {
		return nil, err
	}
	return secret.Data[v1alpha1.BootstrapFileKey], nil
}

// Patch changes the Cluster as kubectl patch does.
func (c *Cluster) Patch(ctx context.Context, change map[string]any) error {
	cluster := &clusterv1.Cluster{ObjectMeta: metav1.ObjectMeta{Namespace: c.Namespace, Name: c.Name}}
	if err := c.lab.Management.Client.Patch(ctx, cluster,
		client.RawPatch(types.MergePatchType, jsonOf(change))); err != nil {
		return fmt.Errorf("patching the Cluster %s: %w", c, err)
	}
	return nil
}

// Delete deletes the Cluster. Cluster API then deletes the providers' objects, and the Cluster when they are gone.
func (c *Cluster) Delete(ctx context.Context) error {
	cluster := &clusterv1.Cluster{ObjectMeta: metav1.ObjectMeta{Namespace: c.Namespace, Name: c.Name}}
	if err := c.lab.Management.Client.Delete(ctx, cluster); err != nil {
		return fmt.Errorf("deleting the Cluster %s: %w", c, err)
	}
	return nil
}
