package source

import (
	"context"
	"fmt"
	"maps"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	toolscache "k8s.io/client-go/tools/cache"
	"sigs.k8s.io/controller-runtime/pkg/cache"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/fairlead/fairlead/api/v1alpha1"
	"github.com/fairlead/fairlead/pkg/model"
)

// recordKey is the queue's key for the record of ended tunnels. No workload cluster has an empty name.
var recordKey model.Key

// forever is beyond the end of every certificate.
var forever = time.Date(9999, time.December, 31, 0, 0, 0, 0, time.UTC)

// watchEnded prepares the watch of the record.
func (k *Kube) watchEnded(ctx context.Context) error {
	look := func() { k.queue.Add(recordKey) }
	informer, err := k.record.GetInformer(ctx, &corev1.ConfigMap{}, cache.BlockUntilSynced(false))
	if err == nil {
		_, err = informer.AddEventHandler(toolscache.ResourceEventHandlerFuncs{
			AddFunc: func(any) { look() }, UpdateFunc: func(any, any) { look() }, DeleteFunc: func(any) { look() },
		})
	}
	if err != nil {
		return fmt.Errorf("watching the ConfigMap %s: %w", v1alpha1.EndedTunnelsConfigMapName, err)
	}
	return nil
}

// publishEnded publishes the record of ended tunnels.
func (k *Kube) publishEnded(ctx context.Context) error {
	var found corev1.ConfigMap
	at := client.ObjectKey{Namespace: k.Namespace, Name: v1alpha1.EndedTunnelsConfigMapName}
	if err := k.record.Get(ctx, at, &found); err != nil && !apierrors.IsNotFound(err) {
		return fmt.Errorf("reading ConfigMap %s: %w", at, err)
	}
	k.recorded = k.ended(found.Data)
	over := maps.Clone(k.recorded)
	for _, id := range k.living {
		delete(over, id) // the controller is about to remove it from the record
	}
	k.Publisher.Ended(over)
	return nil
}

// ended parses the record. It logs an invalid entry when it appears, and leaves it out. If only the time is invalid,
// the tunnel has ended at an unknown time, so it counts as ended as long as the entry exists.
func (k *Kube) ended(data map[string]string) map[string]time.Time {
	ended, bad := map[string]time.Time{}, map[string]string{}
	for id, until := range data {
		err := model.ValidateID(id)
		if err == nil {
			if ended[id], err = time.Parse(time.RFC3339, until); err != nil {
				ended[id] = forever
			}
		}
		if err == nil {
			continue
		}
		bad[id] = until
		if was, known := k.saidEnded[id]; !known || was != until {
			k.Log.Warn(
				"cannot read entry of an ended tunnel", "configmap", v1alpha1.EndedTunnelsConfigMapName, "id", id, "error", err,
			)
		}
	}
	k.saidEnded = bad
	return ended
}
