package controller

import (
	"errors"
	"maps"
	"testing"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/client-go/tools/clientcmd"
	clientcmdapi "k8s.io/client-go/tools/clientcmd/api"

	"github.com/fairlead/fairlead/api/v1alpha1"
)

const (
	hostname  = "c1.prod.tunnels.example.com"
	direct    = "https://c1.prod.tunnels.example.com:6443"
	byAddress = "https://10.1.1.1:6443"
	proxy     = "http://10.1.1.1:3128"
	endpoint  = "https://192.0.2.77:6443"
)

// secretWith is a kubeconfig Secret with one entry, as somebody has left it.
func secretWith(t *testing.T, entry original, kept map[string]string) *corev1.Secret {
	t.Helper()
	secret := kubeconfigSecret(t, "prod", "c1", entry.server, func(c *clientcmdapi.Config) {
		c.Clusters["c1"].TLSServerName, c.Clusters["c1"].ProxyURL = entry.tlsServerName, entry.proxyURL
	})
	secret.Annotations = map[string]string{"somebody.example.org/else": "x"}
	maps.Copy(secret.Annotations, kept)
	return secret
}

func sniRoute() route {
	c := testConfig()
	return route{hostname: hostname, mode: v1alpha1.KubeconfigModeSNI, apiServer: c.APIServer, connect: c.Connect, resolves: no, fallback: endpoint}
}

func connectRoute() route {
	r := sniRoute()
	r.mode = v1alpha1.KubeconfigModeConnect
	return r
}

// rewritten is what Fairlead notes.
func rewritten(written, original string) map[string]string {
	return map[string]string{v1alpha1.WrittenServerAnnotation: written, v1alpha1.OriginalServerAnnotation: original}
}

