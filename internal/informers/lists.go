package informers

import (
	"sync"

	"k8s.io/client-go/features"
)

// lists are client-go's features without streaming lists.
type lists struct{ features.Gates }

// Enabled implements features.Gates.
func (l lists) Enabled(feature features.Feature) bool {
	return feature != features.WatchListClient && l.Gates.Enabled(feature)
}

var listing sync.Once

// ReadByList makes all informers of this process read the existing objects with a list, and not with a watch that
// begins with them (a streaming list, client-go's default since 1.35). For 10,000 Tunnels and Clusters the list takes
// this process and the apiserver half of the CPU time, and a restart waits for it. It needs no more memory there since
// Kubernetes 1.33, which encodes a list while it sends it (KEP-5116). It must be called before the first informer
// exists; further calls have no effect.
func ReadByList() {
	listing.Do(func() { features.ReplaceFeatureGates(lists{features.FeatureGates()}) })
}
