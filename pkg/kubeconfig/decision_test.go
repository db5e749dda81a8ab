package kubeconfig

import (
	"fmt"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"

	"github.com/fairlead/fairlead/api/v1alpha1"
)

// recorded returns a Tunnel with a recorded decision.
func recorded(spec v1alpha1.KubeconfigSpec, resolves bool) *v1alpha1.Tunnel {
	tunnel := &v1alpha1.Tunnel{Spec: v1alpha1.TunnelSpec{Kubeconfig: spec}}
	tunnel.Status.Hostname = hostname
	tunnel.Status.Kubeconfig = StatusOf(spec, Choose(Evidence{Mode: spec.Mode, Hostname: hostname}), gateways, resolves)
	return tunnel
}

// TestEveryModeIsWrittenAndGivenBack writes each mode over each other, and then restores what the provider wrote.
func TestEveryModeIsWrittenAndGivenBack(t *testing.T) {
	credentials := &Credentials{"capi", "hunter2"}
	byProxy := func(mode v1alpha1.KubeconfigMode, secret string) v1alpha1.KubeconfigSpec {
		return v1alpha1.KubeconfigSpec{
			Mode:  mode,
			Proxy: &v1alpha1.ProxySpec{Address: "proxy.example.org:3128", CredentialsSecret: secret},
		}
	}
	provided := Endpoint{
		"https://api.example.org:6443",
		"api.internal.example.org",
		"http://old:secret@old.example.org:3128",
	}
	modes := map[string]struct {
		tunnel      *v1alpha1.Tunnel
		credentials *Credentials
		want        Endpoint
	}{
		"sni": {
			tunnel: recorded(v1alpha1.KubeconfigSpec{Mode: v1alpha1.KubeconfigModeSNI}, false),
			want:   Endpoint{byAddress, hostname, ""},
		},
		"sni by DNS": {
			tunnel: recorded(v1alpha1.KubeconfigSpec{Mode: v1alpha1.KubeconfigModeSNI}, true),
			want:   Endpoint{direct, "", ""},
		},
		"connect": {
			tunnel: recorded(v1alpha1.KubeconfigSpec{Mode: v1alpha1.KubeconfigModeConnect}, false),
			want:   Endpoint{direct, provided.TLSServerName, proxy},
		},
		"connect with a name": {
			tunnel: recorded(v1alpha1.KubeconfigSpec{Mode: v1alpha1.KubeconfigModeConnect, TLSServerName: "kubernetes"}, false),
			want:   Endpoint{direct, "kubernetes", proxy},
		},
		"auto": {
			tunnel: recorded(v1alpha1.KubeconfigSpec{}, false),
			want:   Endpoint{direct, provided.TLSServerName, proxy},
		},
		"http-proxy": {
			tunnel: recorded(byProxy(v1alpha1.KubeconfigModeHTTPProxy, ""), false),
			want:   Endpoint{provided.Server, provided.TLSServerName, "http://proxy.example.org:3128"},
		},
		"http-proxy with credentials": {
			tunnel: recorded(byProxy(v1alpha1.KubeconfigModeHTTPProxy, "proxy"), false), credentials: credentials,
			want: Endpoint{provided.Server, provided.TLSServerName, "http://capi:hunter2@proxy.example.org:3128"},
		},
		"https-proxy": {
			tunnel: recorded(byProxy(v1alpha1.KubeconfigModeHTTPSProxy, ""), false),
			want:   Endpoint{provided.Server, provided.TLSServerName, "https://proxy.example.org:3128"},
		},
		"socks5": {
			tunnel: recorded(byProxy(v1alpha1.KubeconfigModeSOCKS5, "proxy"), false), credentials: credentials,
			want: Endpoint{provided.Server, provided.TLSServerName, "socks5://capi:hunter2@proxy.example.org:3128"},
		},
		"address": {
			tunnel: recorded(
				v1alpha1.KubeconfigSpec{
					Mode:          v1alpha1.KubeconfigModeAddress,
					Server:        "https://lb.example.org:7443",
					TLSServerName: "kubernetes",
				},
				false,
			),
			want: Endpoint{"https://lb.example.org:7443", "kubernetes", ""},
		},
	}
	for first, a := range modes {
		for then, b := range modes {
			secret := secretWith(t, provided, nil)
			before := secret.DeepCopy()
			var last Decision
			for _, m := range []string{first, then} {
				d, ok := FromTunnel(modes[m].tunnel, gateways, modes[m].credentials)
				if !ok {
					t.Fatalf("%s: no decision", m)
				}
				apply(t, secret, d)
				last = d
			}
			checkEntry(t, secret, b.want)
			if text := fmt.Sprint(secret.Annotations, last.Target, a.tunnel.Status, b.tunnel.Status); strings.Contains(
				text, "hunter2",
			) ||
				strings.Contains(text, "secret@") {
				t.Errorf("%s, then %s: credentials can be seen: %s", first, then, text)
			}
			if _, err := Restore(secret, "c1", last); err != nil {
				t.Fatal(err)
			}
			checkEntry(t, secret, provided)
			if len(secret.Annotations) != len(before.Annotations) || len(secret.Data) != 1 {
				t.Errorf("%s, then %s: something is left: %v", first, then, secret.Annotations)
			}
		}
	}
}

