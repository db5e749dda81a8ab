package reconciler

import (
	"context"
	"fmt"
	"slices"
	"strings"

	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/fairlead/fairlead/api/v1alpha1"
)

// CopiesNamespaceIndex finds Tunnels by the namespaces of their copies.
const CopiesNamespaceIndex = "copies.namespace"

// copyNamespaces returns the other namespaces where a Tunnel requests copies.
func copyNamespaces(o client.Object) []string {
	tunnel, ok := o.(*v1alpha1.Tunnel)
	if !ok {
		return nil
	}
	var all []string
	for i := range tunnel.Spec.Kubeconfig.Copies {
		if ns := tunnel.Spec.Kubeconfig.Copies[i].Namespace; ns != "" && ns != tunnel.Namespace {
			all = append(all, ns)
		}
	}
	slices.Sort(all)
	return slices.Compact(all)
}

// AddIndexes adds the indexes that the controllers query to the manager's cache.
func AddIndexes(mgr ctrl.Manager) error {
	for _, index := range []struct {
		of    client.Object
		name  string
		value client.IndexerFunc
	}{
		{&v1alpha1.Tunnel{}, TunnelIDIndex, TunnelIDOf},
		{&v1alpha1.Tunnel{}, CredentialsIndex, CredentialsOf},
		{&v1alpha1.Tunnel{}, CopiesNamespaceIndex, copyNamespaces},
		{&clusterv1.Cluster{}, EndpointIndex, EndpointHosts},
		{&v1alpha1.RemoteNetwork{}, NetworkClusterIndex, NetworkClusterOf},
	} {
		if err := mgr.GetFieldIndexer().IndexField(context.Background(), index.of, index.name, index.value); err != nil {
			return fmt.Errorf("indexing %s: %w", index.name, err)
		}
	}
	return nil
}

// CredentialsIndex finds Tunnels by the Secret with the credentials of their proxy.
const CredentialsIndex = "spec.kubeconfig.proxy.credentialsSecret"

// CredentialsOf returns the values of CredentialsIndex.
func CredentialsOf(o client.Object) []string {
	tunnel, ok := o.(*v1alpha1.Tunnel)
	if !ok || tunnel.Spec.Kubeconfig.Proxy == nil || tunnel.Spec.Kubeconfig.Proxy.CredentialsSecret == "" {
		return nil
	}
	return []string{tunnel.Spec.Kubeconfig.Proxy.CredentialsSecret}
}

// EndpointIndex finds Clusters by the host of their endpoint.
const EndpointIndex = "spec.controlPlaneEndpoint.host"

// EndpointHosts returns the values of EndpointIndex.
func EndpointHosts(o client.Object) []string {
	cluster, ok := o.(*clusterv1.Cluster)
	if !ok || cluster.Spec.ControlPlaneEndpoint.Host == "" {
		return nil
	}
	return []string{CanonicalHost(cluster)}
}

// CanonicalHost returns the host of a Cluster's endpoint in the form that certificates use.
func CanonicalHost(cluster *clusterv1.Cluster) string {
	return strings.ToLower(strings.TrimSuffix(cluster.Spec.ControlPlaneEndpoint.Host, "."))
}

// TunnelIDIndex finds a Tunnel by its id.
const TunnelIDIndex = "spec.id"

// TunnelIDOf returns the values of TunnelIDIndex.
func TunnelIDOf(o client.Object) []string {
	if tunnel, ok := o.(*v1alpha1.Tunnel); ok && tunnel.ClaimedID() != "" {
		return []string{tunnel.ClaimedID()}
	}
	return nil
}

// NetworkClusterIndex finds RemoteNetworks by the name of their Cluster.
const NetworkClusterIndex = "spec.clusterName"

// NetworkClusterOf returns the values of NetworkClusterIndex.
func NetworkClusterOf(o client.Object) []string {
	if network, ok := o.(*v1alpha1.RemoteNetwork); ok {
		return []string{network.Spec.ClusterName}
	}
	return nil
}

// NetworksOf returns the RemoteNetworks of a Cluster, from a reader with NetworkClusterIndex.
func NetworksOf(ctx context.Context, from client.Reader, cluster client.ObjectKey) ([]v1alpha1.RemoteNetwork, error) {
	var list v1alpha1.RemoteNetworkList
	err := from.List(
		ctx, &list, client.InNamespace(cluster.Namespace), client.MatchingFields{NetworkClusterIndex: cluster.Name},
	)
	if err != nil {
		return nil, fmt.Errorf("listing RemoteNetworks: %w", err)
	}
	return list.Items, nil
}
