package controller

import (
	"fmt"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/fairlead/fairlead/api/v1alpha1"
	"github.com/fairlead/fairlead/internal/kubetest"
	"github.com/fairlead/fairlead/pkg/controller/controllertest"
	"github.com/fairlead/fairlead/pkg/controller/records"
	"github.com/fairlead/fairlead/pkg/enrol"
)

// TestTheSecretForBootReports runs the real controller.
func TestTheSecretForBootReports(t *testing.T) {
	m := apiserver(t)
	cluster := kubetest.Cluster(kubetest.NewNamespace(t, m), "c1")
	controllertest.Create(t, m, cluster)
	key := client.ObjectKey{Namespace: cluster.Namespace, Name: "c1" + v1alpha1.BootReportSecretSuffix}
	token := func(not string) (found string) {
		t.Helper()
		controllertest.Eventually(t, func() error {
			secret := &corev1.Secret{}
			if err := m.Get(t.Context(), key, secret); err != nil {
				return err
			}
			found = string(secret.Data[v1alpha1.BootstrapTokenKey])
			if found == not || !strings.Contains(string(secret.Data[v1alpha1.BootReportFileKey]), found) ||
				len(secret.Data) != 2 {
				return fmt.Errorf("the Secret has %d keys", len(secret.Data))
			}
			tunnel := controllertest.Read(t, m, controllertest.TunnelNamed(cluster))
			if records.TokenIndex(tunnel.Status.BootReportTokens, enrol.HashToken(found)) < 0 ||
				records.TokenIndex(tunnel.Status.Tokens, enrol.HashToken(found)) >= 0 {
				return fmt.Errorf("status %+v", tunnel.Status)
			}
			return nil
		})
		return found
	}
	first := token("")
	secret := &corev1.Secret{}
	secret.Namespace, secret.Name = key.Namespace, key.Name
	if err := m.Delete(t.Context(), secret); err != nil {
		t.Fatal(err)
	}
	token(first)
}