func apply(t *testing.T, secret *corev1.Secret, d Decision) {
	t.Helper()
	if _, err := Apply(secret, "c1", d); err != nil {
		t.Fatal(err)
	}
}

func TestWithoutDecisionNothingIsWritten(t *testing.T) {
	proxied := v1alpha1.KubeconfigSpec{
		Mode:  v1alpha1.KubeconfigModeHTTPProxy,
		Proxy: &v1alpha1.ProxySpec{Address: "proxy:3128", CredentialsSecret: "proxy"},
	}
	for name, change := range map[string]func(*v1alpha1.Tunnel){
		"nothing on record": func(t *v1alpha1.Tunnel) { t.Status.Kubeconfig = v1alpha1.KubeconfigStatus{} },
		"a tunnel that is not served": func(t *v1alpha1.Tunnel) {
			*t = *recorded(v1alpha1.KubeconfigSpec{}, false)
			t.Status.Hostname = ""
		},
		"credentials that are missing":        func(*v1alpha1.Tunnel) {},
		"a record of another mode, a proxy's": func(t *v1alpha1.Tunnel) { t.Spec.Kubeconfig = v1alpha1.KubeconfigSpec{} },
		"a record of a mode of the future":    func(t *v1alpha1.Tunnel) { t.Status.Kubeconfig.Mode = "carrier-pigeon" },
	} {
		tunnel := recorded(proxied, false)
		change(tunnel)
		if d, ok := FromTunnel(tunnel, gateways, nil); ok {
			t.Errorf("%s: decided %s", name, d.Target)
		}
	}
}

// TestCredentialsAreSentOnlyToTheirProxy: a Tunnel may name another proxy, and its credentials, before that is
// recorded.
func TestCredentialsAreSentOnlyToTheirProxy(t *testing.T) {
	proxied := v1alpha1.KubeconfigSpec{
		Mode:  v1alpha1.KubeconfigModeHTTPProxy,
		Proxy: &v1alpha1.ProxySpec{Address: "[2001:db8::1]:3128", CredentialsSecret: "proxy"},
	}
	tunnel := recorded(proxied, false)
	if d, ok := FromTunnel(tunnel, gateways, &Credentials{"capi", "hunter2"}); !ok ||
		d.Target.ProxyURL != "http://capi:hunter2@[2001:db8::1]:3128" {
		t.Errorf("decided %s, %v", d.Target, ok)
	}
	tunnel.Spec.Kubeconfig.Proxy = &v1alpha1.ProxySpec{Address: "another:3128", CredentialsSecret: "another"}
	if _, ok := FromTunnel(tunnel, gateways, &Credentials{"capi", "hunter2"}); ok {
		t.Error("the proxy on record would get the credentials of another")
	}
}

