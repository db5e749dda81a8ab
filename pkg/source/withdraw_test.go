package source_test

import (
	"fmt"
	"sync/atomic"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"k8s.io/apimachinery/pkg/api/resource"
	"k8s.io/utils/ptr"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"

	"github.com/fairlead/fairlead/api/v1alpha1"
)

// No controller runs in these tests, so they show what an xds-server does without one: docs/architecture.md has the
// table.

func TestGrantsWaitForTheController(t *testing.T) {
	bandwidth := resource.MustParse("10Mi")
	const before = "[] [10.0.0.1:6443] {0 0 0}" // as printed below
	for name, tc := range map[string]struct {
		ask  func(*v1alpha1.Tunnel)
		want string // names, addresses and limits after they are on record
	}{
		"an extra name": {
			func(t *v1alpha1.Tunnel) { t.Spec.ExtraNames = []string{"api.example.com"} },
			"[api.example.com] [10.0.0.1:6443] {0 0 0}",
		},
		"another apiserver": {
			func(t *v1alpha1.Tunnel) { t.Spec.APIServer.Address = "10.9.9.9" },
			"[] [10.9.9.9:6443] {0 0 0}",
		},
		"a second apiserver": {
			func(t *v1alpha1.Tunnel) { t.Spec.APIServer.Others = []v1alpha1.APIServerAddress{{Address: "10.9.9.9"}} },
			"[] [10.0.0.1:6443 10.9.9.9:6443] {0 0 0}",
		},
		"other limits": {
			func(t *v1alpha1.Tunnel) { t.Spec.Limits = v1alpha1.LimitsSpec{Connections: 7, Bandwidth: &bandwidth} },
			"[] [10.0.0.1:6443] {7 0 10485760}",
		},
	} {
		t.Run(name, func(t *testing.T) {
			b := newBed(t)
			_, tunnel := b.pair(t, "c1", "a")
			b.run(t)
			b.first(t, map[string][]string{"c1": none})
			served := func() string {
				return fmt.Sprintf("%v %v %v", extra(b.served["c1"]), b.addresses["c1"], b.limits["c1"])
			}
			b.update(t, tunnel, func() { tc.ask(tunnel) })
			b.pair(t, "marker", "b")
			b.await(t, map[string][]string{"c1": none, "marker": none})
			if got := served(); b.addresses["c1"] != "" && got != before {
				t.Errorf("granted without the controller: %s", got)
			}
			b.record(t, tunnel)
			for served() != tc.want {
				b.take(t, b.next(t)) // take has a deadline
			}
		})
	}
}

// extra returns the names of a workload cluster after its hostname, which is the first.
func extra(names []string) []string { return names[min(1, len(names)):] }

