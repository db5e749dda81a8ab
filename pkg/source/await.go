package source

import (
	"context"
	"fmt"
	"math/rand/v2"
	"slices"
	"time"

	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/fairlead/fairlead/api/v1alpha1"
	"github.com/fairlead/fairlead/pkg/model"
)

const (
	recordsInterval = time.Second
	// recordsStable is how long the set of Tunnels without a complete record must be unchanged while other records are
	// complete. The controller has then seen these Tunnels, and cannot or will not complete them. It handles some 20
	// Tunnels a second.
	recordsStable = 15 * time.Second
	// recordsLog is the interval at which the Tunnels that delay a start are logged.
	recordsLog = time.Minute
)

// awaitRecords waits until a controller of this version has recorded what is served. In an upgrade the new xds-servers
// may start before the new controller: until it has completed the records they are not ready, and the xds-servers of
// the previous version continue to serve. It does not wait for Tunnels that stay incomplete while others are complete:
// a record that cannot be completed, by mistake or on purpose, delays no other. While no record is complete it waits
// without a limit, because it would publish nothing.
func (k *Kube) awaitRecords(ctx context.Context) error {
	var left []string
	var since, logged time.Time
	for {
		now, complete, err := k.incomplete(ctx)
		if err != nil || len(now) == 0 {
			return err
		}
		if !slices.Equal(now, left) {
			left, since = now, k.Now()
		}
		if complete > 0 && k.Now().Sub(since) >= recordsStable {
			k.Log.Error(
				"Tunnels without a complete record are not served: see their conditions", "tunnels", left[:min(len(left), 10)],
				"count", len(left),
			)
			return nil
		}
		if logged.IsZero() || k.Now().Sub(logged) >= recordsLog {
			k.Log.Warn(
				"waiting for a controller of this version to record what is served", "tunnels", len(left), "complete", complete,
			)
			logged = k.Now()
		}
		select {
		case <-ctx.Done():
			return nil
		case <-time.After(recordsInterval + rand.N(recordsInterval/4)):
		}
	}
}

// incomplete returns, in order, the Tunnels that are to be served and have recorded names but no complete record, and
// the number of Tunnels with a complete record. Tunnels that are being deleted are not counted.
func (k *Kube) incomplete(ctx context.Context) (left []string, complete int, err error) {
	var tunnels v1alpha1.TunnelList
	// There may be many, and nothing here changes them.
	if err := k.objects.List(ctx, &tunnels, client.UnsafeDisableDeepCopy); err != nil {
		return nil, 0, fmt.Errorf("listing Tunnels: %w", err)
	}
	for i := range tunnels.Items {
		t := &tunnels.Items[i]
		switch {
		case !t.DeletionTimestamp.IsZero() || len(t.Status.Names) == 0:
			continue
		case t.Status.Served != nil:
			complete++
			continue
		}
		now, cluster, err := k.pair(ctx, model.Key{Namespace: t.Namespace, Name: t.Name})
		if err != nil {
			return nil, 0, err
		}
		if now != nil && admits(cluster, now, k.Now()) {
			left = append(left, t.Namespace+"/"+t.Name)
		}
	}
	slices.Sort(left)
	return left, complete, nil
}