// TestAProxyOnRecordIsKeptUntilTheTunnelIsReady: the spec leads through the tunnel already, and names no proxy. The
// previous Secret has the credentials, and the new one is as its provider writes it.
func TestAProxyOnRecordIsKeptUntilTheTunnelIsReady(t *testing.T) {
	const by = "http://capi:hunter2@proxy.example.org:3128"
	provided := Endpoint{endpoint, "api.internal.example.org", ""}
	for name, tc := range map[string]struct {
		credentials string // the name of the Secret with them
		previous    string // proxy-url of the previous Secret; empty: there is none
		spec        v1alpha1.KubeconfigSpec
		want        string // proxy-url; empty: nothing is decided
	}{
		"the previous Secret has the credentials": {credentials: "proxy", previous: by, want: by},
		"sni": {
			credentials: "proxy", previous: by, spec: v1alpha1.KubeconfigSpec{Mode: v1alpha1.KubeconfigModeSNI}, want: by,
		},
		"it has those of another proxy": {credentials: "proxy", previous: "http://capi:hunter2@other.example.org:3128"},
		"it has none":                   {credentials: "proxy", previous: "http://proxy.example.org:3128"},
		"there is none":                 {credentials: "proxy"},
		"no credentials are needed":     {want: "http://proxy.example.org:3128"},
		"the spec names another proxy": {
			credentials: "proxy", previous: by, spec: v1alpha1.KubeconfigSpec{
				Mode: v1alpha1.KubeconfigModeHTTPProxy, Proxy: &v1alpha1.ProxySpec{Address: "other.example.org:3128"},
			},
		},
	} {
		t.Run(name, func(t *testing.T) {
			tunnel := recorded(v1alpha1.KubeconfigSpec{
				Mode:          v1alpha1.KubeconfigModeHTTPProxy,
				Proxy:         &v1alpha1.ProxySpec{Address: "proxy.example.org:3128", CredentialsSecret: tc.credentials},
				TLSServerName: "kubernetes",
			}, false)
			tunnel.Spec.Kubeconfig = tc.spec
			secret := secretWith(t, provided, nil)
			sent := []*corev1.Secret{nil, secret}
			if tc.previous != "" {
				sent[0] = secretWith(t, Endpoint{endpoint, "kubernetes", tc.previous}, nil)
			}
			d, ok := FromTunnelAndSecrets(tunnel, gateways, "c1", sent...)
			if ok != (tc.want != "") {
				t.Fatalf("decided %s, %v", d.Target, ok)
			}
			if ok {
				apply(t, secret, d)
				checkEntry(t, secret, Endpoint{endpoint, "kubernetes", tc.want})
			}
		})
	}
}

func TestAProxyRequiresAKnownServer(t *testing.T) {
	d, ok := FromTunnel(
		recorded(
			v1alpha1.KubeconfigSpec{Mode: v1alpha1.KubeconfigModeSOCKS5, Proxy: &v1alpha1.ProxySpec{Address: "proxy:1080"}},
			false,
		),
		gateways,
		nil,
	)
	if !ok {
		t.Fatal("no decision")
	}
	secret := secretWith(t, Endpoint{byAddress, hostname, ""}, nil) // our annotations were removed
	before := secret.DeepCopy()
	if changed, err := Apply(secret, "c1", d); changed || err == nil ||
		!strings.Contains(err.Error(), "spec.controlPlaneEndpoint") {
		t.Errorf("got %v", err)
	}
	checkEntry(t, secret, wayOf(entryOf(t, before)))
	d.Endpoint = endpoint
	apply(t, secret, d)
	checkEntry(t, secret, Endpoint{endpoint, "", "socks5://proxy:1080"})
}

func TestWaysOfCopies(t *testing.T) {
	tunnel := recorded(v1alpha1.KubeconfigSpec{Mode: v1alpha1.KubeconfigModeConnect}, false)
	own := kubeconfigSecret(t, "prod", "c1", originalServer)
	if got, ok := EndpointTo(v1alpha1.KubeconfigModeSNI, tunnel, own, gateways); !ok ||
		got != (Endpoint{byAddress, hostname, ""}) {
		t.Errorf("sni: %v, %v", got, ok)
	}
	if got, ok := EndpointTo(v1alpha1.KubeconfigModeConnect, tunnel, own, gateways); !ok ||
		got != (Endpoint{direct, "kubernetes", proxy}) {
		t.Errorf("connect: %v, %v", got, ok)
	}
	// A provider that wrote a name has it in its certificates, and perhaps none of kubeadm's.
	own.Annotations = map[string]string{v1alpha1.OriginalServerAnnotation: "https://api.example.org:6443"}
	if got, ok := EndpointTo(v1alpha1.KubeconfigModeConnect, tunnel, own, gateways); !ok ||
		got != (Endpoint{direct, "api.example.org", proxy}) {
		t.Errorf("connect: %v, %v", got, ok)
	}
	tunnel.Spec.Kubeconfig.TLSServerName = "other.example.org"
	if got, ok := EndpointTo(v1alpha1.KubeconfigModeConnect, tunnel, own, gateways); !ok ||
		got != (Endpoint{direct, "other.example.org", proxy}) {
		t.Errorf("connect: %v, %v", got, ok)
	}
	if _, ok := EndpointTo(v1alpha1.KubeconfigModeAddress, tunnel, own, gateways); ok {
		t.Error("a copy of a mode that is not tunnelled")
	}
}
