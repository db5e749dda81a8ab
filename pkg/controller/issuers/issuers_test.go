package issuers

import (
	"context"
	"encoding/json"
	"encoding/pem"
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	clientcmdapi "k8s.io/client-go/tools/clientcmd/api"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/fairlead/fairlead/api/v1alpha1"
	"github.com/fairlead/fairlead/pkg/controller/controllertest"
	"github.com/fairlead/fairlead/pkg/controller/reconciler"
	"github.com/fairlead/fairlead/pkg/decision"
	"github.com/fairlead/fairlead/pkg/enrol/podtoken"
	"github.com/fairlead/fairlead/pkg/kubeconfig"
)

// TestTokensOfARealAPIServer reads issuer and keys of a real kube-apiserver through the connect listener, and verifies
// the tokens that it issues by them, also after the tunnel is down.
func TestTokensOfARealAPIServer(t *testing.T) {
	w := newWorld(t)
	if record := w.reconcile(t); record == nil || record.Error != "" || len(record.Keys) == 0 || record.ChangedAt == nil {
		t.Fatalf("recorded %+v", record)
	}
	if w.gateway.authorities[0] != controllertest.Hostname+":6443" {
		t.Errorf("the tunnel of %q was used", w.gateway.authorities)
	}
	w.setStatus(t, func(s *v1alpha1.TunnelStatus) { s.ConnectedEdges = 0 })
	if record := w.reconcile(t); len(record.Keys) == 0 {
		t.Fatal("the keys are gone with the last edge")
	}
	issuer, err := decision.PodIssuer(w.tunnel, w.cluster.UID)
	if err != nil {
		t.Fatal(err)
	}
	token, pod := w.tokenOf(t, "fairlead-edge", 600, w.audience())
	got, err := issuer.Verify(token, time.Now())
	if err != nil || got.Name != pod.Name || got.UID != string(pod.UID) {
		t.Errorf("got %+v, %v; want the Pod %s, %s", got, err, pod.Name, pod.UID)
	}
	for name, refused := range map[string]func() (string, *corev1.Pod){
		"another ServiceAccount": func() (string, *corev1.Pod) { return w.tokenOf(t, "other", 600, w.audience()) },
		"the apiserver":          func() (string, *corev1.Pod) { return w.tokenOf(t, "fairlead-edge", 600) },
		"another tunnel": func() (string, *corev1.Pod) {
			return w.tokenOf(t, "fairlead-edge", 600, "fairlead.dev/x")
		},
		"two audiences": func() (string, *corev1.Pod) {
			return w.tokenOf(t, "fairlead-edge", 600, w.audience(), "vault")
		},
		"a day": func() (string, *corev1.Pod) { return w.tokenOf(t, "fairlead-edge", 86400, w.audience()) },
	} {
		if token, _ := refused(); token == "" {
			t.Fatal("no token")
		} else if got, err := issuer.Verify(token, time.Now()); !errors.Is(err, podtoken.ErrInvalid) {
			t.Errorf("a token for %s is accepted for %+v, %v", name, got, err)
		}
	}
	if _, err := issuer.Verify(token, time.Now().Add(21*time.Minute)); !errors.Is(err, podtoken.ErrInvalid) {
		t.Errorf("an expired token: %v", err)
	}
}

// TestTheRecordFollowsTheTunnel has the events that begin, end and replace the record.
func TestTheRecordFollowsTheTunnel(t *testing.T) {
	w := newWorld(t)
	keys := []podtoken.Key{{ID: "a", PublicKey: []byte("a")}}
	var fails error
	w.reconciler.read = func(context.Context, kubeconfig.Endpoint, *corev1.Secret, string) (discovered, error) {
		return discovered{"https://issuer", keys}, fails
	}
	first := w.reconcile(t)
	if first.ClusterUID != w.cluster.UID || first.Issuer != "https://issuer" || len(first.Keys) != 1 {
		t.Fatalf("recorded %+v", first)
	}
	if again := w.reconcile(t); !again.ChangedAt.Equal(first.ChangedAt) {
		t.Errorf("changed without a change: %+v", again)
	}
	keys = append(keys, podtoken.Key{ID: "b", PublicKey: []byte("b")})
	if rotated := w.reconcile(t); len(rotated.Keys) != 2 || rotated.ChangedAt.Equal(first.ChangedAt) {
		t.Errorf("after a rotation %+v", rotated)
	}
	fails = errors.New("the tunnel is slow")
	if kept := w.reconcile(t); len(kept.Keys) != 2 || !strings.Contains(kept.Error, "slow") {
		t.Errorf("after a failure %+v", kept)
	}
	fails, keys = nil, keys[1:]
	if replaced := w.reconcile(t); len(replaced.Keys) != 1 || replaced.Keys[0].ID != "b" || replaced.Error != "" {
		t.Errorf("after the end of a key %+v", replaced)
	}
	w.setStatus(t, func(s *v1alpha1.TunnelStatus) { s.ServiceAccountIssuer.ClusterUID, s.ConnectedEdges = "earlier", 0 })
	if fresh := w.reconcile(t); len(fresh.Keys) != 0 || fresh.ClusterUID != w.cluster.UID {
		t.Errorf("keys of an earlier Cluster are kept: %+v", fresh)
	}
	w.setStatus(t, func(s *v1alpha1.TunnelStatus) { s.ConnectedEdges = 1 })
	w.reconcile(t)
	w.tunnel.Spec.EdgeServiceAccount = nil
	if err := w.Update(t.Context(), w.tunnel); err != nil {
		t.Fatal(err)
	}
	if gone := w.reconcile(t); gone != nil {
		t.Errorf("a Tunnel that lets no Pods enrol has %+v", gone)
	}
}

