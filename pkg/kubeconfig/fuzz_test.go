package kubeconfig

import (
	"errors"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/tools/clientcmd"
	clientcmdapi "k8s.io/client-go/tools/clientcmd/api"

	"github.com/fairlead/fairlead/api/v1alpha1"
)

// proxied returns the decision for a proxy with credentials.
func proxied() Decision {
	return Decision{
		Mode:     v1alpha1.KubeconfigModeHTTPProxy,
		Endpoint: endpoint,
		Gateways: gateways,
		Target:   Endpoint{ProxyURL: "http://user:password@proxy.example.com:3128"},
	}
}

// seed returns a provider's kubeconfig as text.
func seed(f *testing.F, change func(*clientcmdapi.Config)) []byte {
	f.Helper()
	config := clientcmdapi.NewConfig()
	config.Clusters["c1"] = &clientcmdapi.Cluster{Server: originalServer, CertificateAuthorityData: []byte("a CA")}
	config.AuthInfos["c1-admin"] = &clientcmdapi.AuthInfo{ClientKeyData: []byte("a key")}
	config.Contexts["admin@c1"] = &clientcmdapi.Context{Cluster: "c1", AuthInfo: "c1-admin"}
	config.CurrentContext = "admin@c1"
	change(config)
	data, err := clientcmd.Write(*config)
	if err != nil {
		f.Fatal(err)
	}
	return data
}

// FuzzApply applies a decision to arbitrary kubeconfigs and annotations. After a change the kubeconfig leads as
// decided, and all but three fields of one entry are unchanged. A second change does nothing. An error contains no
// input.
func FuzzApply(f *testing.F) {
	plain := seed(f, func(*clientcmdapi.Config) {})
	for mode := range 3 {
		f.Add(plain, "", "", "", uint8(mode))
		f.Add(seed(f, func(c *clientcmdapi.Config) {
			c.Clusters["c1"].Server, c.Clusters["c1"].TLSServerName = byAddress, hostname
		}), byAddress, originalServer, "x", uint8(mode))
		f.Add(
			seed(f, func(c *clientcmdapi.Config) { c.CurrentContext, c.Clusters["c1"].ProxyURL = "none", "http://u:p@h:1" }),
			direct, "", "http://u:p@h:1", uint8(mode),
		)
	}
	f.Add(
		[]byte("clusters: [{name: c1, cluster: &a {server: x}}, {name: c2, cluster: *a}]\ncurrent-context: ''"), "", "", "",
		uint8(0),
	)
	f.Add([]byte("{}"), "", "", "", uint8(1))
	f.Fuzz(func(t *testing.T, data []byte, written, original, proxyURL string, mode uint8) {
		decision := []Decision{bySNI(), byConnect(), proxied()}[mode%3]
		secret := &corev1.Secret{ObjectMeta: metav1.ObjectMeta{Name: "c1" + Suffix}, Data: map[string][]byte{Key: data}}
		// no object contains other text
		written, original = strings.ToValidUTF8(written, ""), strings.ToValidUTF8(original, "")
		if written != "" {
			secret.Annotations = map[string]string{
				v1alpha1.WrittenServerAnnotation:  written,
				v1alpha1.OriginalServerAnnotation: original,
			}
			secret.Data[v1alpha1.OriginalProxyURLKey] = []byte(proxyURL)
		}
		before, _, loadErr := Load(secret, "c1")
		was := secret.DeepCopy()
		changed, err := Apply(secret, "c1", decision)
		if err != nil {
			if !errors.Is(err, ErrInvalid) || changed || !cmp.Equal(was, secret) {
				t.Fatalf("an error, and something has changed, or it is another error: %v", err)
			}
			return
		}
		if loadErr != nil {
			t.Fatal("what can't be read was changed")
		}
		after, entry, err := Load(secret, "c1")
		if err != nil {
			t.Fatalf("what was written can't be read: %v", err)
		}
		if mode%3 < 2 && (entry.Server != decision.Target.Server || entry.ProxyURL != decision.Target.ProxyURL) ||
			mode%3 == 2 && entry.ProxyURL != decision.Target.ProxyURL {
			t.Errorf("it leads by %q, %q", entry.Server, entry.ProxyURL)
		}
		if again, err := Apply(secret, "c1", decision); err != nil || again {
			t.Errorf("applied again: changed %v, %v", again, err)
		}
		others(t, before, after)
		was = secret.DeepCopy()
		if _, err := Restore(secret, "c1", decision); err != nil && !cmp.Equal(was, secret) {
			t.Errorf("an error, and something has changed: %v", err)
		}
	})
}

// others fails the test if anything but the three fields of one entry differs.
func others(t *testing.T, before, after *clientcmdapi.Config) {
	t.Helper()
	changed := 0
	for name, a := range after.Clusters {
		b := before.Clusters[name]
		if b == nil {
			t.Fatalf("the entry %q is new", name)
		}
		if wayOf(*a) != wayOf(*b) {
			changed++
		}
		a.Server, a.TLSServerName, a.ProxyURL = b.Server, b.TLSServerName, b.ProxyURL
	}
	if changed > 1 {
		t.Errorf("%d entries lead elsewhere", changed)
	}
	// Empty values are normalised by writing and reading.
	left, err := clientcmd.Write(*before)
	if err != nil {
		t.Fatal(err)
	}
	right, err := clientcmd.Write(*after)
	if err != nil {
		t.Fatal(err)
	}
	if string(left) != string(right) {
		t.Error(cmp.Diff(string(left), string(right)))
	}
}

// FuzzSpec validates arbitrary kubeconfig and proxy fields of a Tunnel: URLs built from accepted values lead where the
// fields state.
func FuzzSpec(f *testing.F) {
	f.Add(uint8(0), "https://a.b:6443", "", "", "")
	f.Add(uint8(1), "", "proxy.example.com:3128", "user", "pass:word@/?#")
	f.Add(uint8(2), "https://u:p@a.b", "u:p@h:1", "a:b", "c")
	f.Add(uint8(3), "https://[::1]:1/x", "[::1]:1", "a", "\x00")
	modes := []v1alpha1.KubeconfigMode{
		v1alpha1.KubeconfigModeAddress,
		v1alpha1.KubeconfigModeHTTPProxy,
		v1alpha1.KubeconfigModeHTTPSProxy,
		v1alpha1.KubeconfigModeSOCKS5,
	}
	f.Fuzz(func(t *testing.T, mode uint8, server, address, username, password string) {
		spec := v1alpha1.KubeconfigSpec{
			Mode:   modes[int(mode)%len(modes)],
			Server: server,
			Proxy:  &v1alpha1.ProxySpec{Address: address, CredentialsSecret: "c"},
		}
		if _, problem := Validate(spec); problem != nil {
			return
		}
		if spec.Mode == v1alpha1.KubeconfigModeAddress {
			if Host(server) == "" {
				t.Errorf("%q leads nowhere", server)
			}
			return
		}
		credentials, problem := ReadCredentials("c", &corev1.Secret{
			Type: corev1.SecretTypeBasicAuth,
			Data: map[string][]byte{
				corev1.BasicAuthUsernameKey: []byte(username),
				corev1.BasicAuthPasswordKey: []byte(password),
			},
		})
		if problem != nil {
			return
		}
		way := Endpoint{ProxyURL: withCredentials(proxyURL(spec), credentials)}
		if !ByProxy(way, spec) || WithoutCredentials(way.ProxyURL) == way.ProxyURL {
			t.Errorf("with credentials it is another proxy: %q", WithoutCredentials(way.ProxyURL))
		}
	})
}
