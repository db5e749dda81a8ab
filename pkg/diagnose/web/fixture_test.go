package web_test

import (
	"context"
	"fmt"
	"log/slog"
	"maps"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/fairlead/fairlead/api/v1alpha1"
	"github.com/fairlead/fairlead/pkg/diagnose/check"
	"github.com/fairlead/fairlead/pkg/diagnose/web"
	"github.com/fairlead/fairlead/pkg/model"
)

// objects are Clusters and Tunnels in memory, as a cache has them.
type objects struct {
	mu      sync.Mutex
	tunnels map[model.Key]*v1alpha1.Tunnel
}

// Get implements client.Reader. Each Tunnel has a Cluster.
func (o *objects) Get(_ context.Context, key client.ObjectKey, into client.Object, _ ...client.GetOption) error {
	o.mu.Lock()
	defer o.mu.Unlock()
	t := o.tunnels[model.Key(key)]
	if t == nil {
		return apierrors.NewNotFound(schema.GroupResource{Resource: "tunnels"}, key.Name)
	}
	switch into := into.(type) {
	case *v1alpha1.Tunnel:
		t.DeepCopyInto(into)
	case *clusterv1.Cluster:
		ofTunnel(t).DeepCopyInto(into)
	default:
		return fmt.Errorf("no %T here", into)
	}
	return nil
}

// List implements client.Reader.
func (o *objects) List(_ context.Context, into client.ObjectList, _ ...client.ListOption) error {
	o.mu.Lock()
	defer o.mu.Unlock()
	for _, t := range o.tunnels {
		switch into := into.(type) {
		case *v1alpha1.TunnelList:
			into.Items = append(into.Items, *t)
		case *clusterv1.ClusterList:
			into.Items = append(into.Items, *ofTunnel(t))
		}
	}
	return nil
}

func ofTunnel(t *v1alpha1.Tunnel) *clusterv1.Cluster {
	c := &clusterv1.Cluster{ObjectMeta: *t.ObjectMeta.DeepCopy()}
	c.Labels = map[string]string{v1alpha1.TunnelLabel: v1alpha1.TunnelEnabled}
	c.Spec.ControlPlaneEndpoint = clusterv1.APIEndpoint{Host: "10.20.0.10", Port: 6443}
	return c
}

// change changes a Tunnel, or deletes it if do returns nil.
func (o *objects) change(key model.Key, do func(t *v1alpha1.Tunnel) *v1alpha1.Tunnel) {
	o.mu.Lock()
	defer o.mu.Unlock()
	if t := do(o.tunnels[key].DeepCopy()); t != nil {
		o.tunnels[key] = t
	} else {
		delete(o.tunnels, key)
	}
}

// since is when everything in a test's fleet began.
var since = time.Now().Add(-90 * time.Hour).Truncate(time.Second)

// healthy returns a Tunnel with two edges whose conditions are all True.
func healthy(namespace, name string) *v1alpha1.Tunnel {
	t := &v1alpha1.Tunnel{
		ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: name, CreationTimestamp: metav1.NewTime(since)},
	}
	t.Spec.ID = strings.Repeat("a", 20) + name
	t.Status.ID, t.Status.Hostname = t.Spec.ID, name+"."+namespace+".tunnels.example.com"
	t.Status.Names = []string{t.Status.Hostname}
	t.Status.Kubeconfig = v1alpha1.KubeconfigStatus{
		Mode:     v1alpha1.KubeconfigModeConnect,
		Server:   "https://kubernetes:6443",
		ProxyURL: "http://gateway.fairlead-system.svc:3128",
	}
	for i := range 2 {
		t.Status.Edges = append(t.Status.Edges, edge(fmt.Sprintf("%s-%d", name, i)))
	}
	for _, c := range []struct{ kind, reason, message string }{
		{v1alpha1.ConditionAccepted, v1alpha1.ReasonAccepted, "every name is served"},
		{v1alpha1.ConditionKubeconfigReady, v1alpha1.ReasonRewritten, "the kubeconfig leads through the tunnel"},
		{v1alpha1.ConditionEnrolled, v1alpha1.ReasonEnrolled, "2 edges have a valid certificate"},
		{v1alpha1.ConditionTunnelReady, v1alpha1.ReasonConnected, "2 edges are connected to every gateway"},
		{v1alpha1.ConditionAPIServerReachable, v1alpha1.ReasonReachable, "2 edges reach the apiserver"},
		{v1alpha1.ConditionReady, v1alpha1.ReasonReady, "clients reach the apiserver"},
	} {
		t.Status.Conditions = append(t.Status.Conditions, metav1.Condition{
			Type: c.kind, Status: metav1.ConditionTrue, Reason: c.reason, Message: c.message,
			LastTransitionTime: metav1.NewTime(since.Add(time.Hour)),
		})
	}
	return t
}

func edge(name string) v1alpha1.EdgeStatus {
	seen, ends := metav1.NewTime(time.Now().Add(-time.Minute)), metav1.NewTime(since.AddDate(1, 0, 0))
	return v1alpha1.EdgeStatus{
		NodeID: "CN=" + name, Host: "machine-" + name, EnrolledAt: metav1.NewTime(since),
		CertificateNotAfter: metav1.NewTime(time.Now().Add(17 * time.Hour)),
		Gateways: []v1alpha1.EdgeGatewayStatus{
			{Name: "gateway-0", Tunnels: 4},
			{Name: "gateway-1", Tunnels: 4},
		}, LastSeen: &seen, Form: "Process", Version: "v0.7.0",
		APIServer: &v1alpha1.EdgeAPIServerStatus{
			Address:             "10.20.0.10:6443",
			Healthy:             true,
			Version:             "v1.37.1",
			CertificateNotAfter: &ends,
		},
	}
}

