package kubeconfig

import (
	"crypto/tls"
	"net/http"
	"net/http/httptest"
	"net/url"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"
	clientcmdapi "k8s.io/client-go/tools/clientcmd/api"
	"k8s.io/client-go/tools/portforward"
	"k8s.io/client-go/transport/spdy"

	"github.com/fairlead/fairlead/api/v1alpha1"
)

// apiName is the name of a workload cluster's apiserver in its own network. It does not resolve elsewhere.
const apiName = "api.workload.invalid"

// TestClientGoWorksWithEveryMode uses real clients of client-go in every mode: requests as ClusterCache makes them, and
// port-forwards over WebSocket and SPDY as KCP makes them to reach etcd.
func TestClientGoWorksWithEveryMode(t *testing.T) {
	ca := newAuthority(t)
	user := &Credentials{Username: "capi", Password: "p@ss:w/rd%"}
	type kind struct {
		mode        v1alpha1.KubeconfigMode
		credentials *Credentials // that the proxy requires
		given       *Credentials // in the kubeconfig
		tls         *tls.Config  // of the proxy
		verified    string       // spec.kubeconfig.tlsServerName
		wantErr     string       // of a request; empty: everything works
	}
	tests := map[string]kind{
		"http-proxy":                            {mode: v1alpha1.KubeconfigModeHTTPProxy},
		"http-proxy that verifies another name": {mode: v1alpha1.KubeconfigModeHTTPProxy, verified: "kubernetes"},
		"http-proxy with credentials": {
			mode:        v1alpha1.KubeconfigModeHTTPProxy,
			credentials: user,
			given:       user,
		},
		"http-proxy without the required credentials": {
			mode:        v1alpha1.KubeconfigModeHTTPProxy,
			credentials: user,
			wantErr:     "Proxy Authentication Required",
		},
		"socks5":                  {mode: v1alpha1.KubeconfigModeSOCKS5},
		"socks5 with credentials": {mode: v1alpha1.KubeconfigModeSOCKS5, credentials: user, given: user},
		"socks5 with wrong credentials": {
			mode: v1alpha1.KubeconfigModeSOCKS5, credentials: user, given: &Credentials{"capi", "wrong"},
			wantErr: "username/password authentication failed",
		},
		"address":                  {mode: v1alpha1.KubeconfigModeAddress, verified: apiName},
		"address without its name": {mode: v1alpha1.KubeconfigModeAddress, wantErr: "x509"},
		"https-proxy with a certificate of the workload cluster's CA, by the name that clients verify": {
			mode: v1alpha1.KubeconfigModeHTTPSProxy, verified: "kubernetes", tls: serving(t, ca, "kubernetes"),
		},
		"https-proxy with credentials": {
			mode: v1alpha1.KubeconfigModeHTTPSProxy, verified: "kubernetes", tls: serving(t, ca, "kubernetes"),
			credentials: user, given: user,
		},
		"https-proxy with a certificate of the CA, by another name": {
			mode: v1alpha1.KubeconfigModeHTTPSProxy, verified: "kubernetes", tls: serving(t, ca, "proxy.example.org"),
			wantErr: "x509",
		},
		"https-proxy with a certificate of another CA": {
			mode: v1alpha1.KubeconfigModeHTTPSProxy, verified: "kubernetes", tls: serving(t, newAuthority(t), "kubernetes"),
			wantErr: "x509",
		},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			proxy := &proxyServer{to: newAPIServer(t, serving(t, ca, apiName, "kubernetes")), credentials: tc.credentials}
			spec := v1alpha1.KubeconfigSpec{Mode: tc.mode, TLSServerName: tc.verified}
			switch tc.mode {
			case v1alpha1.KubeconfigModeAddress:
				spec.Server = "https://" + proxy.start(t, nil, proxy.tcp)
			case v1alpha1.KubeconfigModeSOCKS5:
				spec.Proxy = &v1alpha1.ProxySpec{Address: proxy.start(t, nil, proxy.socks5)}
			default:
				spec.Proxy = &v1alpha1.ProxySpec{Address: proxy.start(t, tc.tls, proxy.connect)}
			}
			if tc.given != nil {
				spec.Proxy.CredentialsSecret = "proxy"
			}
			config := clientConfig(t, spec, tc.given, ca.CertPEM())
			checkRequest(t, config, tc.wantErr)
			if tc.wantErr != "" {
				return
			}
			checkPortForwards(t, config)
			if proxy.uses.Load() < 2 {
				t.Errorf("%d connections came by the proxy", proxy.uses.Load())
			}
		})
	}
}

