package controller

import (
	"context"
	"errors"
	"net"
	"slices"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/utils/ptr"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/fairlead/fairlead/api/v1alpha1"
	"github.com/fairlead/fairlead/internal/freeport"
	"github.com/fairlead/fairlead/internal/kubetest"
	"github.com/fairlead/fairlead/pkg/controller/controllertest"
	"github.com/fairlead/fairlead/pkg/controller/webhook"
	"github.com/fairlead/fairlead/pkg/kubeconfig"
)

// version is a version of a Secret that a reader observed, and when.
type version struct {
	secret *corev1.Secret
	at     time.Time
}

// watchSecret returns all versions of a Secret that a reader observes from now on.
func watchSecret(t *testing.T, m *management, secret *corev1.Secret) <-chan version {
	t.Helper()
	w, err := m.Watch(t.Context(), &corev1.SecretList{}, client.InNamespace(secret.Namespace), &client.ListOptions{
		FieldSelector: fields.OneTermEqualSelector(metav1.ObjectNameField, secret.Name),
		Raw:           &metav1.ListOptions{ResourceVersion: controllertest.Read(t, m, secret).ResourceVersion},
	})
	if err != nil {
		t.Fatal(err)
	}
	seen := make(chan version, 1000)
	go func() {
		defer close(seen)
		for event := range w.ResultChan() {
			if secret, ok := event.Object.(*corev1.Secret); ok && event.Type == watch.Modified {
				seen <- version{secret, time.Now()}
			}
		}
	}()
	t.Cleanup(w.Stop)
	return seen
}

func next(t *testing.T, seen <-chan version) version {
	t.Helper()
	select {
	case v := <-seen:
		return v
	case <-time.After(kubetest.Patience):
		t.Fatal("no further version of the Secret was seen")
	}
	return version{}
}

func TestTheWebhookPreventsEveryOverwriteOfAProvider(t *testing.T) {
	const writes = 100
	m := apiserver(t)
	startReplica(t, m)
	cluster := webhookCluster(t, m, "rewritten")
	secret := controllertest.KubeconfigSecret(t, cluster.Namespace, cluster.Name, controllertest.OriginalServer)
	want := controllertest.EntryOf(t, controllertest.Read(t, m, secret))
	seen := watchSecret(t, m, secret)
	var slowest time.Duration
	for i := range writes {
		// All of it is new: the user's key, the server, and no annotation of ours.
		rewritten := controllertest.KubeconfigSecret(t, cluster.Namespace, cluster.Name, controllertest.OriginalServer)
		sent := rewritten.DeepCopy()
		began := time.Now()
		if err := m.Update(t.Context(), rewritten); err != nil {
			t.Fatal(err)
		}
		slowest = max(slowest, time.Since(began))
		v := next(t, seen)
		got := controllertest.EntryOf(t, v.secret)
		if got.Server != want.Server || got.TLSServerName != want.TLSServerName || got.ProxyURL != want.ProxyURL {
			t.Fatalf("write %d: a reader saw %s", i, got.Server)
		}
		if string(got.CertificateAuthorityData) != string(controllertest.EntryOf(t, sent).CertificateAuthorityData) {
			t.Fatalf("write %d: a reader saw another CA than was written", i)
		}
		if was := v.secret.Annotations[v1alpha1.OriginalServerAnnotation]; was != controllertest.OriginalServer {
			t.Fatalf("write %d: the original is noted as %q", i, was)
		}
	}
	t.Logf("webhook: writes=%d slowest_ms=%d", writes, slowest.Milliseconds())
}

func TestTheWebhookPatchesARecreatedSecret(t *testing.T) {
	m := apiserver(t)
	startReplica(t, m)
	cluster := webhookCluster(t, m, "recreated")
	secret := controllertest.KubeconfigSecret(t, cluster.Namespace, cluster.Name, controllertest.OriginalServer)
	want := controllertest.EntryOf(t, controllertest.Read(t, m, secret)).Server
	for range 10 {
		if err := m.Delete(t.Context(), secret); err != nil {
			t.Fatal(err)
		}
		secret = controllertest.KubeconfigSecret(t, cluster.Namespace, cluster.Name, controllertest.OriginalServer)
		controllertest.Create(t, m, secret)
		if got := controllertest.EntryOf(t, secret).Server; got != want {
			t.Fatalf("it was created with %s, want %s", got, want)
		}
	}
}

// TestTheControllerRepairsKubeconfigsWithoutTheWebhook measures how long a reader sees another endpoint when no replica
// answers.
func TestTheControllerRepairsKubeconfigsWithoutTheWebhook(t *testing.T) {
	const writes = 20
	m := apiserver(t)
	callWebhook(t, m, "down", freeport.Address(t))
	cluster := labelledCluster(t, m, "down", "repaired")
	secret := controllertest.KubeconfigSecret(t, cluster.Namespace, cluster.Name, controllertest.OriginalServer)
	want := controllertest.EntryOf(t, controllertest.Read(t, m, secret)).Server
	seen := watchSecret(t, m, secret)
	var windows []time.Duration
	for range writes {
		began := time.Now()
		if err := m.Update(
			t.Context(), controllertest.KubeconfigSecret(t, cluster.Namespace, cluster.Name, controllertest.OriginalServer),
		); err != nil {
			t.Fatalf("the webhook does not fail open: %v", err)
		}
		if took := time.Since(began); took > 3*time.Second {
			t.Errorf("the write took %s", took)
		}
		bad := next(t, seen)
		if got := controllertest.EntryOf(t, bad.secret).Server; got != controllertest.OriginalServer {
			t.Fatalf("the provider's own version was never seen, but %s: is the webhook down?", got)
		}
		good := next(t, seen)
		if got := controllertest.EntryOf(t, good.secret).Server; got != want {
			t.Fatalf("it was repaired to %s, want %s", got, want)
		}
		windows = append(windows, good.at.Sub(bad.at))
	}
	slices.Sort(windows)
	t.Logf(
		"no webhook: writes=%d window_p50_ms=%d window_max_ms=%d", writes, windows[writes/2].Milliseconds(),
		windows[writes-1].Milliseconds(),
	)
}

