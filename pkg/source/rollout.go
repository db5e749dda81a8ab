package source

import (
	"context"
	"fmt"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	toolscache "k8s.io/client-go/tools/cache"
	"sigs.k8s.io/controller-runtime/pkg/cache"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/fairlead/fairlead/api/v1alpha1"
	"github.com/fairlead/fairlead/pkg/model"
	"github.com/fairlead/fairlead/pkg/rollout"
)

// rolloutKey stands for the record of rollouts in the queue. No Tunnel has a name without a namespace.
var rolloutKey = model.Key{Name: "rollout"}

// watchRollout prepares the watch of the record.
func (k *Kube) watchRollout(ctx context.Context) error {
	enqueue := func() { k.queue.Add(rolloutKey) }
	informer, err := k.rollouts.GetInformer(ctx, &corev1.ConfigMap{}, cache.BlockUntilSynced(false))
	if err == nil {
		_, err = informer.AddEventHandler(toolscache.ResourceEventHandlerFuncs{
			AddFunc: func(any) { enqueue() }, UpdateFunc: func(any, any) { enqueue() }, DeleteFunc: func(any) { enqueue() },
		})
	}
	if err != nil {
		return fmt.Errorf("watching the ConfigMap %s: %w", v1alpha1.RolloutConfigMapName, err)
	}
	return nil
}

// publishRollout hands the record of rollouts over. While the record cannot be read the one that was published last
// stays.
func (k *Kube) publishRollout(ctx context.Context) error {
	var found corev1.ConfigMap
	at := client.ObjectKey{Namespace: k.Namespace, Name: v1alpha1.RolloutConfigMapName}
	if err := k.rollouts.Get(ctx, at, &found); err != nil && !apierrors.IsNotFound(err) {
		return fmt.Errorf("reading ConfigMap %s: %w", at, err)
	}
	record, err := rollout.ParseRecord(found.Data)
	if err != nil {
		k.Log.Error("cannot follow rollout, nodes keep their configuration",
			"configmap", v1alpha1.RolloutConfigMapName, "error", err)
		return nil
	}
	k.Publisher.SetRollout(record)
	return nil
}
