package tunnel

import (
	"bytes"
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/yaml"

	"github.com/fairlead/fairlead/api/v1alpha1"
	manifests "github.com/fairlead/fairlead/deploy/edge"
	"github.com/fairlead/fairlead/pkg/controller/objects"
)

const (
	// resourceSetType is the only type of Secret that a ClusterResourceSet accepts.
	resourceSetType corev1.SecretType = "addons.cluster.x-k8s.io/resource-set"
	// edgeName is the name of the edges' objects in the workload cluster, and of their namespace.
	edgeName = "fairlead-edge"
)

// edgeResources returns the objects that a ClusterResourceSet creates in the workload cluster, in YAML: the namespace
// and the bootstrap Secret, and with an image also the rest of deploy/edge/deployment.yaml.
func edgeResources(image string, file bootstrapFile) ([]byte, error) {
	data, err := yaml.Marshal(file)
	if err != nil {
		return nil, fmt.Errorf("writing bootstrap file: %w", err)
	}
	namespace, err := yaml.Marshal(map[string]any{
		"apiVersion": "v1", "kind": "Namespace", "metadata": map[string]any{"name": edgeName},
	})
	if err != nil {
		return nil, fmt.Errorf("writing Namespace: %w", err)
	}
	secret, err := yaml.Marshal(map[string]any{
		"apiVersion": "v1", "kind": "Secret",
		"metadata": map[string]any{"namespace": edgeName, "name": edgeName + "-bootstrap"},
		"data":     map[string][]byte{v1alpha1.BootstrapFileKey: data},
	})
	if err != nil {
		return nil, fmt.Errorf("writing Secret: %w", err)
	}
	all := [][]byte{namespace, secret}
	if image != "" {
		all = append(all, []byte(manifests.DeploymentOf(file.ID, image)))
	}
	return bytes.Join(all, []byte("---\n")), nil
}

// deliverResources writes the Secret for a ClusterResourceSet of a Cluster that requests it, and deletes that of one
// that does not. cluster is nil while the Tunnel waits for it.
func (r *Reconciler) deliverResources(
	ctx context.Context, cluster *clusterv1.Cluster, tunnel *v1alpha1.Tunnel, file bootstrapFile,
) error {
	if cluster == nil || cluster.Labels[v1alpha1.EdgeResourcesLabel] != cluster.Name {
		return r.deleteResources(ctx, tunnel)
	}
	data, err := edgeResources(r.Config.EdgeImage, file.of(tunnel))
	if err != nil {
		return err
	}
	have, err := r.resources(ctx, tunnel)
	if err != nil || have == nil && !tunnel.DeletionTimestamp.IsZero() {
		return err // as in chooseTokens
	}
	want := &corev1.Secret{
		ObjectMeta: metav1.ObjectMeta{
			Namespace: tunnel.Namespace, Name: tunnel.Name + v1alpha1.EdgeResourcesSecretSuffix,
		},
		Type: resourceSetType,
	}
	if have != nil {
		want = have.DeepCopy()
	}
	fillResources(want, tunnel, data)
	switch {
	case have == nil:
		return objects.Wrap("creating Secret for a ClusterResourceSet", r.Client.Create(ctx, want))
	case have.Type != resourceSetType:
		return fmt.Errorf(
			"the Secret %s/%s has the type %s, which a ClusterResourceSet does not accept: delete it", have.Namespace,
			have.Name, have.Type,
		)
	case equality.Semantic.DeepEqual(want, have):
		return nil
	}
	err = r.Client.Patch(ctx, want, objects.LockedPatch(have))
	return objects.Wrap("updating Secret for a ClusterResourceSet", err)
}

// fillResources sets label, owner and data of the Secret. It keeps the other owners: Cluster API adds the
// ClusterResourceSet as one.
func fillResources(secret *corev1.Secret, tunnel *v1alpha1.Tunnel, data []byte) {
	secret.Labels = maps.Clone(secret.Labels)
	if secret.Labels == nil {
		secret.Labels = map[string]string{}
	}
	secret.Labels[v1alpha1.BootstrapLabel] = v1alpha1.BootstrapResources
	own := objects.OwnerRef(v1alpha1.GroupVersion.WithKind("Tunnel"), tunnel)
	if !slices.ContainsFunc(secret.OwnerReferences, func(o metav1.OwnerReference) bool { return o.UID == own.UID }) {
		// not an earlier Tunnel
		others := slices.DeleteFunc(slices.Clone(secret.OwnerReferences), func(o metav1.OwnerReference) bool {
			return o.Kind == own.Kind && strings.HasPrefix(o.APIVersion, v1alpha1.GroupVersion.Group+"/")
		})
		secret.OwnerReferences = append(others, own)
	}
	secret.Data = map[string][]byte{v1alpha1.EdgeResourcesKey: data}
}

// resources reads the Secret for a ClusterResourceSet from the apiserver; nil: it does not exist.
func (r *Reconciler) resources(ctx context.Context, tunnel *v1alpha1.Tunnel) (*corev1.Secret, error) {
	key := client.ObjectKey{Namespace: tunnel.Namespace, Name: tunnel.Name + v1alpha1.EdgeResourcesSecretSuffix}
	secret, err := objects.Get(ctx, r.Live, key, &corev1.Secret{})
	return secret, objects.Wrap("reading Secret for a ClusterResourceSet", err)
}

// deleteResources deletes the Secret for a ClusterResourceSet, if it belongs to the Tunnel. The objects in the workload
// cluster stay: Cluster API deletes none.
func (r *Reconciler) deleteResources(ctx context.Context, tunnel *v1alpha1.Tunnel) error {
	secret, err := r.resources(ctx, tunnel)
	if err != nil || secret == nil || !metav1.IsControlledBy(secret, tunnel) {
		return err
	}
	err = r.Client.Delete(ctx, secret, client.Preconditions{UID: &secret.UID})
	return client.IgnoreNotFound(objects.Wrap("deleting Secret for a ClusterResourceSet", err))
}
