package controller

import (
	"fmt"
	"testing"

	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/fairlead/fairlead/api/v1alpha1"
	"github.com/fairlead/fairlead/pkg/controller/controllertest"
	"github.com/fairlead/fairlead/pkg/kubeconfig"
)

// TestAPausedClusterIsNotChanged by the webhook, as by the controller.
func TestAPausedClusterIsNotChanged(t *testing.T) {
	m := apiserver(t)
	startReplica(t, m)
	cluster := webhookCluster(t, m, "paused")
	pause := func(on bool) {
		controllertest.Edit(t, m, cluster, func(c *clusterv1.Cluster) { c.Spec.Paused = &on })
	}
	written := func(want string) {
		t.Helper()
		controllertest.Eventually(t, func() error {
			secret := controllertest.KubeconfigSecret(t, cluster.Namespace, cluster.Name, "https://192.0.2.77:6443")
			if err := m.Update(t.Context(), secret, client.DryRunAll); err != nil {
				return err
			}
			if got := controllertest.EntryOf(t, secret).Server; got != want {
				return fmt.Errorf("it would be stored with %s, want %s", got, want)
			}
			return nil
		})
	}
	through := controllertest.EntryOf(
		t, controllertest.Read(t, m, controllertest.SecretNamed(cluster.Namespace, cluster.Name+kubeconfig.Suffix)),
	).Server
	pause(true)
	written("https://192.0.2.77:6443")
	pause(false)
	written(through)
}

// TestTheWebhookKeepsARestoredKubeconfig: a replica with an outdated cache would write the endpoint once more.
func TestTheWebhookKeepsARestoredKubeconfig(t *testing.T) {
	m := apiserver(t)
	startReplica(t, m)
	for i := range 5 {
		cluster := webhookCluster(t, m, fmt.Sprintf("given-back-%d", i))
		secret := controllertest.SecretNamed(cluster.Namespace, cluster.Name+kubeconfig.Suffix)
		seen := watchSecret(t, m, secret)
		controllertest.Edit(
			t, m, cluster, func(c *clusterv1.Cluster) { c.Labels[v1alpha1.TunnelLabel] = v1alpha1.TunnelDisabled },
		)
		if got := controllertest.EntryOf(t, next(t, seen).secret).Server; got != controllertest.OriginalServer {
			t.Fatalf("it was given back as %s", got)
		}
		controllertest.WaitGone(t, m, controllertest.TunnelNamed(cluster))
		if now := controllertest.Read(t, m, secret); controllertest.EntryOf(t, now).Server != controllertest.OriginalServer ||
			kubeconfig.Annotated(now) {
			t.Errorf("it did not stay given back: %s, %v", controllertest.EntryOf(t, now).Server, now.Annotations)
		}
	}
}
