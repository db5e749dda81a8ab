package kubeconfig

import (
	"errors"
	"maps"
	"testing"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/client-go/tools/clientcmd"
	clientcmdapi "k8s.io/client-go/tools/clientcmd/api"

	"github.com/fairlead/fairlead/api/v1alpha1"
	"github.com/fairlead/fairlead/pkg/model"
)

const (
	hostname  = "c1.prod.tunnels.example.com"
	direct    = "https://c1.prod.tunnels.example.com:6443"
	byAddress = "https://10.1.1.1:6443"
	proxy     = "http://10.1.1.1:3128"
	endpoint  = "https://192.0.2.77:6443"
)

// secretWith returns a kubeconfig Secret with one entry and annotations.
func secretWith(t *testing.T, entry Endpoint, kept map[string]string) *corev1.Secret {
	t.Helper()
	secret := kubeconfigSecret(t, "prod", "c1", entry.Server, func(c *clientcmdapi.Config) {
		c.Clusters["c1"].TLSServerName, c.Clusters["c1"].ProxyURL = entry.TLSServerName, entry.ProxyURL
	})
	secret.Annotations = map[string]string{"somebody.example.org/else": "x"}
	maps.Copy(secret.Annotations, kept)
	return secret
}

var gateways = Gateways{
	APIServer: model.Endpoint{Host: "10.1.1.1", Port: 6443},
	Connect:   model.Endpoint{Host: "10.1.1.1", Port: 3128},
}

func bySNI() Decision {
	return Decision{
		Mode:     v1alpha1.KubeconfigModeSNI,
		Hostname: hostname,
		Gateways: gateways,
		Endpoint: endpoint,
		Target:   Endpoint{Server: byAddress, TLSServerName: hostname},
	}
}

func byConnect() Decision {
	d := bySNI()
	d.Mode, d.Target = v1alpha1.KubeconfigModeConnect, Endpoint{Server: direct, ProxyURL: proxy}
	return d
}

// rewritten returns the annotations that Fairlead writes.
func rewritten(written, original string) map[string]string {
	return map[string]string{v1alpha1.WrittenServerAnnotation: written, v1alpha1.OriginalServerAnnotation: original}
}

