package kubeconfigs

import (
	"fmt"
	"net/netip"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	apimeta "k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	clientcmdapi "k8s.io/client-go/tools/clientcmd/api"
	"k8s.io/client-go/tools/events"
	"k8s.io/utils/ptr"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	"github.com/fairlead/fairlead/api/v1alpha1"
	"github.com/fairlead/fairlead/internal/freeport"
	"github.com/fairlead/fairlead/pkg/certs"
	"github.com/fairlead/fairlead/pkg/controller/config"
	"github.com/fairlead/fairlead/pkg/controller/controllertest"
	"github.com/fairlead/fairlead/pkg/controller/tunnel"
	"github.com/fairlead/fairlead/pkg/kubeconfig"
)

// switchWorld is one Cluster with connected managers, without any gateway or apiserver, and with a fake clock.
type switchWorld struct {
	t       *testing.T
	api     client.WithWatch
	tunnels *tunnel.Reconciler
	r       *Reconciler
	clock   time.Time
	woken   chan client.ObjectKey
	cluster *clusterv1.Cluster
	ca      *certs.CA
}

func newSwitchWorld(t *testing.T, config config.Config, server string, spec v1alpha1.KubeconfigSpec) *switchWorld {
	t.Helper()
	ca, err := certs.NewCA("kubernetes", time.Now(), time.Hour)
	if err != nil {
		t.Fatal(err)
	}
	cluster, tunnel := controllertest.Served("c1", 1000)
	cluster.Status.Initialization.InfrastructureProvisioned = ptr.To(true)
	tunnel.Spec.Kubeconfig = spec
	secret := controllertest.KubeconfigSecret(
		t, "prod", "c1", server, func(c *clientcmdapi.Config) { c.Clusters["c1"].CertificateAuthorityData = ca.CertPEM() },
	)
	secret.CreationTimestamp = metav1.NewTime(time.Now().Add(-time.Hour))
	w := &switchWorld{
		t: t, api: controllertest.FakeAPI(t, cluster, tunnel, secret), clock: time.Now().Truncate(time.Second),
		woken: make(chan client.ObjectKey, 100), cluster: cluster, ca: ca,
	}
	w.tunnels = withTunnels(t, w.api, w.api)
	w.tunnels.Config, w.tunnels.Recorder = config, events.NewFakeRecorder(100)
	w.restart()
	return w
}

// restart creates the controller anew, with empty memory.
func (w *switchWorld) restart() {
	w.r = kubeconfigsOf(w.tunnels)
	w.r.Now = func() time.Time { return w.clock }
	w.r.checks = newProxyChecks(w.r.Now)
	// Everything here is on loopback.
	w.r.rule = dialRule{
		networks: []netip.Prefix{netip.MustParsePrefix("127.0.0.0/8")}, never: func(netip.Addr) bool { return false },
	}
	w.r.previous = newPreviousEndpoints(w.r.Now, func(key client.ObjectKey) { w.woken <- key }, w.r.rule)
}

// reconcileAfter advances the clock and reconciles, twice if a server is being probed. It returns the Tunnel.
func (w *switchWorld) reconcileAfter(after time.Duration) *v1alpha1.Tunnel {
	w.t.Helper()
	w.clock = w.clock.Add(after)
	request := reconcile.Request{NamespacedName: client.ObjectKeyFromObject(w.cluster)}
	if _, err := w.tunnels.Reconcile(w.t.Context(), request); err != nil {
		w.t.Fatal(err)
	}
	for again := true; again; {
		before := w.probe()
		if _, err := w.r.Reconcile(w.t.Context(), request); err != nil {
			w.t.Fatal(err)
		}
		after := w.waitProbe()
		if again = after.way != nil && after != before; !again {
			break
		}
		select {
		case <-w.woken:
		case <-time.After(4 * probeTimeout):
			w.t.Fatal("nobody tells whether the old way works")
		}
	}
	tunnel := controllertest.TunnelNamed(w.cluster)
	if err := w.api.Get(w.t.Context(), request.NamespacedName, tunnel); err != nil {
		w.t.Fatal(err)
	}
	return tunnel
}

// probe is the last probe of the previous endpoint.
type probe struct {
	way     *previousEndpoint // nil: there is no previous endpoint
	asking  bool
	askedAt time.Time // of the last result
}

func (w *switchWorld) probe() probe {
	w.r.previous.mu.Lock()
	defer w.r.previous.mu.Unlock()
	way := w.r.previous.known[client.ObjectKeyFromObject(w.cluster)]
	if way == nil {
		return probe{}
	}
	return probe{way, way.asking, way.askedAt}
}

// waitProbe waits for the end of a probe, and returns it.
func (w *switchWorld) waitProbe() probe {
	w.t.Helper()
	for deadline := time.Now().Add(4 * probeTimeout); time.Now().Before(deadline); time.Sleep(time.Millisecond) {
		if p := w.probe(); !p.asking {
			return p
		}
	}
	w.t.Fatal("the probe of the previous endpoint does not end")
	return probe{}
}

func (w *switchWorld) check(tunnel *v1alpha1.Tunnel, kind, reason, says string) {
	w.t.Helper()
	c := apimeta.FindStatusCondition(tunnel.Status.Conditions, kind)
	if c == nil || c.Reason != reason || !strings.Contains(c.Message, says) {
		w.t.Errorf("condition %s is %+v, want %s and %q", kind, c, reason, says)
	}
}

