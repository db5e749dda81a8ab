package controller

import (
	"context"
	"fmt"
	"log/slog"

	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	"github.com/fairlead/fairlead/api/v1alpha1"
)

// tunnelIDIndex finds a Tunnel by its id.
const tunnelIDIndex = "spec.id"

func tunnelIDOf(o client.Object) []string {
	if tunnel, ok := o.(*v1alpha1.Tunnel); ok && tunnel.ClaimedID() != "" {
		return []string{tunnel.ClaimedID()}
	}
	return nil
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

// tunnelRequests has all Tunnels of a list reconciled.
func tunnelRequests(ctx context.Context, from client.Reader, log *slog.Logger, which ...client.ListOption) []reconcile.Request {
	var list v1alpha1.TunnelList
	if err := from.List(ctx, &list, which...); err != nil {
		if ctx.Err() == nil {
			log.Error("Tunnels can't be listed", "error", err)
		}
		return nil
	}
	var requests []reconcile.Request
	for i := range list.Items {
		requests = append(requests, reconcile.Request{NamespacedName: client.ObjectKeyFromObject(&list.Items[i])})
	}
	return requests
}
