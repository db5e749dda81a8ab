package source

import (
	"context"
	"fmt"
	"strings"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/fairlead/fairlead/api/v1alpha1"
	"github.com/fairlead/fairlead/pkg/model"
)

// settle publishes one workload cluster, and those that claim a name which it claims or gave up.
func (k *Kube) settle(ctx context.Context, key model.Key) error {
	var (
		seen       = map[model.Key]bool{}
		candidates []model.Candidate
		gone       []model.Key
	)
	// First all of them claim what they claim now: the objects of those affected may have changed as well.
	for todo := []model.Key{key}; len(todo) > 0; todo = todo[1:] {
		next := todo[0]
		if seen[next] {
			continue
		}
		seen[next] = true
		c, ok, err := k.candidate(ctx, next)
		switch {
		case err != nil:
			return err
		case ok:
			todo = append(todo, k.names.Resolve(k.Domain, c).Affected...)
			candidates = append(candidates, c)
		default:
			todo = append(todo, k.names.Release(next)...)
			gone = append(gone, next)
		}
	}
	for _, key := range gone {
		delete(k.said, key)
		k.Publisher.Publish(key, nil)
	}
	for _, c := range candidates {
		k.publish(k.names.Resolve(k.Domain, c))
	}
	return nil
}

func (k *Kube) publish(r model.Resolution) {
	k.say(r)
	if r.Fatal != nil {
		k.Publisher.Publish(r.Cluster.Key, nil)
		return
	}
	k.Publisher.Publish(r.Cluster.Key, &r.Cluster)
}

// say logs what is left out of a workload cluster, once. Its users read it in the Tunnel's condition.
func (k *Kube) say(r model.Resolution) {
	var all []string
	for _, err := range problems(r) {
		all = append(all, err.Error())
	}
	text := strings.Join(all, "; ")
	if text == k.said[r.Cluster.Key] {
		return
	}
	delete(k.said, r.Cluster.Key)
	if text != "" {
		k.said[r.Cluster.Key] = text
		k.Log.Warn("workload cluster not served in full", "cluster", r.Cluster.Key.String(), "served", r.Fatal == nil, "error", text)
	}
}

// candidate reads the objects of one workload cluster, and returns false if it is not to be served.
func (k *Kube) candidate(ctx context.Context, key model.Key) (model.Candidate, bool, error) {
	var (
		tunnel  v1alpha1.Tunnel
		cluster clusterv1.Cluster
		at      = client.ObjectKey{Namespace: key.Namespace, Name: key.Name}
	)
	for _, object := range []client.Object{&tunnel, &cluster} {
		if err := k.objects.Get(ctx, at, object); apierrors.IsNotFound(err) {
			return model.Candidate{}, false, nil
		} else if err != nil {
			return model.Candidate{}, false, fmt.Errorf("reading %T %s: %w", object, key, err)
		}
	}
	c, ok := Candidate(&cluster, &tunnel)
	return c, ok, nil
}
