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
		gone       = map[model.Key]*model.WorkloadCluster{}
	)
	// First all of them claim what they claim now: the objects of those affected may have changed as well.
	for todo := []model.Key{key}; len(todo) > 0; todo = todo[1:] {
		next := todo[0]
		if seen[next] {
			continue
		}
		seen[next] = true
		c, withheld, err := k.look(ctx, next)
		switch {
		case err != nil:
			return err
		case c != nil:
			todo = append(todo, k.names.Resolve(k.Domain, *c).Affected...)
			candidates = append(candidates, *c)
		default:
			todo = append(todo, k.names.Release(next)...)
			gone[next] = withheld
		}
	}
	revived := false
	for key, withheld := range gone {
		delete(k.said, key)
		revived = k.living.set(key, "") || revived
		k.Publisher.Publish(key, withheld)
	}
	for _, c := range candidates {
		r := k.names.Resolve(k.Domain, c)
		k.say(r)
		revived = k.living.note(c, r) || revived
		cluster := granted(c, r)
		k.Publisher.Publish(c.Key, &cluster)
	}
	if revived && len(k.recorded) > 0 {
		return k.publishEnded(ctx)
	}
	return nil
}

// living are the ids of the Tunnels that are served, by Tunnel. A served Tunnel takes precedence over the record of ended tunnels.
type living map[model.Key]string

// note records what became of a candidate, and says whether that is new.
func (l living) note(c model.Candidate, r model.Resolution) bool {
	if r.Cluster.Withheld || r.Cluster.Prepared || !c.Lives {
		return l.set(c.Key, "")
	}
	return l.set(c.Key, c.ID)
}

func (l living) set(key model.Key, id string) bool {
	if l[key] == id {
		return false
	}
	if l[key] = id; id == "" {
		delete(l, key)
	}
	return true
}

// granted is what a candidate is served. The controller grants an id and names by recording them. Until then nothing that the
// Tunnel says counts, neither what it asks for nor what it revokes: the id may be another Tunnel's.
func granted(c model.Candidate, r model.Resolution) model.WorkloadCluster {
	if !c.Recorded {
		return model.WorkloadCluster{Key: c.Key, Withheld: true}
	}
	return r.Cluster
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
	c, _, err := k.look(ctx, key)
	if c == nil || c.Unserved {
		return model.Candidate{}, false, err
	}
	return *c, true, nil
}

// look reads the objects of one workload cluster. One that is not to be served is withheld, or both are nil if it has no
// Tunnel. What a Tunnel revokes counts only for an id that it has.
func (k *Kube) look(ctx context.Context, key model.Key) (*model.Candidate, *model.WorkloadCluster, error) {
	tunnel, cluster := &v1alpha1.Tunnel{}, &clusterv1.Cluster{}
	at := client.ObjectKey{Namespace: key.Namespace, Name: key.Name}
	if err := k.objects.Get(ctx, at, tunnel); apierrors.IsNotFound(err) {
		return nil, nil, nil
	} else if err != nil {
		return nil, nil, fmt.Errorf("reading Tunnel %s: %w", key, err)
	}
	if err := k.objects.Get(ctx, at, cluster); apierrors.IsNotFound(err) {
		cluster = nil
	} else if err != nil {
		return nil, nil, fmt.Errorf("reading Cluster %s: %w", key, err)
	}
	if c, ok := Claimant(cluster, tunnel, k.Now()); ok {
		return &c, nil, nil
	}
	return nil, &model.WorkloadCluster{Key: key, ID: tunnel.HeldID(), Revoked: tunnel.Spec.RevokedEdges, Withheld: true}, nil
}
