package controller

import (
	"context"
	"fmt"
	"log/slog"
	"net/http"
	"strings"
	"sync"
	"testing"
	"time"

	apimeta "k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/util/workqueue"
	"k8s.io/utils/ptr"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"
	runtimeconfig "sigs.k8s.io/controller-runtime/pkg/config"
	metrics "sigs.k8s.io/controller-runtime/pkg/metrics/server"

	"github.com/fairlead/fairlead/api/v1alpha1"
	"github.com/fairlead/fairlead/internal/kubetest"
	"github.com/fairlead/fairlead/pkg/controller/controllertest"
	"github.com/fairlead/fairlead/pkg/controller/objects"
	"github.com/fairlead/fairlead/pkg/controller/reconciler"
	"github.com/fairlead/fairlead/pkg/controller/records"
	"github.com/fairlead/fairlead/pkg/controller/status"
	reportview "github.com/fairlead/fairlead/pkg/report/view"
)

// Of package status: one of fairShare turns goes to the write that waits longest, and at most ahead turns are not used
// yet.
const fairShare, ahead = 4, 16

// alone is an apiserver whose Tunnels only a test writes.
var alone = kubetest.Server{CRDs: true}

// fleet is many Tunnels, with a fake view and only the controller of live state.
type fleet struct {
	t       *testing.T
	admin   client.WithWatch
	config  *rest.Config
	tunnels []*v1alpha1.Tunnel
	changed workqueue.TypedInterface[string]
	patches patches

	mu    sync.Mutex
	live  map[string]reportview.Live // by id
	asked map[string]int             // how often
}

// Tunnel implements status.View.
func (f *fleet) Tunnel(id string) reportview.Live {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.asked[id]++
	return f.live[id]
}

// patches records when the controller wrote what.
type patches struct {
	mu  sync.Mutex
	all []patch
}

type patch struct {
	at   time.Time
	what string // the path
}

func (p *patches) wrap(next http.RoundTripper) http.RoundTripper {
	return roundTripper(func(r *http.Request) (*http.Response, error) {
		if r.Method == http.MethodPatch {
			p.mu.Lock()
			p.all = append(p.all, patch{time.Now(), r.URL.Path})
			p.mu.Unlock()
		}
		return next.RoundTrip(r)
	})
}

// since returns the patches after the first n.
func (p *patches) since(n int) []patch {
	p.mu.Lock()
	defer p.mu.Unlock()
	return append([]patch(nil), p.all[n:]...)
}

type roundTripper func(*http.Request) (*http.Response, error)

// RoundTrip implements http.RoundTripper.
func (r roundTripper) RoundTrip(request *http.Request) (*http.Response, error) { return r(request) }

// fleetSize Tunnels share fleetRate writes a second, far less than an apiserver can take. fleetSick of them become
// worse.
const fleetSize, fleetRate, fleetSick = 160, 40, 20

func newFleetWorld(t *testing.T) *fleet {
	t.Helper()
	config := alone.Config(t)
	config.QPS = -1
	admin, err := kubetest.NewClient(config)
	if err != nil {
		t.Fatal(err)
	}
	if err := kubetest.Deploy(t.Context(), admin, "namespace.yaml", "controller.yaml"); err != nil {
		t.Fatal(err)
	}
	f := &fleet{
		t:       t,
		admin:   admin,
		config:  config,
		changed: workqueue.NewTyped[string](),
		live:    map[string]reportview.Live{},
		asked:   map[string]int{},
	}
	ns := kubetest.NewNamespace(t, admin)
	for i := range fleetSize {
		cluster := kubetest.Cluster(ns, fmt.Sprintf("c%03d", i))
		if err := admin.Create(t.Context(), cluster); err != nil {
			t.Fatal(err)
		}
		tunnel := controllertest.TunnelNamed(cluster)
		objects.CompleteTunnel(tunnel, cluster)
		if err := admin.Create(t.Context(), tunnel); err != nil {
			t.Fatal(err)
		}
		tunnel.Status.ID = tunnel.Spec.ID
		if err := admin.Status().Update(t.Context(), tunnel); err != nil {
			t.Fatal(err)
		}
		f.tunnels = append(f.tunnels, tunnel)
	}
	return f
}

