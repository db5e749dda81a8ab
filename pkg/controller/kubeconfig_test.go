package controller

import (
	"maps"
	"testing"

	corev1 "k8s.io/api/core/v1"
	clientcmdapi "k8s.io/client-go/tools/clientcmd/api"

	"github.com/fairlead/fairlead/api/v1alpha1"
	"github.com/fairlead/fairlead/pkg/kubeconfig"
)

const (
	hostname  = "c1.prod.tunnels.example.com"
	direct    = "https://c1.prod.tunnels.example.com:6443"
	byAddress = "https://10.1.1.1:6443"
	proxy     = "http://10.1.1.1:3128"
)

// secretWith is a kubeconfig Secret with one entry, as somebody has left it.
func secretWith(t *testing.T, entry kubeconfig.Way, kept map[string]string) *corev1.Secret {
	t.Helper()
	secret := kubeconfigSecret(t, "prod", "c1", entry.Server, func(c *clientcmdapi.Config) {
		c.Clusters["c1"].TLSServerName, c.Clusters["c1"].ProxyURL = entry.TLSServerName, entry.ProxyURL
	})
	secret.Annotations = map[string]string{"somebody.example.org/else": "x"}
	maps.Copy(secret.Annotations, kept)
	return secret
}

// rewritten is what Fairlead notes.
func rewritten(written, original string) map[string]string {
	return map[string]string{v1alpha1.WrittenServerAnnotation: written, v1alpha1.OriginalServerAnnotation: original}
}

func checkEntry(t *testing.T, secret *corev1.Secret, want kubeconfig.Way) {
	t.Helper()
	if got, err := kubeconfig.Read(secret, "c1"); err != nil || got != want {
		t.Errorf("the kubeconfig leads %+v, %v; want %+v", got, err, want)
	}
}
