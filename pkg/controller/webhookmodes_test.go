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
	"github.com/fairlead/fairlead/pkg/controller/controllertest"
	"github.com/fairlead/fairlead/pkg/kubeconfig"
)

// TestTheFirstKubeconfigUsesTheTunnel: the Tunnel exists before a control-plane provider writes for the first time.
func TestTheFirstKubeconfigUsesTheTunnel(t *testing.T) {
	m := apiserver(t)
	startReplica(t, m)
	cluster := kubetest.Cluster(labelledNamespace(t, m, "yes"), "first")
	controllertest.Create(t, m, cluster)
	waitCondition(t, m, cluster, v1alpha1.ConditionKubeconfigReady, v1alpha1.ReasonWaitingForSecret)
	controllertest.Eventually(t, func() error {
		if controllertest.Read(t, m, controllertest.TunnelNamed(cluster)).Status.Kubeconfig.Mode == "" {
			return errors.New("nothing is on record yet")
		}
		return nil
	})
	settled(t, m, kubetest.NewNamespace(t, m)) // so that the replica has observed it too
	secret := controllertest.KubeconfigSecret(t, cluster.Namespace, cluster.Name, controllertest.OriginalServer)
	controllertest.Create(t, m, secret)
	if got := controllertest.EntryOf(t, secret).Server; got == controllertest.OriginalServer {
		t.Errorf("the first version leads to %s", got)
	}
	if was := secret.Annotations[v1alpha1.OriginalServerAnnotation]; was != controllertest.OriginalServer {
		t.Errorf("the original is noted as %q", was)
	}
}

// TestEveryModeKeepsItsTunnelDespiteARewritingProvider: in every mode, the stored version has the right endpoint.
func TestEveryModeKeepsItsTunnelDespiteARewritingProvider(t *testing.T) {
	m := apiserver(t)
	startReplica(t, m)
	for _, mode := range controllertest.EveryMode {
		t.Run(string(mode), func(t *testing.T) {
			t.Parallel()
			w := newWritersWorld(t, m, labelledNamespace(t, m, "yes"), mode)
			write := w.writeAll(controllertest.OriginalServer)
			if err := write(w.secret()); err != nil {
				t.Fatal(err)
			}
			waitCondition(t, m, w.cluster, v1alpha1.ConditionKubeconfigReady, v1alpha1.ReasonRewritten)
			settled(t, m, kubetest.NewNamespace(t, m)) // so that the replica has observed it too
			for i := range 10 {
				now := controllertest.Read(t, m, w.secret())
				now.Annotations = nil
				if err := write(now); err != nil {
					t.Fatal(err)
				}
				got, err := kubeconfig.Read(now, w.cluster.Name)
				if want := w.want(controllertest.OriginalServer); err != nil || got != want ||
					now.Annotations[v1alpha1.OriginalServerAnnotation] != controllertest.OriginalServer {
					t.Fatalf(
						"write %d: what was stored leads %v, %v, original %s; want %v", i, got, err,
						now.Annotations[v1alpha1.OriginalServerAnnotation], want,
					)
				}
			}
		})
	}
}

// TestOnlyWritesOfTheControllerSkipTheWebhook, in every namespace, but for all other writers.
func TestOnlyWritesOfTheControllerSkipTheWebhook(t *testing.T) {
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
		secret := controllertest.KubeconfigSecret(t, cluster.Namespace, cluster.Name, controllertest.OriginalServer)
		if err := as.Update(t.Context(), secret, client.DryRunAll); err != nil {
			t.Fatal(err)
		}
		if got := controllertest.EntryOf(t, secret).Server != controllertest.OriginalServer; got != asked {
			t.Errorf("%s: it was asked: %v, want %v", user, got, asked)
		}
	}
}

// TestTheWebhookAddsTheCredentialsOfAProxy, which are in no cache and on no record.
func TestTheWebhookAddsTheCredentialsOfAProxy(t *testing.T) {
	m := apiserver(t)
	startReplica(t, m)
	ns := labelledNamespace(t, m, "yes")
	cluster := kubetest.Cluster(ns, "c1")
	tunnel := controllertest.TunnelNamed(cluster)
	tunnel.Spec.Kubeconfig = v1alpha1.KubeconfigSpec{
		Mode:  v1alpha1.KubeconfigModeSOCKS5,
		Proxy: &v1alpha1.ProxySpec{Address: "proxy.example.org:1080", CredentialsSecret: "proxy"},
	}
	controllertest.Create(t, m, &corev1.Secret{
		ObjectMeta: metav1.ObjectMeta{Namespace: ns, Name: "proxy"}, Type: corev1.SecretTypeBasicAuth,
		StringData: map[string]string{corev1.BasicAuthUsernameKey: "capi", corev1.BasicAuthPasswordKey: "hunter2"},
	}, tunnel, cluster, controllertest.KubeconfigSecret(t, ns, "c1", controllertest.OriginalServer))
	waitCondition(t, m, cluster, v1alpha1.ConditionKubeconfigReady, v1alpha1.ReasonRewritten)
	secret := controllertest.KubeconfigSecret(t, ns, "c1", controllertest.OriginalServer)
	if err := m.Update(t.Context(), secret); err != nil {
		t.Fatal(err)
	}
	if got := controllertest.EntryOf(t, secret).ProxyURL; got != "socks5://capi:hunter2@proxy.example.org:1080" {
		t.Error("the version that was stored has another proxy")
	}

	askFor(t, m, cluster, v1alpha1.KubeconfigCopy{Name: "x", Exec: &v1alpha1.ExecAudience{Command: "login"}})
	waitCopies(t, m, cluster, v1alpha1.ReasonCopyRefused, "credentials")
}

func TestACopyWithoutATunnelHasTheOriginalServer(t *testing.T) {
	m := apiserver(t)
	cluster := kubetest.Cluster(kubetest.NewNamespace(t, m), "c1")
	tunnel := controllertest.TunnelNamed(cluster)
	tunnel.Spec.Kubeconfig = v1alpha1.KubeconfigSpec{
		Mode: v1alpha1.KubeconfigModeAddress, Server: "https://lb.example.org:6443", TLSServerName: "kubernetes",
	}
	controllertest.Create(
		t, m, tunnel, cluster, controllertest.KubeconfigSecret(t, cluster.Namespace, "c1", controllertest.OriginalServer),
	)
	waitCondition(t, m, cluster, v1alpha1.ConditionKubeconfigReady, v1alpha1.ReasonRewritten)
	plugin := v1alpha1.KubeconfigCopy{Name: "x", Exec: &v1alpha1.ExecAudience{Command: "login"}}
	askFor(t, m, cluster, plugin)
	waitCopies(t, m, cluster, v1alpha1.ReasonCopiesWritten, "1 copy")
	if entry, _ := readCopy(
		t, controllertest.Read(t, m, controllertest.SecretNamed(cluster.Namespace, "x")),
	); entry.Server != "https://lb.example.org:6443" || entry.TLSServerName != "kubernetes" {
		t.Errorf("it leads to %s, %s", entry.Server, entry.TLSServerName)
	}
	plugin.Mode = v1alpha1.KubeconfigModeSNI
	askFor(t, m, cluster, plugin)
	waitCopies(t, m, cluster, v1alpha1.ReasonCopyRefused, "no gateway")
}