// TestReadingsAreLimited however often the edges of a Tunnel come and go.
func TestReadingsAreLimited(t *testing.T) {
	pods := []*v1alpha1.EdgeServiceAccount{{Namespace: "default", Name: "fairlead-edge"}, nil}
	for name, specs := range map[string][]*v1alpha1.EdgeServiceAccount{
		"while the Tunnel stays the same":          pods[:1],
		"while its owner permits and forbids Pods": pods,
	} {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t)
			readings := 0
			w.reconciler.read = func(context.Context, kubeconfig.Endpoint, *corev1.Secret, string) (discovered, error) {
				readings++
				return discovered{}, errors.New("no")
			}
			for i := range 20 {
				controllertest.Edit(t, w, w.tunnel, func(tunnel *v1alpha1.Tunnel) {
					tunnel.Spec.EdgeServiceAccount = specs[i%len(specs)]
				})
				w.reconcile(t)
				w.now = w.now.Add(-leastPause + time.Second)
			}
			if readings != 1 {
				t.Errorf("%d readings in %s", readings, 20*time.Second)
			}
		})
	}
}

// TestAClockThatGoesBackProlongsNoPause: the last reading then seems to be in the future.
func TestAClockThatGoesBackProlongsNoPause(t *testing.T) {
	now, key := time.Now(), client.ObjectKey{Name: "c1"}
	r := New(reconciler.Deps{Now: func() time.Time { return now }})
	r.done(key, nil)
	if wait := r.pause(key); wait != leastPause {
		t.Errorf("it waits %s, want %s", wait, leastPause)
	}
	now = now.Add(-time.Hour)
	if wait := r.pause(key); wait != 0 {
		t.Errorf("it waits %s after the clock was set back", wait)
	}
}

// TestWhatAPausedClusterKeeps: nothing is written while the Cluster is paused.
func TestWhatAPausedClusterKeeps(t *testing.T) {
	w := newWorld(t)
	w.reconcile(t)
	controllertest.Edit(t, w, w.cluster, func(c *clusterv1.Cluster) {
		c.Annotations = map[string]string{clusterv1.PausedAnnotation: ""}
	})
	w.gateway.leadTo("127.0.0.1:1")
	if record := w.reconcile(t); len(record.Keys) == 0 || record.Error != "" {
		t.Errorf("recorded %+v", record)
	}
}

// TestKubeconfigsThatAreNotUsed: users write this Secret, so nothing of the controller's machine may be read for it,
// and no apiserver be trusted without its CA.
func TestKubeconfigsThatAreNotUsed(t *testing.T) {
	user := func(change func(*clientcmdapi.AuthInfo)) func(*clientcmdapi.Config) {
		return func(c *clientcmdapi.Config) { change(c.AuthInfos["c1-admin"]) }
	}
	entry := func(change func(*clientcmdapi.Cluster)) func(*clientcmdapi.Config) {
		return func(c *clientcmdapi.Config) { change(c.Clusters["c1"]) }
	}
	for name, change := range map[string]func(*clientcmdapi.Config){
		"a token file":  user(func(u *clientcmdapi.AuthInfo) { u.TokenFile = "/var/run/secrets/token" }),
		"a certificate": user(func(u *clientcmdapi.AuthInfo) { u.ClientCertificate = "/etc/passwd" }),
		"a key file":    user(func(u *clientcmdapi.AuthInfo) { u.ClientKey = "/etc/passwd" }),
		"a program":     user(func(u *clientcmdapi.AuthInfo) { u.Exec = &clientcmdapi.ExecConfig{Command: "/bin/true"} }),
		"an auth provider": user(func(u *clientcmdapi.AuthInfo) {
			u.AuthProvider = &clientcmdapi.AuthProviderConfig{Name: "oidc"}
		}),
		"another user": user(func(u *clientcmdapi.AuthInfo) { u.Impersonate = "admin" }),
		"a password":   user(func(u *clientcmdapi.AuthInfo) { u.Username, u.Password = "a", "b" }),
		"a CA file":    entry(func(c *clientcmdapi.Cluster) { c.CertificateAuthority = "/etc/ca" }),
		"no CA":        entry(func(c *clientcmdapi.Cluster) { c.CertificateAuthorityData = nil }),
		"no validation": entry(func(c *clientcmdapi.Cluster) {
			c.InsecureSkipTLSVerify, c.CertificateAuthorityData = true, nil
		}),
		"a bad CA": entry(func(c *clientcmdapi.Cluster) { c.CertificateAuthorityData = []byte("x") }),
	} {
		w := newWorld(t, change)
		if record := w.reconcile(t); !strings.Contains(record.Error, "kubeconfig") || len(record.Keys) > 0 {
			t.Errorf("%s: recorded %+v", name, record)
		}
		if len(w.gateway.authorities) > 0 {
			t.Errorf("%s: the apiserver was dialled", name)
		}
	}
	other := controllertest.NewCA(t).CertPEM()
	w := newWorld(t, entry(func(c *clientcmdapi.Cluster) { c.CertificateAuthorityData = other }))
	if record := w.reconcile(t); len(record.Keys) > 0 || !strings.Contains(record.Error, "certificate") {
		t.Errorf("another CA: recorded %+v", record)
	}
}