// start runs the controller until the test ends.
func (f *fleet) start() {
	f.t.Helper()
	scheme, err := NewScheme()
	if err != nil {
		f.t.Fatal(err)
	}
	own := controllertest.Config()
	own.StatusWrites = fleetRate
	config := kubetest.Impersonate(f.config, controllertest.ControllerUser)
	config.Wrap(f.patches.wrap)
	mgr, err := ctrl.NewManager(config, ctrl.Options{
		Scheme: scheme, Cache: CacheOptions(own), Metrics: metrics.Options{BindAddress: "0"},
		Controller: runtimeconfig.Controller{SkipNameValidation: ptr.To(true)},
	})
	if err != nil {
		f.t.Fatal(err)
	}
	d := reconciler.Deps{
		Config:   own,
		Client:   mgr.GetClient(),
		Live:     mgr.GetAPIReader(),
		Recorder: mgr.GetEventRecorder("test"),
		Log:      slog.New(slog.DiscardHandler),
		Now:      time.Now,
	}
	ended := records.NewEndedTunnels(d.Client, d.Live, own.Namespace, time.Now)
	if err := reconciler.AddIndexes(mgr); err != nil {
		f.t.Fatal(err)
	}
	if err := status.New(d, f, ended).Setup(mgr, f.changed); err != nil {
		f.t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(f.t.Context())
	done := make(chan error, 1)
	go func() { done <- mgr.Start(ctx) }()
	f.t.Cleanup(func() {
		cancel()
		if err := <-done; err != nil {
			f.t.Error(err)
		}
	})
}

// tell changes the live state of some Tunnels and enqueues them.
func (f *fleet) tell(tunnels []*v1alpha1.Tunnel, edges ...reportview.Edge) {
	f.mu.Lock()
	for _, t := range tunnels {
		f.live[t.Spec.ID] = reportview.Live{
			Known:    true,
			Gateways: []string{"gateway-0", "gateway-1", "gateway-2"},
			Edges:    edges,
		}
		f.asked[t.Spec.ID] = 0
	}
	f.mu.Unlock()
	for _, t := range tunnels {
		f.changed.Add(t.Spec.ID)
	}
}

// seen waits until all Tunnels were reconciled since the last call of tell.
func (f *fleet) seen() {
	f.t.Helper()
	controllertest.Eventually(f.t, func() error {
		f.mu.Lock()
		defer f.mu.Unlock()
		for id, n := range f.asked {
			if n == 0 {
				return fmt.Errorf("nobody has asked for %s", id)
			}
		}
		return nil
	})
}

// more waits until n more writes were sent.
func (f *fleet) more(writes int) {
	f.t.Helper()
	begin := len(f.patches.since(0))
	controllertest.Eventually(f.t, func() error {
		if n := len(f.patches.since(begin)); n < writes {
			return fmt.Errorf("%d of %d writes", n, writes)
		}
		return nil
	})
}

// right waits until the status of some Tunnels and of their Clusters is right.
func (f *fleet) right(tunnels []*v1alpha1.Tunnel, status metav1.ConditionStatus, gateways int) {
	f.t.Helper()
	controllertest.Eventually(f.t, func() error {
		for _, tunnel := range tunnels {
			now, cluster := &v1alpha1.Tunnel{}, &clusterv1.Cluster{}
			for _, o := range []client.Object{now, cluster} {
				if err := f.admin.Get(f.t.Context(), client.ObjectKeyFromObject(tunnel), o); err != nil {
					return err
				}
			}
			if !apimeta.IsStatusConditionPresentAndEqual(now.Status.Conditions, v1alpha1.ConditionTunnelReady, status) ||
				!apimeta.IsStatusConditionPresentAndEqual(cluster.Status.Conditions, v1alpha1.ClusterConditionTunnelReady, status) {
				return fmt.Errorf("%s says %+v, its Cluster %+v", tunnel.Name, now.Status.Conditions, cluster.Status.Conditions)
			}
			if len(now.Status.Edges) != 1 || len(now.Status.Edges[0].Gateways) != gateways {
				return fmt.Errorf("%s has the edges %+v", tunnel.Name, now.Status.Edges)
			}
		}
		return nil
	})
}

// TestStatusOfAFleetIsWrittenAtABoundedRate has a real apiserver count the writes.
func TestStatusOfAFleetIsWrittenAtABoundedRate(t *testing.T) {
	f := newFleetWorld(t)
	all, sick, others := f.tunnels, f.tunnels[fleetSize-fleetSick:], f.tunnels[:fleetSize-fleetSick]
	cpu, before := f.metric("process_cpu_seconds_total"), f.written()
	f.start()
	f.tell(all, controllertest.Connected("edge-a", "gateway-0"))
	f.right(all, metav1.ConditionTrue, 1)
	first := f.written() - before
	t.Logf("%d Tunnels and Clusters were written with %.0f writes, %.1f ms of the apiserver's processor each",
		fleetSize, first, 1000*(f.metric("process_cpu_seconds_total")-cpu)/first)
	if got := len(f.patches.since(0)); float64(got) != first {
		t.Errorf("the apiserver has counted %.0f writes, the controller sent %d", first, got)
	}

	f.tell(all, controllertest.Connected("edge-a", "gateway-0")) // nothing has changed
	f.seen()
	if n := f.written() - before - first; n > 0 {
		t.Errorf("%.0f writes although nothing has changed", n)
	}

	const changes = 6
	start := len(f.patches.since(0))
	for i := range changes {
		f.tell(all, controllertest.Connected("edge-a", []string{"gateway-0", "gateway-1", "gateway-2"}[:1+(i+1)%3]...))
		f.more(fleetRate / 4)
	}
	f.tell(all, controllertest.Connected("edge-a", "gateway-0", "gateway-1"))
	f.seen()
	worseFrom := len(f.patches.since(0))
	f.tell(sick, controllertest.Connected("edge-a"))
	f.right(sick, metav1.ConditionFalse, 0)
	meanwhile := f.patches.since(worseFrom)
	f.right(others, metav1.ConditionTrue, 2)
	f.priority(sick, meanwhile)
	sent := f.patches.since(start)
	t.Logf("%d changes of %d Tunnels came to %d writes", changes+1, fleetSize, len(sent))
	if len(sent) > 4*(fleetSize+fleetSick) { // each may be written once before the last change, and has a Cluster
		t.Errorf("what changes while it waits is not written together: %d writes", len(sent))
	}
	f.bounded()
}

// priority checks that Tunnels that became worse did not wait for all others.
func (f *fleet) priority(sick []*v1alpha1.Tunnel, meanwhile []patch) {
	f.t.Helper()
	last := 0
	for i, p := range meanwhile {
		for _, tunnel := range sick {
			if strings.HasSuffix(p.what, "/tunnels/"+tunnel.Name+"/status") {
				last = i
			}
		}
	}
	f.t.Logf("of %d that got worse the last was written after %d writes", len(sick), last)
	// Each is two writes, every fourth turn is another's with up to two, and some were already running.
	if most := 2*len(sick) + 2*len(sick)/fairShare + 2*ahead; last > 2*most {
		f.t.Errorf("those that got worse were written among the first %d writes, want %d or less", last, 2*most)
	}
}

// bounded checks that writes never exceeded the rate plus the burst.
func (f *fleet) bounded() {
	f.t.Helper()
	all := f.patches.since(0)
	worst := 0.0
	for i := range all {
		for j := i; j < len(all); j++ {
			within := all[j].at.Sub(all[i].at).Seconds()
			worst = max(worst, float64(j-i+1)-fleetRate*within)
		}
	}
	f.t.Logf("%d writes, at most %.0f more than %d a second", len(all), worst, fleetRate)
	const late = 1 // s, by which the machine may delay writes, which then arrive at once
	if most := fleetRate + 2*ahead + fleetRate*late; worst > float64(most) {
		f.t.Errorf("%.0f writes more than %d a second, want %d at most", worst, fleetRate, most)
	}
}