func TestApply(t *testing.T) {
	tests := map[string]struct {
		entry    Endpoint
		kept     map[string]string
		change   func(*Decision)
		want     Endpoint
		wantKept Endpoint
	}{
		"sni without DNS dials the gateways by address": {
			entry: Endpoint{Server: originalServer},
			want:  Endpoint{Server: byAddress, TLSServerName: hostname}, wantKept: Endpoint{Server: originalServer},
		},
		"connect verifies kubeadm's name where the original is an address": {
			entry: Endpoint{Server: originalServer}, change: func(d *Decision) { *d = byConnect() },
			want: Endpoint{direct, "kubernetes", proxy}, wantKept: Endpoint{Server: originalServer},
		},
		"connect verifies the original's host where that is a name": {
			entry: Endpoint{Server: "https://abc.eks.example.org"}, change: func(d *Decision) { *d = byConnect() },
			want: Endpoint{direct, "abc.eks.example.org", proxy}, wantKept: Endpoint{Server: "https://abc.eks.example.org"},
		},
		"connect verifies the original's host without its upper case": {
			entry: Endpoint{Server: "https://ABC.gr7.EKS.example.org"}, change: func(d *Decision) { *d = byConnect() },
			want: Endpoint{
				direct,
				"abc.gr7.eks.example.org",
				proxy,
			}, wantKept: Endpoint{Server: "https://ABC.gr7.EKS.example.org"},
		},
		"connect verifies the original's host without its last dot": {
			entry: Endpoint{Server: "https://abc.eks.example.org.:443"}, change: func(d *Decision) { *d = byConnect() },
			want: Endpoint{direct, "abc.eks.example.org", proxy}, wantKept: Endpoint{Server: "https://abc.eks.example.org.:443"},
		},
		"connect verifies kubeadm's name where the original ends in two dots": {
			entry: Endpoint{Server: "https://abc.eks.example.org..:443"}, change: func(d *Decision) { *d = byConnect() },
			want: Endpoint{direct, "kubernetes", proxy}, wantKept: Endpoint{Server: "https://abc.eks.example.org..:443"},
		},
		"connect verifies the name that the user sets": {
			entry: Endpoint{
				Server: "https://abc.eks.example.org",
			}, change: func(d *Decision) { *d = byConnect(); d.Target.TLSServerName = "api.example.net" },
			want: Endpoint{direct, "api.example.net", proxy}, wantKept: Endpoint{Server: "https://abc.eks.example.org"},
		},
		"connect verifies what the provider verified": {
			entry: Endpoint{
				Server:        "https://lb.example.org",
				TLSServerName: "api.internal.example.org",
			}, change: func(d *Decision) { *d = byConnect() },
			want:     Endpoint{direct, "api.internal.example.org", proxy},
			wantKept: Endpoint{Server: "https://lb.example.org", TLSServerName: "api.internal.example.org"},
		},
		"a proxy of the provider's is kept and not used": {
			entry: Endpoint{Server: originalServer, ProxyURL: "http://user:secret@proxy.example.org:3128"},
			want: Endpoint{
				Server:        byAddress,
				TLSServerName: hostname,
			}, wantKept: Endpoint{Server: originalServer, ProxyURL: "http://user:secret@proxy.example.org:3128"},
		},
		"what is right already stays": {
			entry: Endpoint{Server: byAddress, TLSServerName: hostname}, kept: rewritten(byAddress, originalServer),
			want: Endpoint{Server: byAddress, TLSServerName: hostname}, wantKept: Endpoint{Server: originalServer},
		},
		"rotation drops proxy and name but not the original": {
			entry: Endpoint{
				Server: direct,
			}, kept: rewritten(direct, originalServer), change: func(d *Decision) { *d = byConnect() },
			want: Endpoint{direct, "kubernetes", proxy}, wantKept: Endpoint{Server: originalServer},
		},
		"a provider's other server is the new original": {
			entry: Endpoint{Server: "https://192.0.2.99:6443"}, kept: rewritten(byAddress, originalServer),
			want: Endpoint{Server: byAddress, TLSServerName: hostname}, wantKept: Endpoint{Server: "https://192.0.2.99:6443"},
		},
		"a provider that changes the server alone does not make our proxy its own": {
			entry: Endpoint{
				"https://192.0.2.99:6443",
				"kubernetes",
				proxy,
			}, kept: rewritten(direct, originalServer), change: func(d *Decision) { *d = byConnect() },
			want: Endpoint{direct, "kubernetes", proxy}, wantKept: Endpoint{Server: "https://192.0.2.99:6443"},
		},
		"a lost annotation is the Cluster's endpoint": {
			entry: Endpoint{Server: byAddress, TLSServerName: hostname},
			want:  Endpoint{Server: byAddress, TLSServerName: hostname}, wantKept: Endpoint{Server: endpoint},
		},
		"a lost annotation of a Cluster without endpoint stays unknown": {
			entry: Endpoint{Server: byAddress, TLSServerName: hostname}, change: func(d *Decision) { d.Endpoint = "" },
			want: Endpoint{Server: byAddress, TLSServerName: hostname},
		},
		"other addresses of the installation make our old server no provider's": {
			entry: Endpoint{
				Server:        "https://10.9.9.9:6443",
				TLSServerName: hostname,
			}, kept: rewritten("https://10.9.9.9:6443", originalServer),
			want: Endpoint{Server: byAddress, TLSServerName: hostname}, wantKept: Endpoint{Server: originalServer},
		},
		"another mode keeps the original": {
			entry: Endpoint{
				Server:        byAddress,
				TLSServerName: hostname,
			}, kept: rewritten(byAddress, originalServer), change: func(d *Decision) { *d = byConnect() },
			want: Endpoint{direct, "kubernetes", proxy}, wantKept: Endpoint{Server: originalServer},
		},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			secret := secretWith(t, tc.entry, tc.kept)
			d := bySNI()
			if tc.change != nil {
				tc.change(&d)
			}
			if _, err := Apply(secret, "c1", d); err != nil {
				t.Fatal(err)
			}
			checkEntry(t, secret, tc.want)
			is, _ := kept(secret)
			if is != tc.wantKept {
				t.Errorf("kept %+v, want %+v", is, tc.wantKept)
			}
			if secret.Annotations[v1alpha1.WrittenServerAnnotation] != tc.want.Server {
				t.Errorf("annotations %v", secret.Annotations)
			}
			again := secret.DeepCopy()
			if changed, err := Apply(again, "c1", d); err != nil || changed {
				t.Errorf("a second time something changes: %v", err)
			}
			if diff := cmp.Diff(secret, again); diff != "" {
				t.Errorf("a second time something changes: %s", diff)
			}
		})
	}
}

func checkEntry(t *testing.T, secret *corev1.Secret, want Endpoint) {
	t.Helper()
	entry := entryOf(t, secret)
	if got := (Endpoint{entry.Server, entry.TLSServerName, entry.ProxyURL}); got != want {
		t.Errorf("entry %+v, want %+v", got, want)
	}
}

