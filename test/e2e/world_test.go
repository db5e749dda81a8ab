package e2e

import (
	"context"
	"fmt"
	"testing"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/fairlead/fairlead/api/v1alpha1"
	"github.com/fairlead/fairlead/test/lab"
	"github.com/fairlead/fairlead/test/lab/kube"
	"github.com/fairlead/fairlead/test/lab/proc"
	"github.com/fairlead/fairlead/test/promise"
)

const (
	namespace       = "shops"
	berlinExtraName = "api.berlin.example"
)

// servedBySNI are the Clusters whose tunnel hostname is in the serving certificate of the SNI apiserver.
var servedBySNI = []string{"berlin", "paris", "rome", "early"}

// member is a Cluster with its edge.
type member struct {
	*lab.Cluster
	edge       *lab.Agent
	kubeconfig []byte // as Cluster API reads it when the tunnel is up
}

// works returns nil if the member's kubeconfig reaches the right apiserver.
func (m *member) works(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, 5*time.Second)
	defer cancel()
	return m.ReachWith(ctx, m.kubeconfig)
}

// world is the installation with the Clusters that most tests need.
type world struct {
	*lab.Lab
	berlin *member // mode sni; its hostname is not in DNS
	paris  *member // mode sni; its hostname is in DNS
	tokyo  *member // mode connect

	broken time.Time // when the last failure was caused
}

func (w *world) members() []*member { return []*member{w.berlin, w.paris, w.tokyo} }

// allWork returns nil if every member's kubeconfig works.
func (w *world) allWork(ctx context.Context) error {
	group, ctx := errgroup.WithContext(ctx)
	for _, m := range w.members() {
		group.Go(func() error {
			if err := m.works(ctx); err != nil {
				return fmt.Errorf("%s: %w", m, err)
			}
			return nil
		})
	}
	return group.Wait()
}

// newWorld creates the Clusters and starts their edges, all at the same time.
func newWorld(t *testing.T) *world {
	t.Helper()
	w := &world{Lab: installation}
	group, ctx := errgroup.WithContext(t.Context())
	for name, plan := range map[string]struct {
		into      **member
		apiServer *kube.APIServer
		spec      map[string]any
	}{
		"berlin": {&w.berlin, w.SNI, map[string]any{"extraNames": []any{berlinExtraName}}},
		"paris":  {&w.paris, w.SNI, nil},
		"tokyo": {&w.tokyo, w.Connect, map[string]any{"kubeconfig": map[string]any{"mode": string(
			v1alpha1.KubeconfigModeConnect)}}},
	} {
		group.Go(func() (err error) {
			*plan.into, err = w.join(ctx, name, plan.apiServer, plan.spec)
			return err
		})
	}
	must(t, group.Wait())
	return w
}

// join creates a Cluster, starts an edge for it and waits until its kubeconfig works. spec holds the fields that a user
// sets in the Tunnel.
func (w *world) join(
	ctx context.Context, name string, apiServer *kube.APIServer, spec map[string]any,
) (*member, error) {
	cluster, err := w.CreateCluster(
		ctx, lab.ClusterSpec{Name: name, Namespace: namespace, APIServer: apiServer, Mode: v1alpha1.KubeconfigModeSNI},
	)
	if err != nil {
		return nil, err
	}
	if spec != nil {
		if err := cluster.PatchTunnel(ctx, spec); err != nil {
			return nil, err
		}
	}
	m := &member{Cluster: cluster}
	bootstrap, err := cluster.Bootstrap(ctx)
	if err != nil {
		return nil, err
	}
	if m.edge, err = w.StartEdge("edge-"+name, bootstrap); err != nil {
		return nil, err
	}
	if m.kubeconfig, err = cluster.WaitKubeconfig(ctx); err != nil {
		return nil, err
	}
	if err := proc.Wait(ctx, patience, m.works); err != nil {
		return nil, fmt.Errorf("waiting for the tunnel of %s: %w\n%s", name, err, proc.Tail(w.LogFile("edge-"+name), 20))
	}
	promise.Measured("tunnel_s", time.Since(cluster.Created).Seconds())
	return m, nil
}

// bareCluster creates a Cluster without an edge.
func (w *world) bareCluster(t *testing.T, spec lab.ClusterSpec) *lab.Cluster {
	t.Helper()
	if spec.Namespace == "" {
		spec.Namespace = namespace
	}
	if spec.APIServer == nil {
		spec.APIServer = w.SNI
	}
	if spec.Labels == nil {
		spec.Mode = v1alpha1.KubeconfigModeSNI
	}
	cluster, err := w.CreateCluster(t.Context(), spec)
	must(t, err)
	return cluster
}

// brokenNow records that a failure was just caused.
func (w *world) brokenNow() { w.broken = time.Now() }