func (w *switchWorld) endpoint() kubeconfig.Endpoint {
	w.t.Helper()
	secret := &corev1.Secret{}
	if err := w.api.Get(
		w.t.Context(), client.ObjectKey{Namespace: "prod", Name: "c1" + kubeconfig.Suffix}, secret,
	); err != nil {
		w.t.Fatal(err)
	}
	endpoint, err := kubeconfig.Read(secret, "c1")
	if err != nil {
		w.t.Fatal(err)
	}
	return endpoint
}

func TestASwitchCompletesWhenThePreviousEndpointIsUnreachable(t *testing.T) {
	port := freeport.TCP(t)
	old := fmt.Sprintf("https://localhost:%d", port)
	w := newSwitchWorld(t, controllertest.Config(), old, v1alpha1.KubeconfigSpec{Mode: v1alpha1.KubeconfigModeSNI})
	server := controllertest.ListenTLS(t, w.ca, fmt.Sprintf("127.0.0.1:%d", port), nil, "localhost")
	const kind = v1alpha1.ConditionKubeconfigSwitched

	tunnel := w.reconcileAfter(0)
	w.check(tunnel, kind, v1alpha1.ReasonOldWayWorks, old)
	if s := tunnel.Status.Kubeconfig; s.PreviousServer != old || s.ChangedAt == nil ||
		w.endpoint().Server != controllertest.AddressURL {
		t.Fatalf("on record is %+v, and the kubeconfig leads %v", s, w.endpoint())
	}
	w.check(w.reconcileAfter(time.Hour), kind, v1alpha1.ReasonOldWayWorks, "restart them")

	_ = server.Close()
	w.check(
		w.reconcileAfter(time.Minute), kind, v1alpha1.ReasonWaitingForManagers,
		"by "+w.clock.Add(50*time.Second).UTC().Format(time.RFC3339),
	)
	w.restart() // it has no memory, and therefore waits longer
	w.check(
		w.reconcileAfter(time.Minute), kind, v1alpha1.ReasonWaitingForManagers,
		"by "+w.clock.Add(110*time.Second).UTC().Format(time.RFC3339),
	)
	w.check(w.reconcileAfter(100*time.Second), kind, v1alpha1.ReasonWaitingForManagers, "")
	tunnel = w.reconcileAfter(11 * time.Second)
	w.check(tunnel, kind, v1alpha1.ReasonSwitched, "")
	if tunnel.Status.Kubeconfig.PreviousServer != "" {
		t.Errorf("on record is %+v", tunnel.Status.Kubeconfig)
	}
}

func TestANewKubeconfigIsSwitchedAtOnce(t *testing.T) {
	w := newSwitchWorld(
		t, controllertest.Config(), controllertest.OriginalServer,
		v1alpha1.KubeconfigSpec{Mode: v1alpha1.KubeconfigModeConnect},
	)
	w.cluster.Status.Initialization = clusterv1.ClusterInitializationStatus{}
	if err := w.api.Update(t.Context(), w.cluster); err != nil {
		t.Fatal(err)
	}
	w.check(w.reconcileAfter(0), v1alpha1.ConditionKubeconfigSwitched, v1alpha1.ReasonSwitched, "")
}

func TestANewKubeconfigIsSwitchedIfItsServerIsUnreachable(t *testing.T) {
	for _, alive := range []bool{false, true} {
		port := freeport.TCP(t)
		w := newSwitchWorld(
			t, controllertest.Config(), fmt.Sprintf("https://localhost:%d", port),
			v1alpha1.KubeconfigSpec{Mode: v1alpha1.KubeconfigModeConnect},
		)
		secret := &corev1.Secret{}
		if err := w.api.Get(
			t.Context(), client.ObjectKey{Namespace: "prod", Name: "c1" + kubeconfig.Suffix}, secret,
		); err != nil {
			t.Fatal(err)
		}
		secret.CreationTimestamp = metav1.NewTime(w.clock.Add(-justMade / 2))
		if err := w.api.Update(t.Context(), secret); err != nil {
			t.Fatal(err)
		}
		want := v1alpha1.ReasonSwitched
		if alive {
			controllertest.ListenTLS(t, w.ca, fmt.Sprintf("127.0.0.1:%d", port), nil, "localhost")
			want = v1alpha1.ReasonOldWayWorks
		}
		w.check(w.reconcileAfter(0), v1alpha1.ConditionKubeconfigSwitched, want, "")
	}
}

func TestThePreviousModeWorksAfterAChangeOfMode(t *testing.T) {
	w := newSwitchWorld(
		t, controllertest.Config(), fmt.Sprintf("https://localhost:%d", freeport.TCP(t)),
		v1alpha1.KubeconfigSpec{Mode: v1alpha1.KubeconfigModeConnect},
	)
	w.reconcileAfter(0)
	w.check(w.reconcileAfter(switchTime+time.Second), v1alpha1.ConditionKubeconfigSwitched, v1alpha1.ReasonSwitched, "")
	tunnel := controllertest.TunnelNamed(w.cluster)
	if err := w.api.Get(t.Context(), client.ObjectKeyFromObject(tunnel), tunnel); err != nil {
		t.Fatal(err)
	}
	tunnel.Spec.Kubeconfig.Mode = v1alpha1.KubeconfigModeSNI
	if err := w.api.Update(t.Context(), tunnel); err != nil {
		t.Fatal(err)
	}
	w.check(
		w.reconcileAfter(time.Second), v1alpha1.ConditionKubeconfigSwitched, v1alpha1.ReasonOldWayWorks, "the same gateways",
	)
}