// TestASilentWebhookDelaysAWriteByTwoSeconds uses a server that accepts connections and never answers, like a hanging
// replica.
func TestASilentWebhookDelaysAWriteByTwoSeconds(t *testing.T) {
	m := apiserver(t)
	listener, err := (&net.ListenConfig{}).Listen(t.Context(), "tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer listener.Close()
	callWebhook(t, m, "silent", listener.Addr().String())
	namespace := labelledNamespace(t, m, "silent")
	controllertest.Eventually(t, func() error {
		began := time.Now()
		secret := controllertest.KubeconfigSecret(t, namespace, "c1", controllertest.OriginalServer)
		if err := m.Create(t.Context(), secret, client.DryRunAll); err != nil {
			t.Fatalf("the webhook does not fail open: %v", err)
		}
		switch took := time.Since(began); {
		case took < time.Second:
			return errNotAsked
		case took > 4*time.Second:
			t.Fatalf("the write took %s", took)
		}
		return nil
	})
}

// callWebhook makes the apiserver call a webhook like ours at an address, for namespaces with a label, until the test
// ends.
func callWebhook(t *testing.T, m *management, label, address string) {
	t.Helper()
	configuration, err := webhookConfiguration(address, label)
	if err != nil {
		t.Fatal(err)
	}
	configuration.Name = label
	controllertest.Create(t, m, configuration)
	t.Cleanup(func() {
		if err := m.Delete(context.Background(), configuration); err != nil {
			t.Error(err)
		}
	})
}

var errNotAsked = errors.New("the apiserver does not ask the webhook yet")

// TestTheWebhookPatchesOneSecret sends a Secret to the apiserver and checks what it would store.
func TestTheWebhookPatchesOneSecret(t *testing.T) {
	m := apiserver(t)
	startReplica(t, m)
	cluster := webhookCluster(t, m, "one")
	through := controllertest.EntryOf(
		t,
		controllertest.Read(
			t, m, controllertest.KubeconfigSecret(t, cluster.Namespace, cluster.Name, controllertest.OriginalServer),
		),
	).Server
	tests := map[string]struct {
		change func(*corev1.Secret)
		want   string // the server; empty: the kubeconfig is unchanged
	}{
		"all of it is the provider's": {change: func(*corev1.Secret) {}, want: through},
		"it is in stringData": {
			change: func(s *corev1.Secret) {
				s.StringData = map[string]string{kubeconfig.Key: string(s.Data[kubeconfig.Key])}
				s.Data = nil
			},
			want: through,
		},
		"it has much else": {
			change: func(s *corev1.Secret) { s.Data["more"] = []byte(strings.Repeat("x", 900<<10)) }, want: through,
		},
		"it is as large as a Secret can be": {
			change: func(s *corev1.Secret) {
				s.Data["more"] = []byte(strings.Repeat("x", corev1.MaxSecretSize-len(s.Data[kubeconfig.Key])))
			},
		},
		"the kubeconfig is very large": {
			change: func(s *corev1.Secret) {
				s.Data[kubeconfig.Key] = append(s.Data[kubeconfig.Key], "\n#"+strings.Repeat("x", webhook.MaxKubeconfig)...)
			},
		},
		"its annotations are as large as they can be": {
			change: func(s *corev1.Secret) {
				s.Annotations = map[string]string{"a": strings.Repeat("x", webhook.MaxAnnotations-1)}
			},
		},
		"the kubeconfig can't be read": {change: func(s *corev1.Secret) { s.Data[kubeconfig.Key] = []byte("{") }},
		"there is no kubeconfig": {
			change: func(s *corev1.Secret) { delete(s.Data, kubeconfig.Key); s.Data["other"] = nil },
		},
		"it may never be changed":         {change: func(s *corev1.Secret) { s.Immutable = ptr.To(true) }},
		"it is not Cluster API's":         {change: func(s *corev1.Secret) { delete(s.Labels, clusterv1.ClusterNameLabel) }},
		"it is another Secret's name":     {change: func(s *corev1.Secret) { s.Name = cluster.Name + "-ca" }},
		"it is of a Cluster with no name": {change: func(s *corev1.Secret) { s.Name = "x" + kubeconfig.Suffix }},
		"its name is chosen by apiservers": {
			change: func(s *corev1.Secret) { s.Name, s.GenerateName = "", cluster.Name+kubeconfig.Suffix },
		},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			secret := controllertest.KubeconfigSecret(t, cluster.Namespace, cluster.Name, controllertest.OriginalServer)
			tc.change(secret)
			sent := secret.DeepCopy()
			write := func() error { return m.Update(t.Context(), secret, client.DryRunAll) }
			if secret.Name != cluster.Name+kubeconfig.Suffix {
				write = func() error { return m.Create(t.Context(), secret, client.DryRunAll) }
			}
			if err := write(); err != nil {
				t.Fatal(err)
			}
			if tc.want != "" {
				if got := controllertest.EntryOf(t, secret).Server; got != tc.want {
					t.Errorf("server %s, want %s", got, tc.want)
				}
				return
			}
			if got, want := string(secret.Data[kubeconfig.Key]), string(sent.Data[kubeconfig.Key]); got != want {
				t.Errorf("the kubeconfig was changed")
			}
		})
	}
}
