package controller

import (
	"encoding/json"
	"errors"
	"fmt"
	"testing"

	apimeta "k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/fairlead/fairlead/api/v1alpha1"
	"github.com/fairlead/fairlead/internal/kubetest"
	"github.com/fairlead/fairlead/pkg/controller/controllertest"
)

func TestTheClusterHasTheConditionToo(t *testing.T) {
	m := apiserver(t)
	cluster := kubetest.Cluster(kubetest.NewNamespace(t, m), "c1")
	controllertest.Create(t, m, cluster)
	waitCluster := func(check func(*metav1.Condition) error) {
		t.Helper()
		controllertest.Eventually(t, func() error {
			if err := m.Get(t.Context(), client.ObjectKeyFromObject(cluster), cluster); err != nil {
				return err
			}
			return check(apimeta.FindStatusCondition(cluster.Status.Conditions, v1alpha1.ClusterConditionTunnelReady))
		})
	}
	there := func(c *metav1.Condition) error {
		if c == nil || c.Status != metav1.ConditionUnknown {
			return fmt.Errorf("the condition is %+v", c)
		}
		return nil
	}
	waitCluster(there)
	// As Cluster API's patch helper does: a merge patch of all conditions that it read.
	if err := patchConditions(
		t, m, cluster,
		metav1.Condition{
			Type: "Available", Status: metav1.ConditionTrue, Reason: "Available", LastTransitionTime: metav1.Now(),
		},
	); err != nil {
		t.Fatal(err)
	}
	if len(cluster.Status.Conditions) != 2 {
		t.Errorf("conditions %+v", cluster.Status.Conditions)
	}
	// Another controller removes the condition.
	cluster.Status.Conditions = []metav1.Condition{cluster.Status.Conditions[1]}
	controllertest.Edit(t, m, cluster, func(*clusterv1.Cluster) {})
	before := cluster.DeepCopy()
	apimeta.RemoveStatusCondition(&cluster.Status.Conditions, v1alpha1.ClusterConditionTunnelReady)
	if err := m.Status().Patch(t.Context(), cluster, client.MergeFrom(before)); err != nil {
		t.Fatal(err)
	}
	waitCluster(there)
	if apimeta.FindStatusCondition(cluster.Status.Conditions, "Available") == nil {
		t.Error("another's condition is lost")
	}
	controllertest.Edit(t, m, cluster, func(c *clusterv1.Cluster) { c.Labels = nil })
	waitCluster(func(c *metav1.Condition) error {
		if c != nil {
			return errors.New("it is still there after opting out")
		}
		return nil
	})
	if apimeta.FindStatusCondition(cluster.Status.Conditions, "Available") == nil {
		t.Error("another's condition went with it")
	}
}

func patchConditions(t *testing.T, m *management, cluster *clusterv1.Cluster, add metav1.Condition) error {
	t.Helper()
	conditions := append(append([]metav1.Condition{}, cluster.Status.Conditions...), add)
	patch, err := json.Marshal(map[string]any{
		"metadata": map[string]any{"resourceVersion": cluster.ResourceVersion},
		"status":   map[string]any{"conditions": conditions},
	})
	if err != nil {
		return err
	}
	return m.Status().Patch(t.Context(), cluster, client.RawPatch("application/merge-patch+json", patch))
}
