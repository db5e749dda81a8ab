package controller

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

// copiesNamespaceIndex finds Tunnels by the namespaces that they want copies in.
const copiesNamespaceIndex = "copies.namespace"

// copyNamespaces are the other namespaces that a Tunnel wants copies in.
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

// addIndexes has the manager's cache find objects by what the controllers ask for.
func addIndexes(mgr ctrl.Manager) error {
	for _, index := range []struct {
		of    client.Object
		name  string
		value client.IndexerFunc
	}{
		{&v1alpha1.Tunnel{}, tunnelIDIndex, tunnelIDOf},
		{&v1alpha1.Tunnel{}, credentialsIndex, credentialsOf},
		{&v1alpha1.Tunnel{}, copiesNamespaceIndex, copyNamespaces},
		{&clusterv1.Cluster{}, endpointIndex, endpointHosts},
	} {
		if err := mgr.GetFieldIndexer().IndexField(context.Background(), index.of, index.name, index.value); err != nil {
			return fmt.Errorf("indexing %s: %w", index.name, err)
		}
	}
	return nil
}

// credentialsIndex finds Tunnels by the Secret with the credentials of their proxy.
const credentialsIndex = "spec.kubeconfig.proxy.credentialsSecret"

func credentialsOf(o client.Object) []string {
	tunnel, ok := o.(*v1alpha1.Tunnel)
	if !ok || tunnel.Spec.Kubeconfig.Proxy == nil || tunnel.Spec.Kubeconfig.Proxy.CredentialsSecret == "" {
		return nil
	}
	return []string{tunnel.Spec.Kubeconfig.Proxy.CredentialsSecret}
}

// endpointIndex finds Clusters by the host of their endpoint.
const endpointIndex = "spec.controlPlaneEndpoint.host"

func endpointHosts(o client.Object) []string {
	cluster, ok := o.(*clusterv1.Cluster)
	if !ok || cluster.Spec.ControlPlaneEndpoint.Host == "" {
		return nil
	}
	return []string{canonicalHost(cluster)}
}

// canonicalHost is the host of a Cluster's endpoint as certificates have it.
func canonicalHost(cluster *clusterv1.Cluster) string {
	return strings.ToLower(strings.TrimSuffix(cluster.Spec.ControlPlaneEndpoint.Host, "."))
}

// tunnelIDIndex finds a Tunnel by its id.
const tunnelIDIndex = "spec.id"

func tunnelIDOf(o client.Object) []string {
	if tunnel, ok := o.(*v1alpha1.Tunnel); ok && tunnel.ClaimedID() != "" {
		return []string{tunnel.ClaimedID()}
	}
	return nil
}
