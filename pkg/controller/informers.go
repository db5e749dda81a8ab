package controller

import (
	"context"

	"k8s.io/apimachinery/pkg/runtime/schema"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"
	ctrl "sigs.k8s.io/controller-runtime"

	"github.com/fairlead/fairlead/api/v1alpha1"
	"github.com/fairlead/fairlead/internal/informers"
	"github.com/fairlead/fairlead/pkg/controller/reconciler"
)

// setupInformers makes each replica compare the Clusters and Tunnels in its cache with those in the apiserver, for
// Alive.
func setupInformers(p reconciler.Deps, mgr ctrl.Manager) error {
	check, err := informers.New(context.Background(), informers.Config{
		Cache: mgr.GetCache(), Live: p.Live, Beats: reconciler.Reconciliations, Log: p.Log,
		Kinds: []schema.GroupVersionKind{
			clusterv1.GroupVersion.WithKind("Cluster"), v1alpha1.GroupVersion.WithKind("Tunnel"),
			v1alpha1.GroupVersion.WithKind("RemoteNetwork"),
		},
	})
	if err != nil {
		return err
	}
	return mgr.Add(reconciler.EveryReplica{Run: func(ctx context.Context) error {
		check.Run(ctx)
		return nil
	}})
}
