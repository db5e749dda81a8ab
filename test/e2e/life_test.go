package e2e

import (
	"context"
	"errors"
	"fmt"
	"testing"

	apierrors "k8s.io/apimachinery/pkg/api/errors"

	"github.com/fairlead/fairlead/test/lab"
	"github.com/fairlead/fairlead/test/promise"
)

// holdFinalizer keeps a Cluster that is being deleted, like a provider that still needs it.
const holdFinalizer = "e2e.fairlead.dev/hold"

// lifeOfACluster proves what happens to a tunnel when its Cluster is paused, deleted and created again.
func (w *world) lifeOfACluster(t *testing.T) {
	promise.That(t, "a paused Cluster keeps its route", func(t *testing.T) {
		must(t, w.paris.Patch(t.Context(), map[string]any{"spec": map[string]any{"paused": true}}))
		must(t, w.worksFor(t.Context(), calm()))
		must(t, w.paris.Patch(t.Context(), map[string]any{"spec": map[string]any{"paused": false}}))
	})
	old, err := w.join(t.Context(), "rome", w.SNI, nil)
	must(t, err)
	promise.That(
		t, "a deleting Cluster keeps its route until its finalizers are removed", func(t *testing.T) { w.deleting(t, old) },
	)
	promise.That(t, "the route of a removed Cluster is removed", func(t *testing.T) {
		must(t, old.Patch(t.Context(), finalizers(nil)))
		eventually(t, func(ctx context.Context) error { return gone(ctx, old.Cluster) })
		eventually(t, func(ctx context.Context) error {
			if err := old.works(ctx); err == nil {
				return errors.New("its kubeconfig still works")
			}
			return nil
		})
	})
	promise.That(t, "an edge of a removed Cluster receives no configuration", func(t *testing.T) {
		certificate, roots := identityOf(t, old.edge.StateDir)
		w.refusedConfiguration(t, roots, &certificate, subjectOf(t, old.edge.StateDir).NodeID())
	})
	promise.That(
		t, "the edge of a removed Cluster does not serve its successor of the same name", func(t *testing.T) {
			w.madeAgain(t, old)
		},
	)
}

// finalizers returns a patch that leaves only the given finalizers.
func finalizers(names []any) map[string]any {
	return map[string]any{"metadata": map[string]any{"finalizers": names}}
}

func (w *world) deleting(t *testing.T, m *member) {
	cluster, err := m.Get(t.Context())
	must(t, err)
	held := []any{holdFinalizer}
	for _, name := range cluster.Finalizers {
		held = append(held, name)
	}
	must(t, m.Patch(t.Context(), finalizers(held)))
	must(t, m.Delete(t.Context()))
	eventually(t, func(ctx context.Context) error { // Cluster API has finished its part
		cluster, err := m.Get(ctx)
		if err != nil {
			return err
		}
		if cluster.DeletionTimestamp.IsZero() || len(cluster.Finalizers) > 1 {
			return fmt.Errorf("finalizers are %v", cluster.Finalizers)
		}
		return nil
	})
	must(t, steady(t.Context(), m))
	if _, err := m.Tunnel(t.Context()); err != nil {
		t.Errorf("reading its Tunnel: %v", err)
	}
}

// steady returns nil if the member's kubeconfig works without interruption for a while.
func steady(ctx context.Context, m *member) error {
	return (&world{berlin: m, paris: m, tokyo: m}).worksFor(ctx, calm())
}

// gone returns nil once neither the Cluster nor its Tunnel exists.
func gone(ctx context.Context, c *lab.Cluster) error {
	if _, err := c.Get(ctx); !apierrors.IsNotFound(err) {
		return fmt.Errorf("reading the Cluster: %w", errors.Join(err, errors.New("it is there")))
	}
	if _, err := c.Tunnel(ctx); !apierrors.IsNotFound(err) {
		return fmt.Errorf("reading the Tunnel: %w", errors.Join(err, errors.New("it is there")))
	}
	return nil
}

// madeAgain creates the Cluster again while the old edge still runs with a certificate that has not expired. The old
// edge must not get a tunnel; a new edge must.
func (w *world) madeAgain(t *testing.T, old *member) {
	cluster := w.bareCluster(t, lab.ClusterSpec{Name: old.Name})
	kubeconfig, err := cluster.WaitKubeconfig(t.Context())
	must(t, err)
	again := &member{Cluster: cluster, kubeconfig: kubeconfig}
	never(t, 2*calm(), "the previous edge receives the new Cluster's traffic", again.works)
	must(t, old.edge.KillEnvoy()) // a restart does not help the old edge either
	never(t, 2*calm(), "the previous edge receives the new Cluster's traffic after a restart", again.works)

	bootstrap, err := cluster.Bootstrap(t.Context())
	must(t, err)
	_, err = w.StartEdge("edge-rome-again", bootstrap)
	must(t, err)
	eventually(t, again.works)
	must(t, steady(t.Context(), again))
}