// clientConfig returns the configuration that Cluster API creates from the kubeconfig of a spec.
func clientConfig(t *testing.T, spec v1alpha1.KubeconfigSpec, credentials *Credentials, ca []byte) *rest.Config {
	t.Helper()
	if reason, problem := Validate(spec); problem != nil {
		t.Fatal(reason, problem)
	}
	tunnel := &v1alpha1.Tunnel{Spec: v1alpha1.TunnelSpec{Kubeconfig: spec}}
	tunnel.Status.Kubeconfig = StatusOf(spec, Choose(Evidence{Mode: spec.Mode}), Gateways{}, false)
	decision, ok := FromTunnel(tunnel, Gateways{}, credentials)
	if !ok {
		t.Fatal("there is no decision")
	}
	if s := tunnel.Status.Kubeconfig; credentials != nil &&
		strings.Contains(s.ProxyURL+decision.Target.String(), credentials.Username) {
		t.Errorf("the credentials can be seen: %s, %s", s.ProxyURL, decision.Target)
	}
	secret := kubeconfigSecret(t, "prod", "c1", "https://"+apiName+":6443", func(c *clientcmdapi.Config) {
		c.Clusters["c1"].CertificateAuthorityData = ca
		c.AuthInfos["c1-admin"] = &clientcmdapi.AuthInfo{Token: "x"}
	})
	if _, err := Apply(secret, "c1", decision); err != nil {
		t.Fatal(err)
	}
	if noted := secret.Annotations; credentials != nil &&
		strings.Contains(
			strings.Join([]string{noted[v1alpha1.WrittenServerAnnotation], noted[v1alpha1.OriginalServerAnnotation]}, " "),
			credentials.Password,
		) {
		t.Errorf("the password is in an annotation: %v", noted)
	}
	config, err := clientcmd.RESTConfigFromKubeConfig(secret.Data[Key])
	if err != nil {
		t.Fatal(err)
	}
	config.Timeout = 10 * time.Second
	return config
}

func checkRequest(t *testing.T, config *rest.Config, wantErr string) {
	t.Helper()
	client, err := rest.HTTPClientFor(config)
	if err != nil {
		t.Fatal(err)
	}
	request, err := http.NewRequestWithContext(t.Context(), http.MethodGet, config.Host+"/", nil)
	if err != nil {
		t.Fatal(err)
	}
	response, err := client.Do(request)
	switch {
	case err != nil && (wantErr == "" || !strings.Contains(err.Error(), wantErr)):
		t.Errorf("got error %v, want %q", err, wantErr)
	case err == nil && wantErr != "":
		t.Errorf("it works, want error %q", wantErr)
	}
	if response != nil {
		_ = response.Body.Close()
	}
	client.CloseIdleConnections()
}

// checkPortForwards dials as KCP's proxy package does: WebSocket first, then SPDY.
func checkPortForwards(t *testing.T, config *rest.Config) {
	t.Helper()
	target, err := url.Parse(config.Host + "/api/v1/namespaces/kube-system/pods/etcd-0/portforward")
	if err != nil {
		t.Fatal(err)
	}
	overWebSocket, err := portforward.NewSPDYOverWebsocketDialer(target, config)
	if err != nil {
		t.Fatal(err)
	}
	conn, _, err := overWebSocket.Dial(portForward)
	if err != nil {
		t.Errorf("WebSocket: %v", err)
	}
	if conn != nil {
		_ = conn.Close()
	}
	transport, upgrader, err := spdy.RoundTripperFor(config)
	if err != nil {
		t.Fatal(err)
	}
	conn, _, err = spdy.NewDialer(upgrader, &http.Client{Transport: transport}, http.MethodPost, target).Dial(portForward)
	if err != nil {
		t.Errorf("SPDY: %v", err)
		return
	}
	_ = conn.Close()
}

// TestAnHTTPSProxyThatSpeaksHTTP2 shows why such a proxy is rejected: client-go offers HTTP/2, and then sends
// HTTP/1.1.
func TestAnHTTPSProxyThatSpeaksHTTP2(t *testing.T) {
	ca := newAuthority(t)
	var called atomic.Bool
	proxy := httptest.NewUnstartedServer(http.HandlerFunc(func(http.ResponseWriter, *http.Request) { called.Store(true) }))
	proxy.TLS, proxy.EnableHTTP2 = serving(t, ca, "kubernetes"), true
	proxy.StartTLS()
	defer proxy.Close()
	spec := v1alpha1.KubeconfigSpec{
		Mode: v1alpha1.KubeconfigModeHTTPSProxy, TLSServerName: "kubernetes",
		Proxy: &v1alpha1.ProxySpec{Address: proxy.Listener.Addr().String()},
	}
	// The proxy answers in HTTP/2, or closes the connection: the error depends on which the client reads first.
	checkRequest(t, clientConfig(t, spec, nil, ca.CertPEM()), `Get "https://`+apiName)
	if called.Load() {
		t.Error("the proxy has understood the request")
	}
}
