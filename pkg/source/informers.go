package source

import (
	"context"

	"k8s.io/apimachinery/pkg/runtime/schema"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"

	"github.com/fairlead/fairlead/api/v1alpha1"
	"github.com/fairlead/fairlead/internal/informers"
)

// compare starts to compare the Clusters and Tunnels in the cache with the apiserver's, until ctx ends. Then it closes
// ended.
func (k *Kube) compare(ctx context.Context) (ended <-chan struct{}, err error) {
	check, err := informers.New(ctx, informers.Config{
		Cache: k.objects, Live: k.live, Beats: k.Beats, Log: k.Log, Interval: k.compareEvery, Limit: k.compareLimit,
		Kinds: []schema.GroupVersionKind{
			clusterv1.GroupVersion.WithKind("Cluster"),
			v1alpha1.GroupVersion.WithKind("Tunnel"),
			v1alpha1.GroupVersion.WithKind("RemoteNetwork"),
		},
	})
	if err != nil {
		return nil, err
	}
	done := make(chan struct{})
	go func() {
		defer close(done)
		check.Run(ctx)
	}()
	return done, nil
}