func TestRewriteKubeconfig(t *testing.T) {
	tests := map[string]struct {
		entry    original
		kept     map[string]string
		route    func(*route)
		want     original
		wantKept original
	}{
		"sni without DNS dials the gateways by address": {
			entry: original{server: originalServer},
			want:  original{server: byAddress, tlsServerName: hostname}, wantKept: original{server: originalServer},
		},
		"sni with DNS dials the hostname": {
			entry: original{server: originalServer}, route: func(r *route) { r.resolves = yes },
			want: original{server: direct}, wantKept: original{server: originalServer},
		},
		"without an answer of DNS a new kubeconfig dials by address": {
			entry: original{server: originalServer}, route: func(r *route) { r.resolves = unknown },
			want: original{server: byAddress, tlsServerName: hostname}, wantKept: original{server: originalServer},
		},
		"without an answer of DNS the hostname stays": {
			entry: original{server: direct}, kept: rewritten(direct, originalServer), route: func(r *route) { r.resolves = unknown },
			want: original{server: direct}, wantKept: original{server: originalServer},
		},
		"without an answer of DNS the address stays": {
			entry: original{server: byAddress, tlsServerName: hostname}, kept: rewritten(byAddress, originalServer), route: func(r *route) { r.resolves = unknown },
			want: original{server: byAddress, tlsServerName: hostname}, wantKept: original{server: originalServer},
		},
		"connect verifies kubeadm's name where the original is an address": {
			entry: original{server: originalServer}, route: func(r *route) { *r = connectRoute() },
			want: original{direct, "kubernetes", proxy}, wantKept: original{server: originalServer},
		},
		"connect verifies the original's host where that is a name": {
			entry: original{server: "https://abc.eks.example.org"}, route: func(r *route) { *r = connectRoute() },
			want: original{direct, "abc.eks.example.org", proxy}, wantKept: original{server: "https://abc.eks.example.org"},
		},
		"connect verifies the original's host without its upper case": {
			entry: original{server: "https://ABC.gr7.EKS.example.org"}, route: func(r *route) { *r = connectRoute() },
			want: original{direct, "abc.gr7.eks.example.org", proxy}, wantKept: original{server: "https://ABC.gr7.EKS.example.org"},
		},
		"connect verifies the original's host without its last dot": {
			entry: original{server: "https://abc.eks.example.org.:443"}, route: func(r *route) { *r = connectRoute() },
			want: original{direct, "abc.eks.example.org", proxy}, wantKept: original{server: "https://abc.eks.example.org.:443"},
		},
		"connect verifies kubeadm's name where the original ends in two dots": {
			entry: original{server: "https://abc.eks.example.org..:443"}, route: func(r *route) { *r = connectRoute() },
			want: original{direct, "kubernetes", proxy}, wantKept: original{server: "https://abc.eks.example.org..:443"},
		},
		"connect verifies what the user says": {
			entry: original{server: "https://abc.eks.example.org"}, route: func(r *route) { *r = connectRoute(); r.tlsServerName = "api.example.net" },
			want: original{direct, "api.example.net", proxy}, wantKept: original{server: "https://abc.eks.example.org"},
		},
		"connect verifies what the provider verified": {
			entry: original{server: "https://lb.example.org", tlsServerName: "api.internal.example.org"}, route: func(r *route) { *r = connectRoute() },
			want:     original{direct, "api.internal.example.org", proxy},
			wantKept: original{server: "https://lb.example.org", tlsServerName: "api.internal.example.org"},
		},
		"a proxy of the provider's is kept and not used": {
			entry: original{server: originalServer, proxyURL: "http://user:secret@proxy.example.org:3128"},
			want:  original{server: byAddress, tlsServerName: hostname}, wantKept: original{server: originalServer, proxyURL: "http://user:secret@proxy.example.org:3128"},
		},
		"what is right already stays": {
			entry: original{server: byAddress, tlsServerName: hostname}, kept: rewritten(byAddress, originalServer),
			want: original{server: byAddress, tlsServerName: hostname}, wantKept: original{server: originalServer},
		},
		"rotation drops proxy and name but not the original": {
			entry: original{server: direct}, kept: rewritten(direct, originalServer), route: func(r *route) { *r = connectRoute() },
			want: original{direct, "kubernetes", proxy}, wantKept: original{server: originalServer},
		},
		"a provider's other server is the new original": {
			entry: original{server: "https://192.0.2.99:6443"}, kept: rewritten(byAddress, originalServer),
			want: original{server: byAddress, tlsServerName: hostname}, wantKept: original{server: "https://192.0.2.99:6443"},
		},
		"a provider that changes the server alone does not make our proxy its own": {
			entry: original{"https://192.0.2.99:6443", "kubernetes", proxy}, kept: rewritten(direct, originalServer), route: func(r *route) { *r = connectRoute() },
			want: original{direct, "kubernetes", proxy}, wantKept: original{server: "https://192.0.2.99:6443"},
		},
		"a lost annotation is the Cluster's endpoint": {
			entry: original{server: byAddress, tlsServerName: hostname},
			want:  original{server: byAddress, tlsServerName: hostname}, wantKept: original{server: endpoint},
		},
		"a lost annotation of a Cluster without endpoint stays unknown": {
			entry: original{server: byAddress, tlsServerName: hostname}, route: func(r *route) { r.fallback = "" },
			want: original{server: byAddress, tlsServerName: hostname},
		},
		"other addresses of the installation make our old server no provider's": {
			entry: original{server: "https://10.9.9.9:6443", tlsServerName: hostname}, kept: rewritten("https://10.9.9.9:6443", originalServer),
			want: original{server: byAddress, tlsServerName: hostname}, wantKept: original{server: originalServer},
		},
		"another mode keeps the original": {
			entry: original{server: byAddress, tlsServerName: hostname}, kept: rewritten(byAddress, originalServer), route: func(r *route) { *r = connectRoute() },
			want: original{direct, "kubernetes", proxy}, wantKept: original{server: originalServer},
		},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			secret := secretWith(t, tc.entry, tc.kept)
			r := sniRoute()
			if tc.route != nil {
				tc.route(&r)
			}
			server, err := rewriteKubeconfig(secret, "c1", r)
			if err != nil {
				t.Fatal(err)
			}
			checkEntry(t, secret, tc.want)
			kept, _ := keptOriginal(secret)
			if kept != tc.wantKept {
				t.Errorf("kept %+v, want %+v", kept, tc.wantKept)
			}
			if server != tc.want.server || secret.Annotations[v1alpha1.WrittenServerAnnotation] != server {
				t.Errorf("server %s, annotations %v", server, secret.Annotations)
			}
			again := secret.DeepCopy()
			if _, err := rewriteKubeconfig(again, "c1", r); err != nil {
				t.Fatal(err)
			}
			if diff := cmp.Diff(secret, again); diff != "" {
				t.Errorf("a second time something changes: %s", diff)
			}
		})
	}
}

