package kubeconfigs

import (
	"crypto/tls"
	"errors"
	"fmt"
	"net"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/fairlead/fairlead/api/v1alpha1"
	"github.com/fairlead/fairlead/internal/freeport"
	"github.com/fairlead/fairlead/pkg/certs"
	"github.com/fairlead/fairlead/pkg/controller/controllertest"
	"github.com/fairlead/fairlead/pkg/kubeconfig"
)

const switchedKind = v1alpha1.ConditionKubeconfigSwitched

// configure changes the spec of the Tunnel.
func (w *switchWorld) configure(spec v1alpha1.KubeconfigSpec) {
	w.t.Helper()
	tunnel := controllertest.TunnelNamed(w.cluster)
	if err := w.api.Get(w.t.Context(), client.ObjectKeyFromObject(tunnel), tunnel); err != nil {
		w.t.Fatal(err)
	}
	tunnel.Spec.Kubeconfig = spec
	if err := w.api.Update(w.t.Context(), tunnel); err != nil {
		w.t.Fatal(err)
	}
}

// sees writes what edges observe into the Tunnel's status: for each edge, the names in its apiserver's certificate.
func (w *switchWorld) sees(healthy bool, certificates ...[]string) {
	w.t.Helper()
	tunnel := controllertest.TunnelNamed(w.cluster)
	if err := w.api.Get(w.t.Context(), client.ObjectKeyFromObject(tunnel), tunnel); err != nil {
		w.t.Fatal(err)
	}
	tunnel.Status.Edges = nil
	for i, names := range certificates {
		edge := controllertest.Recorded(fmt.Sprintf("edge-%d", i), w.clock)
		edge.APIServer = &v1alpha1.EdgeAPIServerStatus{Address: "127.0.0.1:6443", Healthy: healthy, CertificateNames: names}
		tunnel.Status.Edges = append(tunnel.Status.Edges, edge)
	}
	if err := w.api.Status().Update(w.t.Context(), tunnel); err != nil {
		w.t.Fatal(err)
	}
}

func (w *switchWorld) secret() *corev1.Secret {
	w.t.Helper()
	secret := &corev1.Secret{}
	if err := w.api.Get(
		w.t.Context(), client.ObjectKey{Namespace: "prod", Name: "c1" + kubeconfig.Suffix}, secret,
	); err != nil {
		w.t.Fatal(err)
	}
	return secret
}

// TestModeAutoKeepsThePreviousEndpoint: opting in leads to connect and the certificate to sni, while managers may still
// use the direct connection.
func TestModeAutoKeepsThePreviousEndpoint(t *testing.T) {
	port := freeport.TCP(t)
	old := fmt.Sprintf("https://localhost:%d", port)
	w := newSwitchWorld(t, controllertest.Config(), old, v1alpha1.KubeconfigSpec{})
	server := controllertest.ListenTLS(t, w.ca, fmt.Sprintf("127.0.0.1:%d", port), nil, "localhost")
	w.check(w.reconcileAfter(0), switchedKind, v1alpha1.ReasonOldWayWorks, old)
	w.sees(true, []string{"kubernetes", "c1.prod.tunnels.example.com"})
	for range 2 {
		tunnel := w.reconcileAfter(time.Minute)
		w.check(tunnel, switchedKind, v1alpha1.ReasonOldWayWorks, old+", still works: it answers")
		if s := tunnel.Status.Kubeconfig; s.Mode != v1alpha1.KubeconfigModeSNI || s.PreviousServer != old ||
			w.endpoint().Server != controllertest.AddressURL {
			t.Fatalf("on record is %+v, and the kubeconfig leads %v", s, w.endpoint())
		}
	}
	_ = server.Close()
	w.check(w.reconcileAfter(time.Minute), switchedKind, v1alpha1.ReasonWaitingForManagers, old)
	w.check(w.reconcileAfter(switchTime), switchedKind, v1alpha1.ReasonSwitched, "through the gateways")
}

// TestAnyTLSServerCountsAsReachable: managers may be connected to such a server, whatever certificate it presents.
func TestAnyTLSServerCountsAsReachable(t *testing.T) {
	other, err := certs.NewCA("other", time.Now(), time.Hour)
	if err != nil {
		t.Fatal(err)
	}
	for name, serve := range map[string]func(address string){
		"with another name": func(
			address string,
		) {
			controllertest.ListenTLS(t, other, address, nil, "elsewhere.example.org")
		},
		"with a refusal": func(address string) {
			listener, err := net.Listen("tcp", address)
			if err != nil {
				t.Fatal(err)
			}
			t.Cleanup(func() { _ = listener.Close() })
			go refuseAll(listener)
		},
	} {
		t.Run(name, func(t *testing.T) {
			port := freeport.TCP(t)
			w := newSwitchWorld(
				t, controllertest.Config(), fmt.Sprintf("https://localhost:%d", port),
				v1alpha1.KubeconfigSpec{Mode: v1alpha1.KubeconfigModeSNI},
			)
			serve(fmt.Sprintf("127.0.0.1:%d", port))
			w.check(w.reconcileAfter(0), switchedKind, v1alpha1.ReasonOldWayWorks, "it answers")
		})
	}
}

