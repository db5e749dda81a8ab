package source

import (
	"context"

	"github.com/fairlead/fairlead/api/v1alpha1"
	"github.com/fairlead/fairlead/pkg/model"
	"github.com/fairlead/fairlead/pkg/rollout"
)

// rolloutKey stands for the record of rollouts in the queue. No Tunnel has a name without a namespace.
var rolloutKey = model.Key{Name: "rollout"}

// publishRollout hands the record of rollouts over. While the record cannot be read the one that was published last
// stays.
func (k *Kube) publishRollout(ctx context.Context) error {
	data, err := k.readConfigMap(ctx, k.rollouts, v1alpha1.RolloutConfigMapName)
	if err != nil {
		return err
	}
	record, err := rollout.ParseRecord(data)
	if err != nil {
		k.Log.Error("cannot follow rollout, nodes keep their configuration",
			"configmap", v1alpha1.RolloutConfigMapName, "error", err)
		return nil
	}
	k.Publisher.SetRollout(record)
	return nil
}