func TestWithdrawalsDoNotWaitForTheController(t *testing.T) {
	for name, tc := range map[string]struct {
		withdraw    func(*testing.T, *bed, *clusterv1.Cluster, *v1alpha1.Tunnel)
		want        map[string][]string
		wantRevoked []string
	}{
		"an edge is revoked": {
			withdraw: func(t *testing.T, b *bed, _ *clusterv1.Cluster, tunnel *v1alpha1.Tunnel) {
				b.update(t, tunnel, func() { tunnel.Spec.RevokedEdges = []string{"edge-stolen"} })
				for len(b.revoked["c1"]) == 0 {
					b.take(t, b.next(t))
				}
			},
			want: map[string][]string{"c1": {"api.example.com"}}, wantRevoked: []string{"edge-stolen"},
		},
		"an extra name is removed": {
			withdraw: func(t *testing.T, b *bed, _ *clusterv1.Cluster, tunnel *v1alpha1.Tunnel) {
				b.update(t, tunnel, func() { tunnel.Spec.ExtraNames = nil })
			},
			want: map[string][]string{"c1": none},
		},
		"the mode needs no tunnel": {
			withdraw: func(t *testing.T, b *bed, _ *clusterv1.Cluster, tunnel *v1alpha1.Tunnel) {
				b.update(t, tunnel, func() {
					tunnel.Spec.Kubeconfig = v1alpha1.KubeconfigSpec{
						Mode:   v1alpha1.KubeconfigModeAddress,
						Server: "https://10.0.0.1:6443",
					}
				})
			},
			want: map[string][]string{},
		},
		"the Cluster is deleted": {
			withdraw: func(t *testing.T, b *bed, cluster *clusterv1.Cluster, _ *v1alpha1.Tunnel) { b.delete(t, cluster) },
			want:     map[string][]string{},
		},
		"the Cluster is deleted while it is paused: it is moved": {
			withdraw: func(t *testing.T, b *bed, cluster *clusterv1.Cluster, _ *v1alpha1.Tunnel) {
				b.update(t, cluster, func() { cluster.Spec.Paused = ptr.To(true) })
				b.delete(t, cluster)
			},
			want: map[string][]string{},
		},
		"the Cluster is another one of that name": {
			withdraw: func(t *testing.T, b *bed, cluster *clusterv1.Cluster, _ *v1alpha1.Tunnel) {
				b.delete(t, cluster)
				b.cluster(t, "c1")
			},
			want: map[string][]string{},
		},
		"the Tunnel has another owner": {
			withdraw: func(t *testing.T, b *bed, _ *clusterv1.Cluster, tunnel *v1alpha1.Tunnel) {
				b.update(t, tunnel, func() { tunnel.OwnerReferences = nil })
			},
			want: map[string][]string{},
		},
	} {
		t.Run(name, func(t *testing.T) {
			b := newBed(t)
			cluster, tunnel := b.pair(t, "c1", "a", "api.example.com")
			b.run(t)
			b.first(t, map[string][]string{"c1": {"api.example.com"}})
			record := tunnel.Status.DeepCopy()
			tc.withdraw(t, b, cluster, tunnel)
			b.await(t, tc.want)
			if diff := cmp.Diff(tc.wantRevoked, b.revoked["c1"]); diff != "" {
				t.Errorf("revoked:\n%s", diff)
			}
			if err := b.Get(t.Context(), keyOf(tunnel), tunnel); err != nil {
				t.Fatal(err)
			}
			if diff := cmp.Diff(*record, tunnel.Status); diff != "" {
				t.Errorf("somebody has written the status, so this shows nothing:\n%s", diff)
			}
		})
	}
}

// TestAStartWaitsForRecordsToBeComplete is an upgrade: the earlier controller recorded only the names.
func TestAStartWaitsForRecordsToBeComplete(t *testing.T) {
	b := newBed(t)
	_, tunnel := b.pair(t, "c1", "a")
	served := tunnel.Status.Served
	tunnel.Status.Served = nil
	b.writeStatus(t, tunnel)
	b.run(t)
	if u := b.next(t); u.ended == nil {
		t.Fatalf("got %+v before the record of ended tunnels", u)
	}
	select {
	case u := <-b.updates:
		t.Fatalf("published before the record was complete: %+v", u)
	case <-time.After(3 * time.Second):
	}
	tunnel.Status.Served = served
	b.writeStatus(t, tunnel)
	if u := b.next(t); !u.all || len(u.served["c1"]) != 1 {
		t.Errorf("got %+v first", u)
	}
}

// TestAStartDoesNotWaitForOneTunnel has Tunnels that a namespace owner keeps from ever being complete: by a finalizer
// on one that is being deleted, and by an owner that is not a Cluster.
func TestAStartDoesNotWaitForOneTunnel(t *testing.T) {
	b := newBed(t)
	b.pair(t, "victim", "a")
	_, deleted := b.pair(t, "deleted", "b")
	b.update(t, deleted, func() { deleted.Finalizers = []string{"tenant.example.com/hold"} })
	defer func() { b.update(t, deleted, func() { deleted.Finalizers = nil }) }()
	_, stuck := b.pair(t, "stuck", "c")
	for _, tunnel := range []*v1alpha1.Tunnel{deleted, stuck} {
		tunnel.Status.Served = nil
		b.writeStatus(t, tunnel)
	}
	b.delete(t, deleted)
	var ahead atomic.Int64
	b.config.Now = func() time.Time { return time.Now().Add(time.Duration(ahead.Load())) }
	b.run(t)
	if u := b.next(t); u.ended == nil {
		t.Fatalf("got %+v before the record of ended tunnels", u)
	}
	time.AfterFunc(2*time.Second, func() { ahead.Store(int64(time.Minute)) })
	if u := b.next(t); !u.all || u.served["victim"] == nil || u.served["stuck"] != nil {
		t.Errorf("published: %+v", u)
	}
}

