package kubeconfig

import (
	"encoding/pem"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"github.com/spf13/cobra"
	clientcmdapi "k8s.io/client-go/tools/clientcmd/api"

	"github.com/fairlead/fairlead/api/v1alpha1"
)

const hostname = "c1.prod.tunnels.example.com"

// answering starts a server that denies every request, as an apiserver does without credentials, and returns an entry
// that leads to it.
func answering(t *testing.T) *clientcmdapi.Cluster {
	t.Helper()
	server := httptest.NewTLSServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.Header.Get("Authorization") != "" {
			t.Error("the probe sends credentials")
		}
		w.WriteHeader(http.StatusUnauthorized)
	}))
	t.Cleanup(server.Close)
	ca := pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: server.Certificate().Raw})
	return &clientcmdapi.Cluster{Server: server.URL, TLSServerName: "example.com", CertificateAuthorityData: ca}
}

func tunnelOf(mode v1alpha1.KubeconfigMode) *v1alpha1.Tunnel {
	tunnel := &v1alpha1.Tunnel{}
	tunnel.Spec.Kubeconfig.Mode = mode
	tunnel.Status.Names = []string{hostname}
	return tunnel
}

// TestAutoChoosesTheAddressOnlyIfTheAPIServerAnswers changes one thing of an entry at which the apiserver answers.
func TestAutoChoosesTheAddressOnlyIfTheAPIServerAnswers(t *testing.T) {
	silent, err := net.Listen("tcp", "127.0.0.1:0") // it accepts connections and sends nothing
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = silent.Close() })
	denying := httptest.NewServer(http.NotFoundHandler())
	t.Cleanup(denying.Close)
	for name, tc := range map[string]struct {
		change func(*clientcmdapi.Cluster)
		want   string // the beginning of the note
	}{
		"nothing": {change: func(*clientcmdapi.Cluster) {}, want: "chose the address: the apiserver answers at 127.0.0.1:"},
		"another name is verified": {
			change: func(c *clientcmdapi.Cluster) { c.TLSServerName = hostname }, want: "chose the local proxy, because ",
		},
		"the port accepts connections and does not answer": {
			change: func(c *clientcmdapi.Cluster) { c.Server = "https://" + silent.Addr().String() },
			want:   "chose the local proxy, because ",
		},
		"the proxy answers CONNECT with 404": {
			change: func(c *clientcmdapi.Cluster) { c.ProxyURL = denying.URL }, want: "chose the local proxy, because ",
		},
	} {
		t.Run(name, func(t *testing.T) {
			entry := answering(t)
			tunnel := tunnelOf("")
			tunnel.Status.Names = append(tunnel.Status.Names, "127.0.0.1") // the server that must not change
			tc.change(entry)
			before := *entry
			config := clientcmdapi.NewConfig()
			config.Clusters["c1"] = entry
			var note strings.Builder
			cmd := &cobra.Command{}
			cmd.SetErr(&note)
			cmd.SetOut(io.Discard)
			cmd.SetContext(t.Context())
			f := kubeconfigFlags{name: "c1", via: viaAuto, proxyPort: 1}
			if err := f.choose(cmd, config, tunnel); err != nil {
				t.Fatal(err)
			}
			if !strings.HasPrefix(note.String(), tc.want) || strings.Count(note.String(), "\n") != 1 {
				t.Errorf("it printed %q, want %q", note.String(), tc.want)
			}
			byProxy := strings.Contains(tc.want, "local proxy")
			if byProxy && entry.ProxyURL != "http://127.0.0.1:1" || !byProxy && entry.ProxyURL != before.ProxyURL {
				t.Errorf("proxy-url is %q", entry.ProxyURL)
			}
			if byProxy && !strings.Contains(note.String(), "; run: fairlead proxy") {
				t.Errorf("it printed %q", note.String())
			}
		})
	}
}

func TestTheProxyNeedsANameOfTheTunnel(t *testing.T) {
	for name, tc := range map[string]struct {
		in      clientcmdapi.Cluster
		mode    v1alpha1.KubeconfigMode
		want    string // the server
		wantErr string
	}{
		"mode connect": {
			in: clientcmdapi.Cluster{
				Server: "https://" + hostname + ":6443", TLSServerName: "kubernetes", ProxyURL: "http://x:1",
			},
			want: "https://" + hostname + ":6443",
		},
		"mode sni by a name": {in: clientcmdapi.Cluster{Server: "https://" + hostname}, want: "https://" + hostname + ":443"},
		"mode sni by an address": {
			in:   clientcmdapi.Cluster{Server: "https://10.1.1.1:6443", TLSServerName: hostname},
			want: "https://" + hostname + ":6443",
		},
		"another server": {in: clientcmdapi.Cluster{Server: "https://10.1.1.1:6443"}, wantErr: "is not a name of the tunnel"},
		"a proxy of the user's own": {
			in:   clientcmdapi.Cluster{Server: "https://" + hostname + ":6443", ProxyURL: "http://user:secret@x:1"},
			mode: v1alpha1.KubeconfigModeHTTPProxy, wantErr: "a network of your own",
		},
	} {
		t.Run(name, func(t *testing.T) {
			entry := tc.in
			err := LeadThroughProxy(&entry, tunnelOf(tc.mode), 13128)
			if tc.wantErr != "" {
				if err == nil || !strings.Contains(err.Error(), tc.wantErr) || entry.Server != tc.in.Server ||
					entry.ProxyURL != tc.in.ProxyURL {
					t.Errorf("got %v, and server %s", err, entry.Server)
				}
				return
			}
			if err != nil || entry.Server != tc.want || entry.ProxyURL != "http://127.0.0.1:13128" ||
				entry.TLSServerName != tc.in.TLSServerName {
				t.Errorf("got %v, %s as %q by %s", err, entry.Server, entry.TLSServerName, entry.ProxyURL)
			}
		})
	}
}
