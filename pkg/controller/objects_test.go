package controller

import (
	"fmt"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	apimeta "k8s.io/apimachinery/pkg/api/meta"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/fairlead/fairlead/api/v1alpha1"
	"github.com/fairlead/fairlead/internal/kubetest"
	"github.com/fairlead/fairlead/pkg/controller/controllertest"
)

// waitCondition waits until a Tunnel has a condition with this reason, and returns the Tunnel.
func waitCondition(t *testing.T, m *management, cluster *clusterv1.Cluster, kind, reason string) *v1alpha1.Tunnel {
	t.Helper()
	tunnel := controllertest.TunnelNamed(cluster)
	controllertest.Eventually(t, func() error {
		if err := m.Get(t.Context(), client.ObjectKeyFromObject(cluster), tunnel); err != nil {
			return err
		}
		c := apimeta.FindStatusCondition(tunnel.Status.Conditions, kind)
		if c == nil || c.Reason != reason || c.ObservedGeneration != tunnel.Generation {
			return fmt.Errorf("condition %s of %s is %+v, want reason %s", kind, tunnel.Name, c, reason)
		}
		return nil
	})
	return tunnel
}

// waitReady waits until the kubeconfig uses the tunnel and edges can enrol.
func waitReady(t *testing.T, m *management, cluster *clusterv1.Cluster) *v1alpha1.Tunnel {
	t.Helper()
	controllertest.Eventually(t, func() error {
		return m.Get(t.Context(), client.ObjectKeyFromObject(controllertest.BootstrapOf(cluster)), &corev1.Secret{})
	})
	return waitCondition(t, m, cluster, v1alpha1.ConditionKubeconfigReady, v1alpha1.ReasonRewritten)
}

func waitServer(t *testing.T, m *management, secret *corev1.Secret, want string) *corev1.Secret {
	t.Helper()
	now := secret.DeepCopy()
	controllertest.Eventually(t, func() error {
		if err := m.Get(t.Context(), client.ObjectKeyFromObject(secret), now); err != nil {
			return err
		}
		if got := controllertest.EntryOf(t, now).Server; got != want {
			return fmt.Errorf("the kubeconfig's server is %s, want %s", got, want)
		}
		return nil
	})
	return now
}

// settled waits until a Cluster that was created later is served. All Clusters pass through one queue, so earlier ones
// were processed by then.
func settled(t *testing.T, m *management, namespace string) {
	t.Helper()
	marker := kubetest.Cluster(namespace, fmt.Sprintf("marker-%d", time.Now().UnixNano()))
	controllertest.Create(
		t, m, marker, controllertest.KubeconfigSecret(t, namespace, marker.Name, controllertest.OriginalServer),
	)
	waitReady(t, m, marker)
}