func TestRestore(t *testing.T) {
	whole := Endpoint{"https://lb.example.org", "api.example.org", "http://user:secret@proxy.example.org:3128"}
	tests := map[string]struct {
		entry  Endpoint
		kept   map[string]string
		proxy  string // under OriginalProxyURLKey
		change func(*Decision)
		want   Endpoint
	}{
		"the original is restored completely": {
			entry: Endpoint{direct, "api.example.org", proxy}, proxy: whole.ProxyURL,
			kept: map[string]string{
				v1alpha1.WrittenServerAnnotation:         direct,
				v1alpha1.OriginalServerAnnotation:        whole.Server,
				v1alpha1.OriginalTLSServerNameAnnotation: whole.TLSServerName,
			},
			want: whole,
		},
		"what was never ours stays": {entry: whole, want: whole},
		"a provider's server of meanwhile stays": {
			entry: Endpoint{Server: "https://192.0.2.99:6443"},
			kept:  rewritten(byAddress, originalServer),
			want:  Endpoint{Server: "https://192.0.2.99:6443"},
		},
		"without annotation the endpoint is meant": {
			entry: Endpoint{Server: byAddress, TLSServerName: hostname},
			want:  Endpoint{Server: endpoint},
		},
		"without annotation an address of the gateways proves nothing": {
			entry: Endpoint{
				Server:        byAddress,
				TLSServerName: "other.example.org",
			}, want: Endpoint{Server: byAddress, TLSServerName: "other.example.org"},
		},
		"without annotation and endpoint it stays": {
			entry: Endpoint{
				Server:        byAddress,
				TLSServerName: hostname,
			}, change: func(d *Decision) { d.Endpoint = "" }, want: Endpoint{Server: byAddress, TLSServerName: hostname},
		},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			secret := secretWith(t, tc.entry, tc.kept)
			if tc.proxy != "" {
				secret.Data[v1alpha1.OriginalProxyURLKey] = []byte(tc.proxy)
			}
			d := bySNI()
			if tc.change != nil {
				tc.change(&d)
			}
			if _, err := Restore(secret, "c1", d); err != nil {
				t.Fatal(err)
			}
			checkEntry(t, secret, tc.want)
			if is, known := kept(secret); known || is != (Endpoint{}) || len(secret.Annotations) != 1 {
				t.Errorf("something is left: %+v, %v", is, secret.Annotations)
			}
		})
	}
}

func TestApplyingAndRestoringChangesNothing(t *testing.T) {
	for name, d := range map[string]Decision{"sni": bySNI(), "connect": byConnect()} {
		secret := secretWith(t, Endpoint{"https://lb.example.org", "api.example.org", "http://proxy.example.org:3128"}, nil)
		before := secret.DeepCopy()
		if _, err := Apply(secret, "c1", d); err != nil {
			t.Fatal(err)
		}
		if _, err := Restore(secret, "c1", d); err != nil {
			t.Fatal(err)
		}
		if diff := cmp.Diff(before, secret); diff != "" {
			t.Errorf("%s: %s", name, diff)
		}
	}
}

func TestTheEntryOfAKubeconfig(t *testing.T) {
	tests := map[string]struct {
		change  func(*clientcmdapi.Config)
		want    string // the entry that is changed
		invalid bool
	}{
		"belongs to the current context, with any name": {
			change: func(c *clientcmdapi.Config) {
				c.Clusters["eks_prod"] = &clientcmdapi.Cluster{Server: originalServer}
				c.Contexts[c.CurrentContext].Cluster = "eks_prod"
			},
			want: "eks_prod",
		},
		"is that of the Cluster's name without current context": {
			change: func(c *clientcmdapi.Config) { c.CurrentContext = "" },
			want:   "c1",
		},
		"has the Cluster's name where the context is invalid": {
			change: func(c *clientcmdapi.Config) { c.Contexts[c.CurrentContext].Cluster = "nowhere" }, want: "c1",
		},
		"is missing": {
			change: func(c *clientcmdapi.Config) {
				c.CurrentContext = ""
				c.Clusters["other"] = c.Clusters["c1"]
				delete(c.Clusters, "c1")
			},
			invalid: true,
		},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			secret := kubeconfigSecret(t, "prod", "c1", originalServer, tc.change)
			_, err := Apply(secret, "c1", bySNI())
			if tc.invalid {
				if !errors.Is(err, ErrInvalid) {
					t.Errorf("got error %v", err)
				}
				return
			}
			if err != nil {
				t.Fatal(err)
			}
			config, err := clientcmd.Load(secret.Data[Key])
			if err != nil {
				t.Fatal(err)
			}
			for entry, c := range config.Clusters {
				if rewritten := c.Server == byAddress; rewritten != (entry == tc.want) {
					t.Errorf("entry %s has server %s", entry, c.Server)
				}
			}
		})
	}
}