// refuseAll rejects every handshake, as a server does that does not have a name.
func refuseAll(listener net.Listener) {
	config := &tls.Config{MinVersion: tls.VersionTLS12, GetCertificate: func(
		*tls.ClientHelloInfo,
	) (*tls.Certificate, error) {
		return nil, errors.New("no such name")
	}}
	for {
		conn, err := listener.Accept()
		if err != nil {
			return
		}
		_ = tls.Server(conn, config).Handshake()
		_ = conn.Close()
	}
}

// TestASecondSwitchChecksThePreviousEndpointAgain: the result for a finished switch does not apply to the next one.
func TestASecondSwitchChecksThePreviousEndpointAgain(t *testing.T) {
	port := freeport.TCP(t)
	old := fmt.Sprintf("https://localhost:%d", port)
	byProxy := v1alpha1.KubeconfigSpec{
		Mode: v1alpha1.KubeconfigModeHTTPProxy, Proxy: &v1alpha1.ProxySpec{Address: "proxy.example.org:3128"},
	}
	w := newSwitchWorld(t, controllertest.Config(), old, byProxy)
	w.reconcileAfter(0)
	w.check(w.reconcileAfter(switchTime+time.Second), switchedKind, v1alpha1.ReasonSwitched, "")
	w.configure(v1alpha1.KubeconfigSpec{Mode: v1alpha1.KubeconfigModeAddress, Server: old})
	w.check(w.reconcileAfter(time.Minute), switchedKind, v1alpha1.ReasonOldWayWorks, "through a proxy")
	controllertest.ListenTLS(t, w.ca, fmt.Sprintf("127.0.0.1:%d", port), nil, "localhost")
	w.configure(byProxy)
	w.check(w.reconcileAfter(time.Minute), switchedKind, v1alpha1.ReasonOldWayWorks, "it answers")
}

// TestASwitchSurvivesTheDeletionOfItsSecret: a provider that deletes and creates the Secret, or writes invalid data for
// a moment, closes no connection.
func TestASwitchSurvivesTheDeletionOfItsSecret(t *testing.T) {
	port := freeport.TCP(t)
	old := fmt.Sprintf("https://localhost:%d", port)
	w := newSwitchWorld(t, controllertest.Config(), old, v1alpha1.KubeconfigSpec{Mode: v1alpha1.KubeconfigModeConnect})
	server := controllertest.ListenTLS(t, w.ca, fmt.Sprintf("127.0.0.1:%d", port), nil, "localhost")
	began := w.reconcileAfter(0).Status.Kubeconfig
	stays := func(what string) {
		t.Helper()
		tunnel := w.reconcileAfter(time.Minute)
		w.check(tunnel, switchedKind, v1alpha1.ReasonOldWayWorks, old)
		if s := tunnel.Status.Kubeconfig; s.PreviousServer != old || s.TLSServerName != began.TLSServerName ||
			s.ChangedAt == nil || !s.ChangedAt.Equal(began.ChangedAt) {
			t.Fatalf("%s: on record is %+v, was %+v", what, s, began)
		}
	}
	secret := w.secret()
	broken := secret.DeepCopy()
	broken.Data["value"] = []byte("nonsense")
	if err := w.api.Update(t.Context(), broken); err != nil {
		t.Fatal(err)
	}
	stays("it can't be read")
	if err := w.api.Delete(t.Context(), broken); err != nil {
		t.Fatal(err)
	}
	stays("it is away")
	secret.ResourceVersion, secret.CreationTimestamp = "", metav1.NewTime(w.clock)
	if err := w.api.Create(t.Context(), secret); err != nil {
		t.Fatal(err)
	}
	stays("it is there again")
	_ = server.Close()
	w.check(w.reconcileAfter(time.Minute), switchedKind, v1alpha1.ReasonWaitingForManagers, old)
}

// TestModeAutoIgnoresTheHealthOfTheAPIServer: the mode depends only on the names in certificates.
func TestModeAutoIgnoresTheHealthOfTheAPIServer(t *testing.T) {
	const kind = v1alpha1.ConditionKubeconfigMode
	good, bad := []string{"kubernetes", "c1.prod.tunnels.example.com"}, []string{"kubernetes"}
	w := newSwitchWorld(
		t, controllertest.Config(), controllertest.OriginalServer,
		v1alpha1.KubeconfigSpec{Mode: v1alpha1.KubeconfigModeConnect},
	)
	w.check(w.reconcileAfter(0), kind, v1alpha1.ReasonConfigured, "")
	w.configure(v1alpha1.KubeconfigSpec{})
	w.check(w.reconcileAfter(time.Second), kind, v1alpha1.ReasonNoEvidence, "chosen before")
	w.sees(false, good, bad)
	w.check(w.reconcileAfter(time.Second), kind, v1alpha1.ReasonCertificateLacksHostname, "certSANs")
	w.check(w.reconcileAfter(time.Hour), kind, v1alpha1.ReasonCertificateLacksHostname, "certSANs") // the edges are away
	w.sees(false, good, nil)
	w.check(w.reconcileAfter(time.Second), kind, v1alpha1.ReasonCertificateHasHostname, "sni: ")
	w.check(w.reconcileAfter(time.Hour), kind, v1alpha1.ReasonCertificateHasHostname, "sni: ")
	w.sees(true, bad)
	w.check(w.reconcileAfter(time.Second), kind, v1alpha1.ReasonCertificateLacksHostname, "connect: ")
}
