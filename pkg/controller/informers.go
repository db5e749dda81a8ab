package controller

import (
	"context"

	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/fairlead/fairlead/api/v1alpha1"
	"github.com/fairlead/fairlead/internal/informers"
	"github.com/fairlead/fairlead/pkg/controller/reconciler"
)

// setupInformers makes each replica compare the Clusters and Tunnels in its cache with those in the apiserver, for
// Alive.
func setupInformers(p reconciler.Deps, mgr ctrl.Manager) error {
	check, err := informers.New(context.Background(), informers.Config{
		Cache: mgr.GetCache(), Live: p.Live, Scheme: mgr.GetScheme(), Beats: reconciler.Reconciliations, Log: p.Log,
		Objects: []client.Object{&clusterv1.Cluster{}, &v1alpha1.Tunnel{}, &v1alpha1.RemoteNetwork{}},
	})
	if err != nil {
		return err
	}
	return mgr.Add(reconciler.EveryReplica{Run: func(ctx context.Context) error {
		check.Run(ctx)
		return nil
	}})
}
