package source

import (
	"context"
	"fmt"
	"math/rand/v2"
	"time"

	"github.com/fairlead/fairlead/api/v1alpha1"
	"github.com/fairlead/fairlead/pkg/model"
)

const (
	// recordsLimit bounds how long a start waits for a controller to complete the records of an earlier version.
	recordsLimit = 10 * time.Minute
	recordsLook  = time.Second
)

// awaitRecords waits until no Tunnel has the record of a controller that did not record yet what is served. In an
// upgrade the new xds-servers may start before the new controller does: until it has completed the records they are not
// ready, and those of before serve on. After recordsLimit what is on record is served.
func (k *Kube) awaitRecords(ctx context.Context) error {
	deadline, logged := k.Now().Add(recordsLimit), false
	for {
		left, err := k.incomplete(ctx)
		if err != nil || left == 0 {
			return err
		}
		if !logged {
			k.Log.Warn("waiting for the controller to record what is served", "tunnels", left, "limit", recordsLimit.String())
			logged = true
		}
		if !k.Now().Before(deadline) {
			k.Log.Error("no controller has recorded what is served: is its version the same?", "tunnels", left)
			return nil
		}
		select {
		case <-ctx.Done():
			return nil
		case <-time.After(recordsLook + rand.N(recordsLook/4)):
		}
	}
}

// incomplete is how many Tunnels that are to be served have names on record, and nothing of what is served by them.
func (k *Kube) incomplete(ctx context.Context) (count int, err error) {
	var tunnels v1alpha1.TunnelList
	if err := k.objects.List(ctx, &tunnels); err != nil {
		return 0, fmt.Errorf("listing Tunnels: %w", err)
	}
	for i := range tunnels.Items {
		t := &tunnels.Items[i]
		if len(t.Status.Names) == 0 || t.Status.Served != nil {
			continue
		}
		now, cluster, err := k.pair(ctx, model.Key{Namespace: t.Namespace, Name: t.Name})
		if err != nil {
			return 0, err
		}
		if now != nil && admits(cluster, now, k.Now()) {
			count++
		}
	}
	return count, nil
}
