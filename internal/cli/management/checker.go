package management

import (
	"context"
	"fmt"
	"slices"
	"strings"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/fairlead/fairlead/api/v1alpha1"
	"github.com/fairlead/fairlead/pkg/diagnose/check"
	"github.com/fairlead/fairlead/pkg/diagnose/collect"
)

// Checker returns a checker with the permissions of the user, and a function that closes its connections. Without
// xds-servers it reports what they would observe as unknown.
func (f *ServersFlags) Checker(ctx context.Context, m *Client) (*check.Checker, func()) {
	checker := &check.Checker{Objects: m, Secrets: m, Asks: m, Installation: f.Installation}
	servers, err := f.Connect(ctx, m)
	switch {
	case err == nil:
		checker.Servers = servers
		return checker, func() { _ = servers.Close() }
	case !apierrors.IsForbidden(err): // without permission the command cannot know that there are none
		checker.Servers = noServers{err}
	}
	return checker, func() {}
}

// noServers replaces the xds-servers when none was found.
type noServers struct{ err error }

// Observe implements check.Servers.
func (n noServers) Observe(context.Context, string, []string) (collect.Fleet, error) {
	return collect.Fleet{}, n.err
}

// ProbeAPIServers implements check.Servers.
func (n noServers) ProbeAPIServers(context.Context, string) ([]collect.EdgeProbe, error) {
	return nil, n.err
}

// Candidates returns the Clusters of a namespace that have or request a tunnel, or have RemoteNetworks, in order. An
// empty namespace selects all namespaces.
func (m *Client) Candidates(ctx context.Context, namespace string) ([]client.ObjectKey, error) {
	in := client.InNamespace(namespace)
	var clusters clusterv1.ClusterList
	if err := m.List(ctx, &clusters, in); err != nil {
		return nil, fmt.Errorf("listing Clusters: %w", err)
	}
	var tunnels v1alpha1.TunnelList
	if err := m.List(ctx, &tunnels, in); err != nil {
		return nil, fmt.Errorf("listing Tunnels: %w", err)
	}
	var keys []client.ObjectKey
	for i := range clusters.Items {
		if clusters.Items[i].Labels[v1alpha1.TunnelLabel] == v1alpha1.TunnelEnabled {
			keys = append(keys, client.ObjectKeyFromObject(&clusters.Items[i]))
		}
	}
	for i := range tunnels.Items {
		if tunnels.Items[i].OfCluster() {
			keys = append(keys, client.ObjectKeyFromObject(&tunnels.Items[i]))
		}
	}
	var networks v1alpha1.RemoteNetworkList
	if m.List(ctx, &networks, in) == nil { // without permission, Clusters with networks alone are left out
		for i := range networks.Items {
			n := &networks.Items[i]
			keys = append(keys, client.ObjectKey{Namespace: n.Namespace, Name: n.Spec.ClusterName})
		}
	}
	slices.SortFunc(keys, func(a, b client.ObjectKey) int { return strings.Compare(a.String(), b.String()) })
	return slices.Compact(keys), nil
}
