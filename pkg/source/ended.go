package source

import (
	"context"
	"maps"
	"time"

	"github.com/fairlead/fairlead/api/v1alpha1"
	"github.com/fairlead/fairlead/pkg/model"
)

// recordKey is the queue's key for the record of ended tunnels. No workload cluster has an empty name.
var recordKey model.Key

// forever is beyond the end of every certificate.
var forever = time.Date(9999, time.December, 31, 0, 0, 0, 0, time.UTC)

// publishEnded publishes the record of ended tunnels.
func (k *Kube) publishEnded(ctx context.Context) error {
	data, err := k.readConfigMap(ctx, k.record, v1alpha1.EndedTunnelsConfigMapName)
	if err != nil {
		return err
	}
	k.recorded = k.ended(data)
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
		if was, known := k.loggedEnded[id]; !known || was != until {
			k.Log.Warn(
				"cannot read entry of an ended tunnel", "configmap", v1alpha1.EndedTunnelsConfigMapName, "id", id, "error", err,
			)
		}
	}
	k.loggedEnded = bad
	return ended
}
