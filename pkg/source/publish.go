package source

import (
	"context"
	"errors"
	"fmt"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/fairlead/fairlead/api/v1alpha1"
	"github.com/fairlead/fairlead/pkg/model"
)

// publish publishes one workload cluster, and the others that share or shared a name with it.
func (k *Kube) publish(ctx context.Context, key model.Key) error {
	there, record, shared, err := k.take(ctx, key)
	if err != nil {
		return err
	}
	if there {
		shared = append(shared, key)
	} else {
		delete(k.logged, key)
		k.Publisher.Publish(key, nil)
	}
	for _, each := range shared {
		cluster := k.served(each)
		k.Publisher.Publish(each, &cluster)
	}
	switch record {
	case recordRevived: // at once: an edge takes the denial of its id for final
		return k.publishEnded(ctx)
	case recordEnded:
		k.queue.Add(recordKey) // once for all Tunnels that end together
	}
	return nil
}

// take reads and records one workload cluster. It returns whether there is a Tunnel, what it changes in the published
// record of ended tunnels, and the keys that share or shared a name with it.
func (k *Kube) take(
	ctx context.Context, key model.Key,
) (there bool, record recordChange, shared []model.Key, err error) {
	tunnel, cluster, err := k.pair(ctx, key)
	if err != nil {
		return false, recordSame, nil, err
	}
	if tunnel == nil {
		delete(k.problems, key)
		return false, k.living.set(key, "", k.recorded), k.records.remove(key), nil
	}
	beside, err := k.beside(ctx, tunnel, cluster)
	if err != nil {
		return false, recordSame, nil, err
	}
	t := translate(k.Domain, cluster, tunnel, beside, k.Now())
	if t.expires > 0 {
		k.queue.AddAfter(key, t.expires)
	}
	id := ""
	if t.admitted {
		id = t.cluster.ID
	}
	if k.problems[key] = t.problem; t.problem == nil {
		delete(k.problems, key)
	}
	return true, k.living.set(key, id, k.recorded), k.records.set(t.cluster), nil
}

// served returns what is published of a workload cluster. It logs once what cannot be served.
func (k *Kube) served(key model.Key) model.WorkloadCluster {
	cluster, shared := k.records.served(key)
	text := ""
	if err := errors.Join(k.problems[key], shared); err != nil {
		text = err.Error()
	}
	if text != k.logged[key] && text != "" {
		k.Log.Warn("cannot serve workload cluster as its Tunnel records",
			"cluster", key.String(), "served", !cluster.Withheld, "error", text)
	}
	if k.logged[key] = text; text == "" {
		delete(k.logged, key)
	}
	return cluster
}

// living holds the ids of the served Tunnels, by Tunnel. A served Tunnel takes precedence over the record of ended
// tunnels.
type living map[model.Key]string

// recordChange is what a change of a Tunnel changes in what is published of the record of ended tunnels.
type recordChange int

const (
	recordSame    recordChange = iota
	recordRevived              // an id that is on record is served
	recordEnded                // an id that is on record may no longer be served
)

// set sets the id of a served Tunnel; empty: it is not served. It returns what that changes in what is published of a
// record. Most ids are not on record, and the record is published as a whole.
func (l living) set(key model.Key, id string, recorded map[string]time.Time) recordChange {
	before := l[key]
	if before == id {
		return recordSame
	}
	if l[key] = id; id == "" {
		delete(l, key)
	}
	if _, is := recorded[id]; is {
		return recordRevived
	}
	if _, was := recorded[before]; was {
		return recordEnded
	}
	return recordSame
}

// pair reads a Tunnel and the Cluster that it serves; nil: the object does not exist. The Cluster of a network is nil
// also if the RemoteNetwork does not exist or does not control the Tunnel.
func (k *Kube) pair(ctx context.Context, key model.Key) (*v1alpha1.Tunnel, *metav1.PartialObjectMetadata, error) {
	tunnel, cluster := &v1alpha1.Tunnel{}, clusterMetadata()
	at := client.ObjectKey{Namespace: key.Namespace, Name: key.Name}
	if err := k.objects.Get(ctx, at, tunnel); apierrors.IsNotFound(err) {
		tunnel = nil
	} else if err != nil {
		return nil, nil, fmt.Errorf("reading Tunnel %s: %w", key, err)
	}
	switch {
	case tunnel == nil:
	case tunnel.Spec.EgressOf != "":
		at.Name = tunnel.Spec.EgressOf
	case tunnel.Spec.Network != "":
		network, err := k.network(ctx, tunnel)
		if err != nil || network == nil {
			return tunnel, nil, err
		}
		at.Name = network.Spec.ClusterName
	}
	if err := k.objects.Get(ctx, at, cluster); apierrors.IsNotFound(err) {
		cluster = nil
	} else if err != nil {
		return nil, nil, fmt.Errorf("reading Cluster %s: %w", at, err)
	}
	return tunnel, cluster, nil
}