// TestAStartWithoutAnyCompleteRecordPublishesNothing: the new controller does not run, and the earlier xds-servers
// continue to serve.
func TestAStartWithoutAnyCompleteRecordPublishesNothing(t *testing.T) {
	b := newBed(t)
	for _, name := range []string{"c1", "c2"} {
		_, tunnel := b.pair(t, name, name[1:])
		tunnel.Status.Served = nil
		b.writeStatus(t, tunnel)
	}
	var ahead atomic.Int64
	b.config.Now = func() time.Time { return time.Now().Add(time.Duration(ahead.Load())) }
	b.run(t)
	if u := b.next(t); u.ended == nil {
		t.Fatalf("got %+v before the record of ended tunnels", u)
	}
	ahead.Store(int64(time.Hour))
	select {
	case u := <-b.updates:
		t.Errorf("published: %+v", u)
	case <-time.After(4 * time.Second):
	}
}

// TestAPreparedTunnelExpiresWithoutAnEvent changes nothing but the time.
func TestAPreparedTunnelExpiresWithoutAnEvent(t *testing.T) {
	b := newBed(t)
	tunnel := prepared(time.Now().Add(4 * time.Second).Format(time.RFC3339))
	tunnel.Namespace, tunnel.Spec.ExtraNames = b.namespace, nil
	if err := b.Create(t.Context(), tunnel); err != nil {
		t.Fatal(err)
	}
	tunnel.Status.ID = id("a") // which it may claim then
	b.writeStatus(t, tunnel)
	b.record(t, tunnel)
	b.run(t)
	b.first(t, map[string][]string{"c1": none})
	b.await(t, map[string][]string{})
}

func TestARecordOfAnotherInstallationIsNotServed(t *testing.T) {
	for name, forge := range map[string]func(*v1alpha1.TunnelStatus){
		"another hostname":        func(s *v1alpha1.TunnelStatus) { s.Hostname = "control." + string(domain) },
		"another tunnel domain":   func(s *v1alpha1.TunnelStatus) { s.Hostname = "c1.prod.tunnels.example.org" },
		"no apiserver":            func(s *v1alpha1.TunnelStatus) { s.Served.APIServers = nil },
		"an address that is none": func(s *v1alpha1.TunnelStatus) { s.Served.APIServers = []string{"a b:1"} },
		"another Cluster":         func(s *v1alpha1.TunnelStatus) { s.Served.ClusterUID = "another" },
		"nothing that is served":  func(s *v1alpha1.TunnelStatus) { s.Served, s.Names = nil, nil },
		"another id":              func(s *v1alpha1.TunnelStatus) { s.ID = id("z") },
	} {
		t.Run(name, func(t *testing.T) {
			b := newBed(t)
			_, tunnel := b.pair(t, "c1", "a")
			b.pair(t, "c2", "b")
			forge(&tunnel.Status)
			b.writeStatus(t, tunnel)
			b.run(t)
			b.first(t, map[string][]string{"c2": none})
		})
	}
	b := newBed(t)
	_, tunnel := b.pair(t, "c1", "a", "control."+string(domain))
	tunnel.Status.Names = append(tunnel.Status.Names, "control."+string(domain))
	b.writeStatus(t, tunnel)
	b.run(t)
	b.first(t, map[string][]string{"c1": none})
}
