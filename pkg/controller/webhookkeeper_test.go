package controller

import (
	"fmt"
	"testing"

	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/fairlead/fairlead/api/v1alpha1"
	"github.com/fairlead/fairlead/pkg/kubeconfig"
)

// TestAPausedClusterIsLeftAlone by the webhook, as by the controller.
func TestAPausedClusterIsLeftAlone(t *testing.T) {
	m := apiserver(t)
	startReplica(t, m)
	cluster := webhookCluster(t, m, "paused")
	pause := func(on bool) {
		edit(t, m, cluster, func(c *clusterv1.Cluster) { c.Spec.Paused = &on })
	}
	written := func(want string) {
		t.Helper()
		eventually(t, func() error {
			secret := kubeconfigSecret(t, cluster.Namespace, cluster.Name, "https://192.0.2.77:6443")
			if err := m.Update(t.Context(), secret, client.DryRunAll); err != nil {
				return err
			}
			if got := entryOf(t, secret).Server; got != want {
				return fmt.Errorf("it would be stored with %s, want %s", got, want)
			}
			return nil
		})
	}
	through := entryOf(t, read(t, m, secretNamed(cluster.Namespace, cluster.Name+kubeconfig.Suffix))).Server
	pause(true)
	written("https://192.0.2.77:6443")
	pause(false)
	written(through)
}

// TestGivingBackIsNotUndone: a replica that has not seen it yet would write the way once more.
func TestGivingBackIsNotUndone(t *testing.T) {
	m := apiserver(t)
	startReplica(t, m)
	for i := range 5 {
		cluster := webhookCluster(t, m, fmt.Sprintf("given-back-%d", i))
		secret := secretNamed(cluster.Namespace, cluster.Name+kubeconfig.Suffix)
		seen := watchSecret(t, m, secret)
		edit(t, m, cluster, func(c *clusterv1.Cluster) { c.Labels[v1alpha1.TunnelLabel] = v1alpha1.TunnelDisabled })
		if got := entryOf(t, next(t, seen).secret).Server; got != originalServer {
			t.Fatalf("it was given back as %s", got)
		}
		waitGone(t, m, tunnelNamed(cluster))
		if now := read(t, m, secret); entryOf(t, now).Server != originalServer || kubeconfig.Noted(now) {
			t.Errorf("it did not stay given back: %s, %v", entryOf(t, now).Server, now.Annotations)
		}
	}
}
