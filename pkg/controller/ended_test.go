package controller

import (
	"errors"
	"fmt"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	apimeta "k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/fairlead/fairlead/api/v1alpha1"
	"github.com/fairlead/fairlead/internal/kubetest"
	"github.com/fairlead/fairlead/pkg/controller/controllertest"
	"github.com/fairlead/fairlead/pkg/controller/objects"
	"github.com/fairlead/fairlead/pkg/controller/records"
)

// deletedForMove is the annotation of clusterctl on the objects that it has moved.
const deletedForMove = "clusterctl.cluster.x-k8s.io/delete-for-move"

// endedIDs returns the record of the shared management cluster.
func endedIDs(t *testing.T, m *management) map[string]string {
	t.Helper()
	record := &corev1.ConfigMap{}
	key := client.ObjectKey{Namespace: controllertest.Config().Namespace, Name: v1alpha1.EndedTunnelsConfigMapName}
	if err := m.Get(t.Context(), key, record); client.IgnoreNotFound(err) != nil {
		t.Fatal(err)
	}
	return record.Data
}

func checkEnded(t *testing.T, m *management, id string) {
	t.Helper()
	until, err := time.Parse(time.RFC3339, endedIDs(t, m)[id])
	if err != nil {
		t.Fatalf("tunnel %s is not on record: %v", id, err)
	}
	if left := time.Until(until); left < 24*time.Hour || left > 25*time.Hour {
		t.Errorf("certificates of its edges are held to be valid for %s, want a leaf's life and a margin", left)
	}
}

// waitPaused waits until the controller has recorded that a Cluster is paused, or is not.
func waitPaused(t *testing.T, m *management, cluster *clusterv1.Cluster, want bool) *v1alpha1.Tunnel {
	t.Helper()
	tunnel := controllertest.TunnelNamed(cluster)
	controllertest.Eventually(t, func() error {
		if err := m.Get(t.Context(), client.ObjectKeyFromObject(tunnel), tunnel); err != nil {
			return err
		}
		if got := apimeta.IsStatusConditionTrue(tunnel.Status.Conditions, v1alpha1.ConditionPaused); got != want {
			return fmt.Errorf("condition Paused: %v, want %v", got, want)
		}
		return nil
	})
	return tunnel
}

func TestAnEndedTunnelIsRecorded(t *testing.T) {
	m := apiserver(t)
	for name, end := range map[string]func(*clusterv1.Cluster, *v1alpha1.Tunnel){
		"its Cluster is deleted": func(c *clusterv1.Cluster, _ *v1alpha1.Tunnel) {
			if err := m.Delete(t.Context(), c); err != nil {
				t.Fatal(err)
			}
		},
		"its Cluster opts out": func(c *clusterv1.Cluster, _ *v1alpha1.Tunnel) {
			controllertest.Edit(t, m, c, func(c *clusterv1.Cluster) { c.Labels = nil })
		},
		"it is deleted itself": func(_ *clusterv1.Cluster, tunnel *v1alpha1.Tunnel) {
			if err := m.Delete(t.Context(), tunnel); err != nil {
				t.Fatal(err)
			}
		},
		"its Cluster was paused before": func(c *clusterv1.Cluster, _ *v1alpha1.Tunnel) {
			controllertest.Edit(t, m, c, func(c *clusterv1.Cluster) { c.Spec.Paused = ptr.To(true) })
			waitPaused(t, m, c, true)
			controllertest.Edit(t, m, c, func(c *clusterv1.Cluster) { c.Spec.Paused = nil })
			waitPaused(t, m, c, false)
			if err := m.Delete(t.Context(), c); err != nil {
				t.Fatal(err)
			}
		},
	} {
		t.Run(name, func(t *testing.T) {
			cluster := kubetest.Cluster(kubetest.NewNamespace(t, m), "c1")
			controllertest.Create(t, m, cluster)
			tunnel := waitCondition(t, m, cluster, v1alpha1.ConditionAccepted, v1alpha1.ReasonAccepted)
			end(cluster, tunnel.DeepCopy())
			controllertest.Eventually(t, func() error {
				now := controllertest.TunnelNamed(cluster)
				err := m.Get(t.Context(), client.ObjectKeyFromObject(now), now)
				if client.IgnoreNotFound(err) != nil || (err == nil && now.UID == tunnel.UID) {
					return fmt.Errorf("the Tunnel is still there: %w", err)
				}
				return nil
			})
			checkEnded(t, m, tunnel.Spec.ID)
		})
	}
}