// broken returns a Tunnel without a tunnel at any gateway.
func broken(t *v1alpha1.Tunnel, message string) *v1alpha1.Tunnel {
	for i := range t.Status.Conditions {
		if c := &t.Status.Conditions[i]; c.Type == v1alpha1.ConditionTunnelReady || c.Type == v1alpha1.ConditionReady {
			c.Status, c.Reason, c.Message, c.LastTransitionTime = metav1.ConditionFalse, v1alpha1.ReasonNoTunnel, message,
				metav1.NewTime(
					time.Now().Add(-7*time.Minute),
				)
		}
	}
	for i := range t.Status.Edges {
		t.Status.Edges[i].Gateways = nil
	}
	return t
}

// newFleet returns n Clusters in 40 namespaces: one in 50 is broken and one in 20 has a warning.
func newFleet(n int) *objects {
	o := &objects{tunnels: map[model.Key]*v1alpha1.Tunnel{}}
	sites := []string{"berlin", "lyon", "osaka", "porto", "quito", "tartu", "turin", "utrecht"}
	for i := range n {
		namespace := fmt.Sprintf("%s-%d", sites[i%len(sites)], i/8%5+1)
		t := healthy(namespace, fmt.Sprintf("store-%04d", i))
		switch {
		case i%50 == 7:
			broken(t, "no edge has a tunnel to any of the gateways gateway-0, gateway-1")
		case i%20 == 3:
			t.Status.Edges[1].LastError = "the proxy proxy.store.example:3128 answers 407: its credentials are wrong"
		case i%400 == 11:
			t.CreationTimestamp = metav1.Now()
			t.Status = v1alpha1.TunnelStatus{}
		}
		if i%3 == 0 {
			t.Status.Kubeconfig.Mode = v1alpha1.KubeconfigModeSNI
		}
		o.tunnels[model.Key{Namespace: namespace, Name: t.Name}] = t
	}
	return o
}

// first is the name of the first Cluster that a test is about.
func (o *objects) first(is func(t *v1alpha1.Tunnel) bool) model.Key {
	o.mu.Lock()
	defer o.mu.Unlock()
	keys := slices.SortedFunc(
		maps.Keys(o.tunnels), func(a, b model.Key) int { return strings.Compare(a.String(), b.String()) },
	)
	for _, key := range keys {
		if is(o.tunnels[key]) {
			return key
		}
	}
	return model.Key{}
}

// quick shortens the waits that tests do not need.
var quick = web.Timing{Gather: 20 * time.Millisecond, Beat: 200 * time.Millisecond, Check: 300 * time.Millisecond}

// newPage returns a page of a fleet.
func newPage(t *testing.T, fleet *objects, c web.Config) *web.Page {
	t.Helper()
	c.Domain, c.Objects, c.Log = "tunnels.example.com", fleet, slog.New(slog.DiscardHandler)
	if c.Timing == (web.Timing{}) {
		c.Timing = quick
	}
	p, err := web.New(c)
	if err != nil {
		t.Fatal(err)
	}
	p.Fill(t.Context(), fleet)
	return p
}

// report returns the report of a Cluster without a tunnel at any gateway, from the position of an xds-server.
func report(_ context.Context, key client.ObjectKey) check.Report {
	r := check.Report{
		Namespace: key.Namespace,
		Name:      key.Name,
		At:        time.Now().UTC(),
		Seconds:   0.8,
		Status:    check.Broken,
		First:     check.HopTunnels,
	}
	details := map[check.ID]string{
		check.HopCluster: "opted in, and not paused", check.HopTunnel: "accepted: " + key.Name + "." + key.Namespace +
			".tunnels.example.com",
		check.HopName: "gateway.fairlead-system.svc is 10.96.12.7", check.HopPort: "10.96.12.7:3128 takes connections",
		check.HopRoute: "accepted by gateway-0, gateway-1", check.HopEdge: "2 edges have certificates, the first of which " +
			"ends in 16 h",
		check.HopServers: "a controller leads",
	}
	for _, hop := range check.Hops() {
		result := check.Result{ID: hop.ID, Title: hop.Title, Status: check.OK, Detail: details[hop.ID]}
		switch hop.ID {
		case check.HopKubeconfig, check.HopAuthentication, check.HopWatch:
			result.Status, result.Detail, result.Cure = check.Unknown, "Secrets may not be read from here", "run `fairlead "+
				"check` where a kubeconfig of the management cluster is"
		case check.HopTunnels:
			result.Status, result.Detail = check.Broken, "no gateway has a tunnel to this workload cluster"
			result.Cause, result.Cure = "no edge runs, or none reaches the gateways' public address", "on a machine of an "+
				"edge look at `journalctl -u fairlead-edge-agent`; it must reach gw.example.com:443"
		case check.HopHandshake, check.HopAPIServer:
			result.Status = check.Skipped
		}
		r.Hops = append(r.Hops, result)
	}
	return r
}