// TestHostileAPIServers: the owner of a workload cluster decides what its apiserver answers.
func TestHostileAPIServers(t *testing.T) {
	many := []byte(`{"keys":[` + strings.TrimSuffix(strings.Repeat(`{"kty":"EC"},`, 1000), ",") + `]}`)
	discovery, err := json.Marshal(map[string]string{"issuer": "https://issuer", "jwks_uri": "https://169.254.169.254/"})
	if err != nil {
		t.Fatal(err)
	}
	dialled := false
	elsewhere := httptest.NewServer(http.HandlerFunc(func(http.ResponseWriter, *http.Request) { dialled = true }))
	defer elsewhere.Close()
	for name, tc := range map[string]struct {
		discovery, keys http.HandlerFunc
		want            string
	}{
		"a key set of 1,000 keys":    {answer(discovery), answer(many), "1000 keys"},
		"an endless key set":         {answer(discovery), endless, "longer than"},
		"an endless document":        {endless, answer(many), "longer than"},
		"a key set that is HTML":     {answer(discovery), answer([]byte("<html>")), "not JSON"},
		"no issuer":                  {answer([]byte("{}")), answer(many), "no valid issuer"},
		"an issuer with line breaks": {answer([]byte(`{"issuer":"a\nb"}`)), answer(many), "no valid issuer"},
		"a redirect": {func(rw http.ResponseWriter, r *http.Request) {
			http.Redirect(rw, r, elsewhere.URL, http.StatusFound)
		}, answer(many), "redirects"},
		"a denial": {func(rw http.ResponseWriter, _ *http.Request) {
			rw.WriteHeader(http.StatusForbidden)
		}, answer(many), "403"},
		"headers without end": {func(rw http.ResponseWriter, _ *http.Request) {
			rw.Header().Set("X", strings.Repeat("x", 2*maxHeader))
		}, answer(many), "header"},
	} {
		t.Run(name, func(t *testing.T) {
			mux := http.NewServeMux()
			mux.HandleFunc(discoveryPath, tc.discovery)
			mux.HandleFunc(keysPath, tc.keys)
			hostile := httptest.NewTLSServer(mux)
			defer hostile.Close()
			w := newWorld(t, func(c *clientcmdapi.Config) {
				c.Clusters["c1"].CertificateAuthorityData = pem.EncodeToMemory(
					&pem.Block{Type: "CERTIFICATE", Bytes: hostile.Certificate().Raw},
				)
			})
			controllertest.Edit(t, w, w.tunnel, func(t *v1alpha1.Tunnel) { t.Spec.Kubeconfig.TLSServerName = "example.com" })
			w.gateway.leadTo(hostile.Listener.Addr().String())
			if record := w.reconcile(t); len(record.Keys) > 0 || !strings.Contains(record.Error, tc.want) ||
				len(record.Error) > 1024 {
				t.Errorf("recorded %+v, want %q", record, tc.want)
			}
		})
	}
	if dialled {
		t.Error("a redirect was followed")
	}
}

func answer(body []byte) http.HandlerFunc {
	return func(rw http.ResponseWriter, _ *http.Request) { _, _ = rw.Write(body) }
}

func endless(rw http.ResponseWriter, r *http.Request) {
	for r.Context().Err() == nil {
		if _, err := fmt.Fprint(rw, strings.Repeat(" ", 1<<16)); err != nil {
			return
		}
	}
}