func checkEntry(t *testing.T, secret *corev1.Secret, want original) {
	t.Helper()
	entry := entryOf(t, secret)
	if got := (original{entry.Server, entry.TLSServerName, entry.ProxyURL}); got != want {
		t.Errorf("entry %+v, want %+v", got, want)
	}
}

func TestRestoreKubeconfig(t *testing.T) {
	whole := original{"https://lb.example.org", "api.example.org", "http://user:secret@proxy.example.org:3128"}
	tests := map[string]struct {
		entry original
		kept  map[string]string
		proxy string // under OriginalProxyURLKey
		route func(*route)
		want  original
	}{
		"the original comes back whole": {
			entry: original{direct, "api.example.org", proxy}, proxy: whole.proxyURL,
			kept: map[string]string{v1alpha1.WrittenServerAnnotation: direct, v1alpha1.OriginalServerAnnotation: whole.server, v1alpha1.OriginalTLSServerNameAnnotation: whole.tlsServerName},
			want: whole,
		},
		"what was never ours stays":                {entry: whole, want: whole},
		"a provider's server of meanwhile stays":   {entry: original{server: "https://192.0.2.99:6443"}, kept: rewritten(byAddress, originalServer), want: original{server: "https://192.0.2.99:6443"}},
		"without annotation the endpoint is meant": {entry: original{server: byAddress, tlsServerName: hostname}, want: original{server: endpoint}},
		"without annotation an address of the gateways proves nothing": {
			entry: original{server: byAddress, tlsServerName: "other.example.org"}, want: original{server: byAddress, tlsServerName: "other.example.org"},
		},
		"without annotation and endpoint it stays": {
			entry: original{server: byAddress, tlsServerName: hostname}, route: func(r *route) { r.fallback = "" }, want: original{server: byAddress, tlsServerName: hostname},
		},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			secret := secretWith(t, tc.entry, tc.kept)
			if tc.proxy != "" {
				secret.Data[v1alpha1.OriginalProxyURLKey] = []byte(tc.proxy)
			}
			r := sniRoute()
			if tc.route != nil {
				tc.route(&r)
			}
			if err := restoreKubeconfig(secret, "c1", r); err != nil {
				t.Fatal(err)
			}
			checkEntry(t, secret, tc.want)
			if kept, known := keptOriginal(secret); known || kept != (original{}) || len(secret.Annotations) != 1 {
				t.Errorf("something is left: %+v, %v", kept, secret.Annotations)
			}
		})
	}
}

func TestRewritingAndRestoringIsNoChange(t *testing.T) {
	for name, r := range map[string]route{"sni": sniRoute(), "connect": connectRoute()} {
		secret := secretWith(t, original{"https://lb.example.org", "api.example.org", "http://proxy.example.org:3128"}, nil)
		before := secret.DeepCopy()
		if _, err := rewriteKubeconfig(secret, "c1", r); err != nil {
			t.Fatal(err)
		}
		if err := restoreKubeconfig(secret, "c1", r); err != nil {
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
		want    string // the entry that is rewritten
		invalid bool
	}{
		"is that of the current context, whatever its name": {
			change: func(c *clientcmdapi.Config) {
				c.Clusters["eks_prod"] = &clientcmdapi.Cluster{Server: originalServer}
				c.Contexts[c.CurrentContext].Cluster = "eks_prod"
			},
			want: "eks_prod",
		},
		"is that of the Cluster's name without current context": {change: func(c *clientcmdapi.Config) { c.CurrentContext = "" }, want: "c1"},
		"is that of the Cluster's name where the context leads nowhere": {
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
			_, err := rewriteKubeconfig(secret, "c1", sniRoute())
			if tc.invalid {
				if !errors.Is(err, errInvalidKubeconfig) {
					t.Errorf("got error %v", err)
				}
				return
			}
			if err != nil {
				t.Fatal(err)
			}
			config, err := clientcmd.Load(secret.Data[kubeconfigKey])
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
