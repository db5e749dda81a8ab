package test

import (
	"encoding/pem"
	"io"
	"log"
	"net"
	"net/http"
	"net/http/httptest"
	"slices"
	"sync"
	"testing"

	clientcmdapi "k8s.io/client-go/tools/clientcmd/api"

	"github.com/fairlead/fairlead/pkg/diagnose/traffic"
)

// requests is an apiserver, or a proxy to one, that notes the requests that arrive.
type requests struct {
	*httptest.Server
	mu   sync.Mutex
	came []string // the path and, of TLS, the name that the client verifies; the address of a CONNECT
}

func (r *requests) note(what string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if !slices.Contains(r.came, what) {
		r.came = append(r.came, what)
	}
}

// take returns what arrived, and forgets it.
func (r *requests) take() []string {
	r.mu.Lock()
	defer r.mu.Unlock()
	came := r.came
	r.came = nil
	return came
}

// newAPIServer returns an apiserver that forbids everything.
func newAPIServer(t *testing.T) *requests {
	t.Helper()
	r := &requests{}
	r.Server = httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, request *http.Request) {
		r.note(request.TLS.ServerName + request.URL.Path)
		w.WriteHeader(http.StatusForbidden)
	}))
	r.Config.ErrorLog = log.New(io.Discard, "", 0)
	r.StartTLS()
	t.Cleanup(r.Close)
	return r
}

// newProxy returns a proxy that leads every CONNECT to one address.
func newProxy(t *testing.T, to string) *requests {
	t.Helper()
	r := &requests{}
	r.Server = httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, request *http.Request) {
		r.note(request.Method + " " + request.Host)
		upstream, err := (&net.Dialer{}).DialContext(request.Context(), "tcp", to)
		if err != nil {
			w.WriteHeader(http.StatusBadGateway)
			return
		}
		defer upstream.Close()
		w.WriteHeader(http.StatusOK)
		client, buffered, err := http.NewResponseController(w).Hijack()
		if err != nil {
			return
		}
		defer client.Close()
		go func() { _, _ = io.Copy(upstream, buffered) }()
		_, _ = io.Copy(client, upstream)
	}))
	t.Cleanup(r.Close)
	return r
}

// TestStreamsLeadToAnotherAddress checks that a command in a Pod and a port-forward dial the address of --via. Nothing
// listens at the address in the kubeconfig.
func TestStreamsLeadToAnotherAddress(t *testing.T) {
	apiserver := newAPIServer(t)
	proxy := newProxy(t, apiserver.Listener.Addr().String())
	ca := pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: apiserver.Certificate().Raw})
	of := func(server *requests) string { return server.Listener.Addr().String() }
	for mode, tc := range map[string]struct {
		entry clientcmdapi.Cluster
		via   string
	}{
		"sni": {
			clientcmdapi.Cluster{Server: "https://gw.invalid:6443", TLSServerName: "example.com"}, of(apiserver),
		},
		"the name is dialled": {clientcmdapi.Cluster{Server: "https://example.com:1"}, of(apiserver)},
		"connect": {
			clientcmdapi.Cluster{Server: "https://example.com:6443", ProxyURL: "http://gw.invalid:3128"}, of(proxy),
		},
	} {
		t.Run(mode, func(t *testing.T) {
			tc.entry.CertificateAuthorityData = ca
			w := &ways{name: "c1", via: tc.via, config: &clientcmdapi.Config{
				Clusters:  map[string]*clientcmdapi.Cluster{"c1": &tc.entry},
				AuthInfos: map[string]*clientcmdapi.AuthInfo{"c1": {Token: "t"}},
				Contexts:  map[string]*clientcmdapi.Context{"c1": {Cluster: "c1", AuthInfo: "c1"}}, CurrentContext: "c1",
			}}
			f := &connectivityFlags{exec: "a/b", portForward: "a/b:1", execPod: traffic.Pod{Namespace: "a", Name: "b"}}
			f.portPod = traffic.Pod{Namespace: "a", Name: "b", Port: 1}
			(&tester{flags: f}).pods(t.Context(), w)
			came, connects := apiserver.take(), proxy.take()
			for _, want := range []string{"exec", "portforward"} {
				if want = "example.com/api/v1/namespaces/a/pods/b/" + want; !slices.Contains(came, want) {
					t.Errorf("%s is not among %q", want, came)
				}
			}
			if want := []string{"CONNECT example.com:6443"}; tc.via == of(proxy) && !slices.Equal(connects, want) {
				t.Errorf("the proxy received %q, want %q", connects, want)
			}
		})
	}
}
