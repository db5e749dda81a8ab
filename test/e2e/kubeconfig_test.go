package e2e

import (
	"bytes"
	"context"
	"fmt"
	"maps"
	"reflect"
	"testing"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/client-go/tools/clientcmd"
	clientcmdapi "k8s.io/client-go/tools/clientcmd/api"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/fairlead/fairlead/api/v1alpha1"
	"github.com/fairlead/fairlead/test/lab"
	"github.com/fairlead/fairlead/test/lab/netns"
	"github.com/fairlead/fairlead/test/promise"
)

// kubeconfigs proves how Fairlead changes the Secret that Cluster API reads.
func (w *world) kubeconfigs(t *testing.T) {
	for name, tc := range map[string]struct {
		of   *member
		want clientcmdapi.Cluster
	}{
		"mode sni without DNS uses the gateway's name, and the hostname as tls-server-name": {w.berlin, clientcmdapi.Cluster{
			Server: "https://" + hostPort(netns.GatewayName, netns.APIServerPort), TLSServerName: hostname("berlin"),
		}},
		"mode sni with DNS uses the tunnel hostname": {w.paris, clientcmdapi.Cluster{
			Server: "https://" + hostPort(hostname("paris"), netns.APIServerPort),
		}},
		"mode connect uses the tunnel hostname in proxy-url and a name of the certificate": {w.tokyo, clientcmdapi.Cluster{
			Server: "https://" + hostPort(hostname("tokyo"), 6443), TLSServerName: "kubernetes",
			ProxyURL: "http://" + hostPort(netns.GatewayName, netns.ConnectPort),
		}},
	} {
		promise.That(t, name, func(t *testing.T) { checkKubeconfig(t, tc.of, tc.want) })
	}
	promise.That(t, "an annotation keeps the original server", func(t *testing.T) {
		secret, err := w.tokyo.Secret(t.Context(), "-kubeconfig")
		must(t, err)
		if original := secret.Annotations[v1alpha1.OriginalServerAnnotation]; original != w.Connect.URL() {
			t.Errorf("it holds %q, want %q", original, w.Connect.URL())
		}
	})
	promise.That(t, "opting out restores the kubeconfig and removes the Tunnel and the bootstrap Secret", w.optingOut)
	promise.That(t, "the kubeconfig uses the tunnel again after a provider rewrites the Secret", w.rewrittenByProvider)
}

// checkKubeconfig compares a kubeconfig with the one that the provider wrote. It may differ only in the three expected
// fields, and the rest of the Secret must be unchanged.
func checkKubeconfig(t *testing.T, m *member, want clientcmdapi.Cluster) {
	t.Helper()
	written, err := m.ProviderSecret()
	must(t, err)
	secret, err := m.Secret(t.Context(), "-kubeconfig")
	must(t, err)
	if secret.Type != written.Type || !maps.Equal(secret.Labels, written.Labels) {
		t.Errorf("type and labels are %s %v, want %s %v", secret.Type, secret.Labels, written.Type, written.Labels)
	}
	if len(secret.OwnerReferences) != 1 || secret.OwnerReferences[0].Kind != "LabControlPlane" {
		t.Errorf("owners are %+v, want the provider's", secret.OwnerReferences)
	}
	was, err := clientcmd.Load(written.Data["value"])
	must(t, err)
	is, err := clientcmd.Load(secret.Data["value"])
	must(t, err)
	entry := was.Clusters[m.Name]
	entry.Server, entry.TLSServerName, entry.ProxyURL = want.Server, want.TLSServerName, want.ProxyURL
	if !reflect.DeepEqual(is, was) {
		got := is.Clusters[m.Name]
		if got == nil {
			t.Fatal("the entry of the Cluster is gone")
		}
		t.Errorf("server %q, tls-server-name %q, proxy-url %q, want %q, %q, %q; or something else changed",
			got.Server, got.TLSServerName, got.ProxyURL, want.Server, want.TLSServerName, want.ProxyURL)
	}
}

func (w *world) optingOut(t *testing.T) {
	cluster := w.bareCluster(t, lab.ClusterSpec{Name: "lisbon"})
	written, err := cluster.ProviderSecret()
	must(t, err)
	_, err = cluster.WaitKubeconfig(t.Context())
	must(t, err)
	w.label(t, cluster, v1alpha1.TunnelDisabled)
	eventually(t, func(ctx context.Context) error {
		secret, err := cluster.Secret(ctx, "-kubeconfig")
		if err != nil {
			return err
		}
		if !bytes.Equal(secret.Data["value"], written.Data["value"]) || len(secret.Annotations) != 0 ||
			len(secret.Data) != 1 {
			return fmt.Errorf(
				"secret is not as the provider wrote it: annotations %v, %d keys", secret.Annotations, len(secret.Data),
			)
		}
		if _, err := cluster.Tunnel(ctx); client.IgnoreNotFound(err) != nil || err == nil {
			return fmt.Errorf("tunnel is still there: %w", err)
		}
		if _, err := cluster.Secret(ctx, v1alpha1.BootstrapSecretSuffix); client.IgnoreNotFound(err) != nil || err == nil {
			return fmt.Errorf("bootstrap Secret is still there: %w", err)
		}
		return nil
	})
	w.label(t, cluster, v1alpha1.TunnelEnabled)
	_, err = cluster.WaitKubeconfig(t.Context())
	must(t, err)
	must(t, cluster.Delete(t.Context()))
}

// label opts a Cluster in or out.
func (w *world) label(t *testing.T, c *lab.Cluster, value string) {
	t.Helper()
	w.patch(t, c, map[string]any{"metadata": map[string]any{"labels": map[string]any{v1alpha1.TunnelLabel: value}}})
}

// patch patches a Cluster like kubectl patch.
func (w *world) patch(t *testing.T, c *lab.Cluster, change map[string]any) {
	t.Helper()
	must(t, c.Patch(t.Context(), change))
}

func (w *world) rewrittenByProvider(t *testing.T) {
	secret, err := w.berlin.Secret(t.Context(), "-kubeconfig")
	must(t, err)
	written, err := w.berlin.ProviderSecret()
	must(t, err)
	changed := secret.DeepCopy()
	changed.Data = written.Data
	must(t, w.Management.Client.Update(t.Context(), changed))
	eventually(t, func(ctx context.Context) error {
		var now corev1.Secret
		if err := w.Management.Client.Get(ctx, client.ObjectKeyFromObject(secret), &now); err != nil {
			return err
		}
		if !bytes.Equal(now.Data["value"], secret.Data["value"]) {
			return fmt.Errorf("kubeconfig is still the provider's")
		}
		return nil
	})
	must(t, w.berlin.works(t.Context()))
}
