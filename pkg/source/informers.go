package source

import (
	"context"

	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/fairlead/fairlead/api/v1alpha1"
	"github.com/fairlead/fairlead/internal/informers"
)

// compare starts to compare the Clusters and Tunnels in the cache with the apiserver's, until ctx ends. Then it closes
// ended.
func (k *Kube) compare(ctx context.Context) (ended <-chan struct{}, err error) {
	check, err := informers.New(ctx, informers.Config{
		Cache: k.objects, Live: k.live, Scheme: k.scheme, Beats: k.Beats, Log: k.Log,
		Interval: k.compareEvery, Limit: k.compareLimit,
		Objects: []client.Object{clusterMetadata(), &v1alpha1.Tunnel{}, &v1alpha1.RemoteNetwork{}},
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
