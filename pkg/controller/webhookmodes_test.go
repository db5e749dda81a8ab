package controller

import (
	"errors"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/rest"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/fairlead/fairlead/api/v1alpha1"
	"github.com/fairlead/fairlead/internal/kubetest"
	"github.com/fairlead/fairlead/pkg/kubeconfig"
)

// TestTheFirstKubeconfigLeadsTheRightWay: the Tunnel is there before a control-plane provider writes for the first time.
func TestTheFirstKubeconfigLeadsTheRightWay(t *testing.T) {
	m := apiserver(t)
	startReplica(t, m)
	cluster := kubetest.Cluster(labelledNamespace(t, m, "yes"), "first")
	create(t, m, cluster)
	waitCondition(t, m, cluster, v1alpha1.ConditionKubeconfigReady, v1alpha1.ReasonWaitingForSecret)
	eventually(t, func() error {
		if read(t, m, tunnelNamed(cluster)).Status.Kubeconfig.Mode == "" {
			return errors.New("nothing is on record yet")
		}
		return nil
	})
	settled(t, m, kubetest.NewNamespace(t, m)) // so that the replica has seen it too
	secret := kubeconfigSecret(t, cluster.Namespace, cluster.Name, originalServer)
	create(t, m, secret)
	if got := entryOf(t, secret).Server; got == originalServer {
		t.Errorf("the first version leads to %s", got)
	}
	if was := secret.Annotations[v1alpha1.OriginalServerAnnotation]; was != originalServer {
		t.Errorf("the original is noted as %q", was)
	}
}

// TestNoModeLosesToARewritingProvider: whatever the mode, the version that is stored leads the right way.
func TestNoModeLosesToARewritingProvider(t *testing.T) {
	m := apiserver(t)
	startReplica(t, m)
	for _, mode := range everyMode {
		t.Run(string(mode), func(t *testing.T) {
			t.Parallel()
			w := newWritersWorld(t, m, labelledNamespace(t, m, "yes"), mode)
			write := w.writeAll(originalServer)
			if err := write(w.secret()); err != nil {
				t.Fatal(err)
			}
			waitCondition(t, m, w.cluster, v1alpha1.ConditionKubeconfigReady, v1alpha1.ReasonRewritten)
			settled(t, m, kubetest.NewNamespace(t, m)) // so that the replica has seen it too
			for i := range 10 {
				now := read(t, m, w.secret())
				now.Annotations = nil
				if err := write(now); err != nil {
					t.Fatal(err)
				}
				got, err := kubeconfig.Read(now, w.cluster.Name)
				if want := w.want(originalServer); err != nil || got != want || now.Annotations[v1alpha1.OriginalServerAnnotation] != originalServer {
					t.Fatalf("write %d: what was stored leads %v, %v, original %s; want %v", i, got, err, now.Annotations[v1alpha1.OriginalServerAnnotation], want)
				}
			}
		})
	}
}

// TestTheWebhookIsNotAskedForTheController, in whatever namespace that is, and for everybody else.
func TestTheWebhookIsNotAskedForTheController(t *testing.T) {
	m := apiserver(t)
	startReplica(t, m)
	cluster := webhookCluster(t, m, "c1")
	for user, asked := range map[string]bool{
		"system:serviceaccount:fairlead-system:controller":  false,
		"system:serviceaccount:elsewhere:controller":        false,
		"system:serviceaccount:elsewhere:kamaji-controller": true,
		"system:serviceaccount:controller:manager":          true,
		"controller": true,
	} {
		config := rest.CopyConfig(server.Config(t))
		config.Impersonate = rest.ImpersonationConfig{UserName: user, Groups: []string{"system:masters"}}
		as, err := kubetest.NewClient(config)
		if err != nil {
			t.Fatal(err)
		}
		secret := kubeconfigSecret(t, cluster.Namespace, cluster.Name, originalServer)
		if err := as.Update(t.Context(), secret, client.DryRunAll); err != nil {
			t.Fatal(err)
		}
		if got := entryOf(t, secret).Server != originalServer; got != asked {
			t.Errorf("%s: it was asked: %v, want %v", user, got, asked)
		}
	}
}

// TestTheWebhookKnowsAProxysCredentials, which are in no cache and on no record.
func TestTheWebhookKnowsAProxysCredentials(t *testing.T) {
	m := apiserver(t)
	startReplica(t, m)
	ns := labelledNamespace(t, m, "yes")
	cluster := kubetest.Cluster(ns, "c1")
	tunnel := tunnelNamed(cluster)
	tunnel.Spec.Kubeconfig = v1alpha1.KubeconfigSpec{
		Mode: v1alpha1.KubeconfigModeSOCKS5, Proxy: &v1alpha1.ProxySpec{Address: "proxy.example.org:1080", CredentialsSecret: "proxy"},
	}
	create(t, m, &corev1.Secret{
		ObjectMeta: metav1.ObjectMeta{Namespace: ns, Name: "proxy"}, Type: corev1.SecretTypeBasicAuth,
		StringData: map[string]string{corev1.BasicAuthUsernameKey: "capi", corev1.BasicAuthPasswordKey: "hunter2"},
	}, tunnel, cluster, kubeconfigSecret(t, ns, "c1", originalServer))
	waitCondition(t, m, cluster, v1alpha1.ConditionKubeconfigReady, v1alpha1.ReasonRewritten)
	secret := kubeconfigSecret(t, ns, "c1", originalServer)
	if err := m.Update(t.Context(), secret); err != nil {
		t.Fatal(err)
	}
	if got := entryOf(t, secret).ProxyURL; got != "socks5://capi:hunter2@proxy.example.org:1080" {
		t.Error("the version that was stored has another proxy")
	}

	askFor(t, m, cluster, v1alpha1.KubeconfigCopy{Name: "x", Exec: &v1alpha1.ExecAudience{Command: "login"}})
	waitCopies(t, m, cluster, v1alpha1.ReasonCopyRefused, "credentials")
}

func TestACopyWithoutTunnel(t *testing.T) {
	m := apiserver(t)
	cluster := kubetest.Cluster(kubetest.NewNamespace(t, m), "c1")
	tunnel := tunnelNamed(cluster)
	tunnel.Spec.Kubeconfig = v1alpha1.KubeconfigSpec{Mode: v1alpha1.KubeconfigModeAddress, Server: "https://lb.example.org:6443", TLSServerName: "kubernetes"}
	create(t, m, tunnel, cluster, kubeconfigSecret(t, cluster.Namespace, "c1", originalServer))
	waitCondition(t, m, cluster, v1alpha1.ConditionKubeconfigReady, v1alpha1.ReasonRewritten)
	plugin := v1alpha1.KubeconfigCopy{Name: "x", Exec: &v1alpha1.ExecAudience{Command: "login"}}
	askFor(t, m, cluster, plugin)
	waitCopies(t, m, cluster, v1alpha1.ReasonCopiesWritten, "1 copy")
	if entry, _ := readCopy(t, read(t, m, secretNamed(cluster.Namespace, "x"))); entry.Server != "https://lb.example.org:6443" || entry.TLSServerName != "kubernetes" {
		t.Errorf("it leads to %s, %s", entry.Server, entry.TLSServerName)
	}
	plugin.Mode = v1alpha1.KubeconfigModeSNI
	askFor(t, m, cluster, plugin)
	waitCopies(t, m, cluster, v1alpha1.ReasonCopyRefused, "no gateway")
}
