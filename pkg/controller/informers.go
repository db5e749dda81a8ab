package controller

import (
	"context"

	"k8s.io/apimachinery/pkg/runtime/schema"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"
	ctrl "sigs.k8s.io/controller-runtime"

	"github.com/fairlead/fairlead/api/v1alpha1"
	"github.com/fairlead/fairlead/internal/informers"
)

// setupInformers has each replica compare the Clusters and Tunnels in its cache with those of the apiserver, for Alive.
func setupInformers(p deps, mgr ctrl.Manager) error {
	check, err := informers.New(context.Background(), informers.Config{
		Cache: mgr.GetCache(), Live: p.live, Beats: reconciles, Log: p.log,
		Kinds: []schema.GroupVersionKind{clusterv1.GroupVersion.WithKind("Cluster"), v1alpha1.GroupVersion.WithKind("Tunnel")},
	})
	if err != nil {
		return err
	}
	return mgr.Add(everywhere{func(ctx context.Context) error {
		check.Run(ctx)
		return nil
	}})
}