// TestAMovedClusterEndsNoTunnel does what clusterctl move does to the management cluster that it moves from, and covers
// a Cluster that is deleted before its Tunnel.
func TestAMovedClusterEndsNoTunnel(t *testing.T) {
	m := apiserver(t)
	tests := map[string]func(*clusterv1.Cluster, *v1alpha1.Tunnel){
		"by clusterctl: the Tunnel first": func(cluster *clusterv1.Cluster, tunnel *v1alpha1.Tunnel) {
			for _, o := range []client.Object{tunnel, cluster} {
				controllertest.Edit(t, m, o, func(o client.Object) { o.SetAnnotations(map[string]string{deletedForMove: ""}) })
				if err := m.Delete(t.Context(), o); err != nil {
					t.Fatal(err)
				}
				if err := m.Patch(
					t.Context(), o, client.RawPatch("application/merge-patch+json", []byte(`{"metadata":{"finalizers":[]}}`)),
				); client.IgnoreNotFound(err) != nil {
					t.Fatal(err)
				}
			}
		},
		"the Cluster first": func(cluster *clusterv1.Cluster, _ *v1alpha1.Tunnel) {
			if err := m.Delete(t.Context(), cluster); err != nil {
				t.Fatal(err)
			}
		},
		"the Cluster first, and clusterctl has marked the Tunnel": func(cluster *clusterv1.Cluster, tunnel *v1alpha1.Tunnel) {
			controllertest.Edit(t, m, tunnel, func(o *v1alpha1.Tunnel) { o.Annotations = map[string]string{deletedForMove: ""} })
			if err := m.Delete(t.Context(), cluster); err != nil {
				t.Fatal(err)
			}
		},
	}
	for name, move := range tests {
		t.Run(name, func(t *testing.T) {
			ns := kubetest.NewNamespace(t, m)
			cluster := kubetest.Cluster(ns, "c1")
			controllertest.Create(t, m, cluster)
			waitCondition(t, m, cluster, v1alpha1.ConditionAccepted, v1alpha1.ReasonAccepted)
			controllertest.Edit(t, m, cluster, func(c *clusterv1.Cluster) { c.Spec.Paused = ptr.To(true) })
			tunnel := waitPaused(t, m, cluster, true)
			move(cluster, tunnel.DeepCopy())
			controllertest.WaitGone(t, m, tunnel)
			settled(t, m, ns)
			if until, ok := endedIDs(t, m)[tunnel.Spec.ID]; ok {
				t.Errorf("its edges are denied until %s", until)
			}
		})
	}
}

func TestARecreatedTunnelIsRemovedFromTheRecord(t *testing.T) {
	m := apiserver(t)
	cluster := kubetest.Cluster(kubetest.NewNamespace(t, m), "c1")
	controllertest.Create(t, m, cluster)
	first := waitCondition(t, m, cluster, v1alpha1.ConditionAccepted, v1alpha1.ReasonAccepted)
	if err := m.Delete(t.Context(), cluster); err != nil {
		t.Fatal(err)
	}
	controllertest.WaitGone(t, m, first)
	checkEnded(t, m, first.Spec.ID)
	// Restored as clusterctl does it: paused, the Cluster first, then the Tunnel with the Cluster's new UID.
	again := kubetest.Cluster(cluster.Namespace, "c1")
	again.Spec.Paused = ptr.To(true)
	controllertest.Create(t, m, again)
	tunnel := controllertest.TunnelNamed(again)
	tunnel.Spec.ID = first.Spec.ID
	objects.CompleteTunnel(tunnel, again)
	controllertest.Create(t, m, tunnel)
	controllertest.Eventually(t, func() error {
		if _, ok := endedIDs(t, m)[first.Spec.ID]; ok {
			return errors.New("the tunnel lives, and is on record as ended")
		}
		return nil
	})
	// so its edges are served while the Cluster is still paused, and nothing else begins
	controllertest.Eventually(t, func() error {
		now := &v1alpha1.Tunnel{}
		if err := m.Get(t.Context(), client.ObjectKeyFromObject(tunnel), now); err != nil {
			return err
		}
		if now.HeldID() != first.Spec.ID || len(now.Status.Names) == 0 || len(now.Status.Tokens) > 0 {
			return fmt.Errorf(
				"the record has the id %q, the names %v and %d tokens", now.Status.ID, now.Status.Names, len(now.Status.Tokens),
			)
		}
		return nil
	})
}

func TestTheRecordIsPrunedAndBounded(t *testing.T) {
	m := apiserver(t)
	at := time.Now()
	namespace := kubetest.NewNamespace(t, m)
	e := records.NewEndedTunnels(m, m, namespace, func() time.Time { return at })
	for id, until := range map[string]time.Time{
		"here": at.Add(time.Hour), "grace": at.Add(-89 * 24 * time.Hour), "gone": at.Add(-91 * 24 * time.Hour),
	} {
		if err := e.Add(t.Context(), id, until); err != nil {
			t.Fatal(err)
		}
	}
	controllertest.Edit(t, m, &corev1.ConfigMap{
		ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: v1alpha1.EndedTunnelsConfigMapName},
	}, func(c *corev1.ConfigMap) {
		c.Data["unreadable"] = "yesterday"
	})
	if err := e.Prune(t.Context()); err != nil {
		t.Fatal(err)
	}
	if !e.Has("unreadable") {
		t.Error("an entry with a bad time is gone, and its edges are let in")
	}
	if !e.Has("here") || !e.Has("grace") || e.Has("gone") {
		t.Errorf("left: here %v, grace %v, gone %v", e.Has("here"), e.Has("grace"), e.Has("gone"))
	}
	ids := map[string]string{}
	for i := range records.MaxEnded {
		ids[fmt.Sprintf("%032d", i)] = at.UTC().Format(time.RFC3339)
	}
	// As many as fit into one object.
	full := &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: "full"}, Data: ids}
	controllertest.Create(t, m, full)
}
