package network

import (
	"context"
	"fmt"
	"log/slog"
	"net/netip"
	"slices"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/tools/events"
	"k8s.io/utils/ptr"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/controller/priorityqueue"
	"sigs.k8s.io/controller-runtime/pkg/event"
	"sigs.k8s.io/controller-runtime/pkg/handler"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	"github.com/fairlead/fairlead/api/v1alpha1"
	"github.com/fairlead/fairlead/internal/kubetest"
	"github.com/fairlead/fairlead/pkg/controller/controllertest"
	"github.com/fairlead/fairlead/pkg/controller/reconciler"
	"github.com/fairlead/fairlead/pkg/controller/records"
	"github.com/fairlead/fairlead/pkg/controller/tunnel"
	"github.com/fairlead/fairlead/pkg/decision"
	"github.com/fairlead/fairlead/pkg/enrol"
)

const heldID = "site1000000000000000"

// servedSite returns the network site1 of a Cluster, and its Tunnel with a decision on record for a Cluster with this
// UID.
func servedSite(cluster *clusterv1.Cluster, recorded types.UID) (*v1alpha1.RemoteNetwork, *v1alpha1.Tunnel) {
	site := &v1alpha1.RemoteNetwork{
		ObjectMeta: metav1.ObjectMeta{Namespace: cluster.Namespace, Name: "site1", UID: "uid-of-site1"},
		Spec:       v1alpha1.RemoteNetworkSpec{ClusterName: cluster.Name, CIDRs: []string{"10.2.0.0/16"}},
	}
	own := &v1alpha1.Tunnel{
		ObjectMeta: metav1.ObjectMeta{
			Namespace: cluster.Namespace, Name: "site1.network", UID: "uid-of-the-tunnel",
			Finalizers: []string{v1alpha1.TunnelFinalizer},
			OwnerReferences: []metav1.OwnerReference{
				*metav1.NewControllerRef(site, v1alpha1.GroupVersion.WithKind("RemoteNetwork")),
			},
		},
		Spec: v1alpha1.TunnelSpec{ID: heldID, Network: "site1"},
		Status: v1alpha1.TunnelStatus{ID: heldID, Served: &v1alpha1.ServedStatus{
			ClusterUID: recorded,
			Network:    &v1alpha1.ServedNetwork{ClusterName: cluster.Name, CIDRs: []string{"10.2.0.0/16"}},
		}},
	}
	return site, own
}

// reconcileOnce reconciles a Tunnel with an in-memory apiserver, in an installation where gateways may dial apiservers
// in these networks.
func reconcileOnce(
	t *testing.T, api client.Client, own *v1alpha1.Tunnel, apiservers ...netip.Prefix,
) reconcile.Result {
	t.Helper()
	d := reconciler.Deps{
		Config: controllertest.Config(), Client: api, Live: api, Log: slog.New(slog.DiscardHandler), Now: time.Now,
		Recorder: events.NewFakeRecorder(10),
	}
	d.Config.APIServerCIDRs = apiservers
	tunnels := tunnel.New(d, records.NewEndedTunnels(api, api, d.Config.Namespace, time.Now), nil, nil)
	request := reconcile.Request{NamespacedName: client.ObjectKeyFromObject(own)}
	result, err := New(d, tunnels).Reconcile(t.Context(), request)
	if err != nil {
		t.Fatal(err)
	}
	return result
}

// ended reports whether a Tunnel is gone, and whether its edges are denied.
func ended(t *testing.T, api client.Client, own *v1alpha1.Tunnel) (gone, denied bool) {
	t.Helper()
	err := api.Get(t.Context(), client.ObjectKeyFromObject(own), &v1alpha1.Tunnel{})
	if client.IgnoreNotFound(err) != nil {
		t.Fatal(err)
	}
	record := &corev1.ConfigMap{}
	key := client.ObjectKey{Namespace: controllertest.Config().Namespace, Name: v1alpha1.EndedTunnelsConfigMapName}
	if err := api.Get(t.Context(), key, record); client.IgnoreNotFound(err) != nil {
		t.Fatal(err)
	}
	_, denied = record.Data[own.Spec.ID]
	return err != nil, denied
}

// TestTheTunnelOfAnEarlierClusterEnds: a RemoteNetwork may outlive its Cluster, and the controller may see only the
// next Cluster of that name. The edges of the earlier one must not serve it.
func TestTheTunnelOfAnEarlierClusterEnds(t *testing.T) {
	for name, tc := range map[string]struct {
		recorded types.UID
		paused   bool
		ends     bool
	}{
		"the Cluster on record is an earlier one":                        {recorded: "a", ends: true},
		"the Cluster on record is an earlier one, and the new is paused": {recorded: "a", paused: true, ends: true},
		"the Cluster on record is this one":                              {recorded: "b"},
		"no Cluster is on record":                                        {},
	} {
		t.Run(name, func(t *testing.T) {
			cluster := kubetest.Cluster("prod", "c1")
			cluster.UID = "b"
			if tc.paused {
				cluster.Annotations = map[string]string{clusterv1.PausedAnnotation: ""}
			}
			site, own := servedSite(cluster, tc.recorded)
			if tc.paused {
				own.Status.Conditions = []metav1.Condition{{Type: v1alpha1.ConditionPaused, Status: metav1.ConditionTrue}}
			}
			if tc.recorded == "" {
				own.Status = v1alpha1.TunnelStatus{ID: heldID, Served: &v1alpha1.ServedStatus{EnrolmentOnly: true}}
			}
			api := controllertest.FakeAPI(t, cluster, site, own)
			reconcileOnce(t, api, own)
			if gone, denied := ended(t, api, own); gone != tc.ends || denied != tc.ends {
				t.Errorf("the Tunnel is gone: %t, its edges are denied: %t, want %t", gone, denied, tc.ends)
			}
		})
	}
}

// TestOnlyThePauseOfTheClusterMakesAMove: the operator of a site may annotate the Tunnel of its network, and must not
// prevent by that the denial of its edges.
func TestOnlyThePauseOfTheClusterMakesAMove(t *testing.T) {
	for name, tc := range map[string]struct {
		annotation string
		cluster    func(*clusterv1.Cluster) // nil: it is gone
		denied     bool
	}{
		"the Cluster is not paused": {
			annotation: clusterv1.PausedAnnotation, cluster: func(*clusterv1.Cluster) {}, denied: true,
		},
		"the Cluster is not paused, and the Tunnel is annotated for a move": {
			annotation: "clusterctl.cluster.x-k8s.io/delete-for-move", cluster: func(*clusterv1.Cluster) {}, denied: true,
		},
		"the Cluster is paused": {
			annotation: clusterv1.PausedAnnotation, cluster: func(c *clusterv1.Cluster) { c.Spec.Paused = ptr.To(true) },
		},
		"the Cluster is gone": {annotation: clusterv1.PausedAnnotation},
	} {
		t.Run(name, func(t *testing.T) {
			cluster := kubetest.Cluster("prod", "c1")
			cluster.UID = "a"
			_, own := servedSite(cluster, "a")
			own.Annotations = map[string]string{tc.annotation: ""}
			if tc.annotation == clusterv1.PausedAnnotation {
				own.Status.Conditions = []metav1.Condition{{Type: v1alpha1.ConditionPaused, Status: metav1.ConditionTrue}}
			}
			all := []client.Object{own}
			if tc.cluster != nil {
				tc.cluster(cluster)
				all = append(all, cluster)
			}
			api := controllertest.FakeAPI(t, all...)
			reconcileOnce(t, api, own)
			if gone, denied := ended(t, api, own); !gone || denied != tc.denied {
				t.Errorf("the Tunnel is gone: %t, its edges are denied: %t, want %t", gone, denied, tc.denied)
			}
		})
	}
}

// TestATunnelThatHasServedWaitsForNoCluster: the operator of a site may annotate the Tunnel of its network like one
// that waits, and remove its owner. When the network is removed, its edges must be denied nevertheless.
func TestATunnelThatHasServedWaitsForNoCluster(t *testing.T) {
	for name, tc := range map[string]struct {
		served v1alpha1.ServedStatus
		ends   bool
	}{
		"it has served": {
			served: v1alpha1.ServedStatus{ClusterUID: "a", Network: &v1alpha1.ServedNetwork{ClusterName: "c1"}}, ends: true,
		},
		"only edges have enrolled": {served: v1alpha1.ServedStatus{EnrolmentOnly: true}},
	} {
		t.Run(name, func(t *testing.T) {
			cluster := kubetest.Cluster("prod", "c1")
			cluster.UID = "a"
			_, own := servedSite(cluster, "a")
			own.OwnerReferences, own.Status.Served = nil, &tc.served
			own.Annotations = map[string]string{
				v1alpha1.PreparedAnnotation: time.Now().AddDate(9, 0, 0).Format(time.RFC3339),
			}
			api := controllertest.FakeAPI(t, cluster, own)
			reconcileOnce(t, api, own)
			if gone, denied := ended(t, api, own); gone != tc.ends || denied != tc.ends {
				t.Errorf("the Tunnel is gone: %t, its edges are denied: %t, want %t", gone, denied, tc.ends)
			}
		})
	}
}

// TestAFinalizerKeepsNoNetworkServed: the operator of a site may add one to its network, and must not keep its edges by
// it when the network is deleted.
func TestAFinalizerKeepsNoNetworkServed(t *testing.T) {
	pause := map[string]string{clusterv1.PausedAnnotation: ""}
	for name, tc := range map[string]struct {
		change func(*clusterv1.Cluster, *v1alpha1.RemoteNetwork, *v1alpha1.Tunnel)
		stays  bool
	}{
		"nothing is paused": {change: func(*clusterv1.Cluster, *v1alpha1.RemoteNetwork, *v1alpha1.Tunnel) {}},
		"the network and its Tunnel are paused": {
			change: func(_ *clusterv1.Cluster, n *v1alpha1.RemoteNetwork, own *v1alpha1.Tunnel) {
				n.Annotations, own.Annotations = pause, pause
				own.Status.Conditions = []metav1.Condition{{Type: v1alpha1.ConditionPaused, Status: metav1.ConditionTrue}}
			},
		},
		"the Cluster is paused, because it is moved": {
			change: func(c *clusterv1.Cluster, _ *v1alpha1.RemoteNetwork, _ *v1alpha1.Tunnel) {
				c.Spec.Paused = ptr.To(true)
			},
			stays: true,
		},
	} {
		t.Run(name, func(t *testing.T) {
			cluster := kubetest.Cluster("prod", "c1")
			cluster.UID = "a"
			site, own := servedSite(cluster, "a")
			site.Finalizers, site.DeletionTimestamp = []string{"example.com/keep"}, &metav1.Time{Time: time.Now()}
			tc.change(cluster, site, own)
			egress := &v1alpha1.Tunnel{ObjectMeta: metav1.ObjectMeta{Namespace: "prod", Name: "c1.egress"}}
			api := controllertest.FakeAPI(t, cluster, site, own)
			reconcileOnce(t, api, own)
			reconcileOnce(t, api, egress)
			if gone, denied := ended(t, api, own); gone == tc.stays || denied == tc.stays {
				t.Errorf("the Tunnel is gone: %t, its edges are denied: %t, want %t", gone, denied, !tc.stays)
			}
			if gone, _ := ended(t, api, egress); !gone {
				t.Error("a network that is gone gives the apiservers a Tunnel")
			}
		})
	}
}

// TestTheTunnelOfApiserversOutlivesTheirNetworks: its Secret is mounted by hosted control planes, and machines have its
// token. It ends with its Cluster, and when it is deleted.
func TestTheTunnelOfApiserversOutlivesTheirNetworks(t *testing.T) {
	for name, tc := range map[string]struct {
		change func(*clusterv1.Cluster, *v1alpha1.Tunnel) *clusterv1.Cluster // nil: the Cluster is gone
		ends   bool
	}{
		"without a network": {
			change: func(c *clusterv1.Cluster, _ *v1alpha1.Tunnel) *clusterv1.Cluster { return c },
		},
		"the Cluster is paused": {
			change: func(c *clusterv1.Cluster, _ *v1alpha1.Tunnel) *clusterv1.Cluster {
				c.Spec.Paused = ptr.To(true)
				return c
			},
		},
		"everything is being deleted, as in the foreground": {
			change: func(c *clusterv1.Cluster, egress *v1alpha1.Tunnel) *clusterv1.Cluster {
				c.Finalizers = []string{clusterv1.ClusterFinalizer}
				c.DeletionTimestamp = &metav1.Time{Time: time.Now()}
				egress.DeletionTimestamp = c.DeletionTimestamp
				return c
			},
		},
		"the Tunnel is deleted": {
			change: func(c *clusterv1.Cluster, egress *v1alpha1.Tunnel) *clusterv1.Cluster {
				egress.DeletionTimestamp = &metav1.Time{Time: time.Now()}
				return c
			},
			ends: true,
		},
		"the Cluster is another one": {
			change: func(c *clusterv1.Cluster, _ *v1alpha1.Tunnel) *clusterv1.Cluster {
				c.UID = "b"
				return c
			},
			ends: true,
		},
		"the Cluster is gone": {
			change: func(*clusterv1.Cluster, *v1alpha1.Tunnel) *clusterv1.Cluster { return nil }, ends: true,
		},
		"the Tunnel was restored without an owner": {
			change: func(c *clusterv1.Cluster, egress *v1alpha1.Tunnel) *clusterv1.Cluster {
				egress.OwnerReferences, egress.Status = nil, v1alpha1.TunnelStatus{}
				return c
			},
		},
		"the Tunnel has waited for the Cluster, too long": {
			change: func(c *clusterv1.Cluster, egress *v1alpha1.Tunnel) *clusterv1.Cluster {
				egress.OwnerReferences, egress.Status.Served = nil, &v1alpha1.ServedStatus{EnrolmentOnly: true}
				egress.Annotations = map[string]string{
					v1alpha1.PreparedAnnotation: time.Now().Add(-time.Hour).Format(time.RFC3339),
				}
				return c
			},
		},
		"the owner was removed": {
			change: func(c *clusterv1.Cluster, egress *v1alpha1.Tunnel) *clusterv1.Cluster {
				egress.OwnerReferences = nil
				return c
			},
		},
		"the owner was removed, and the Cluster is another one": {
			change: func(c *clusterv1.Cluster, egress *v1alpha1.Tunnel) *clusterv1.Cluster {
				egress.OwnerReferences, c.UID = nil, "b"
				return c
			},
			ends: true,
		},
		"the owner was removed, and the Cluster is another one and paused": {
			change: func(c *clusterv1.Cluster, egress *v1alpha1.Tunnel) *clusterv1.Cluster {
				egress.OwnerReferences, c.UID, c.Spec.Paused = nil, "b", ptr.To(true)
				return c
			},
			ends: true,
		},
	} {
		t.Run(name, func(t *testing.T) {
			cluster := kubetest.Cluster("prod", "c1")
			cluster.UID = "a"
			egress := &v1alpha1.Tunnel{
				ObjectMeta: metav1.ObjectMeta{
					Namespace: "prod", Name: "c1.egress", UID: "uid-of-the-tunnel", Finalizers: []string{v1alpha1.TunnelFinalizer},
					OwnerReferences: []metav1.OwnerReference{
						*metav1.NewControllerRef(cluster, clusterv1.GroupVersion.WithKind("Cluster")),
					},
				},
				Spec:   v1alpha1.TunnelSpec{ID: heldID, EgressOf: "c1"},
				Status: v1alpha1.TunnelStatus{ID: heldID, Served: &v1alpha1.ServedStatus{ClusterUID: "a"}},
			}
			all := []client.Object{egress}
			if cluster = tc.change(cluster, egress); cluster != nil {
				all = append(all, cluster)
			}
			api := controllertest.FakeAPI(t, all...)
			reconcileOnce(t, api, egress)
			if gone, denied := ended(t, api, egress); gone != tc.ends || denied != tc.ends {
				t.Errorf("the Tunnel is gone: %t, its nodes are denied: %t, want %t", gone, denied, tc.ends)
			}
			if tc.ends {
				return
			}
			now := &v1alpha1.Tunnel{}
			if err := api.Get(t.Context(), client.ObjectKeyFromObject(egress), now); err != nil {
				t.Fatal(err)
			}
			if _, waits := now.PreparedUntil(); waits || !metav1.IsControlledBy(now, cluster) {
				t.Errorf("the Tunnel is not the Cluster's: %+v", now.ObjectMeta)
			}
		})
	}
}

// TestAPauseKeepsNoAddressThatIsNoLongerPermitted: gateways would dial it for as long as the pause lasts, which the
// operator of a site can set. Nothing is granted meanwhile, and a token ends with its Secret.
func TestAPauseKeepsNoAddressThatIsNoLongerPermitted(t *testing.T) {
	for i, name := range []string{"of the Cluster", "of the network", "of the Tunnel"} {
		t.Run(name, func(t *testing.T) {
			cluster := kubetest.Cluster("prod", "c1")
			cluster.UID = "a"
			cluster.Spec.ControlPlaneEndpoint = clusterv1.APIEndpoint{Host: "10.9.0.1", Port: 6443}
			site, own := servedSite(cluster, "a")
			site.Spec.CIDRs = append(site.Spec.CIDRs, "10.3.0.0/16")
			own.Status.Served.Network.APIServers = []string{"10.9.0.1:6443", "10.9.0.2:6443"}
			own.Status.Tokens = []v1alpha1.TokenStatus{{SHA256: "of-a-deleted-secret", MaxUses: 1}}
			paused := []client.Object{cluster, site, own}[i]
			paused.SetAnnotations(map[string]string{clusterv1.PausedAnnotation: ""})
			api := controllertest.FakeAPI(t, cluster, site, own)
			for _, step := range []struct {
				permitted string
				want      []string
			}{
				{permitted: "10.9.0.0/24", want: []string{"10.9.0.1:6443"}},
				{permitted: "10.8.0.0/24"},
				{permitted: "10.9.0.0/24"},
			} {
				reconcileOnce(t, api, own, netip.MustParsePrefix(step.permitted))
				now := controllertest.Read(t, api, own).Status
				if len(now.Tokens) > 0 {
					t.Errorf("the token of a Secret that does not exist is still valid: %+v", now.Tokens)
				}
				served := now.Served.Network
				if !slices.Equal(served.APIServers, step.want) || !slices.Equal(served.CIDRs, []string{"10.2.0.0/16"}) {
					t.Errorf("with %s gateways dial %v, want %v; CIDRs %v", step.permitted, served.APIServers, step.want, served.CIDRs)
				}
			}
		})
	}
}

// TestANetworkThatIsNotServedCostsOthersNothing: only the networks that may be served are reconciled with each other.
func TestANetworkThatIsNotServedCostsOthersNothing(t *testing.T) {
	cluster := kubetest.Cluster("prod", "c1")
	first, _ := servedSite(cluster, "")
	first.CreationTimestamp = metav1.NewTime(time.Unix(1000, 0))
	last := first.DeepCopy()
	last.Name, last.CreationTimestamp = "last", metav1.NewTime(time.Unix(3000, 0))
	all := []client.Object{first, last}
	for i := range 2 * decision.MaxNetworks {
		other := first.DeepCopy()
		other.Name, other.CreationTimestamp = fmt.Sprintf("other%d", i), metav1.NewTime(time.Unix(int64(1001+i), 0))
		all = append(all, other)
	}
	api := controllertest.FakeAPI(t, all...)
	r := &Reconciler{Deps: reconciler.Deps{Client: api}}
	beside := func(n *v1alpha1.RemoteNetwork) []client.ObjectKey {
		keys, err := r.tunnelsBeside(t.Context(), n)
		if err != nil {
			t.Fatal(err)
		}
		return keys
	}
	named := func(name string) client.ObjectKey { return client.ObjectKey{Namespace: "prod", Name: name} }
	if keys := beside(last); !slices.Equal(keys, []client.ObjectKey{named("c1.egress"), named("last.network")}) {
		t.Errorf("a network that is not served enqueues %v", keys)
	}
	keys := beside(first)
	if len(keys) != decision.MaxNetworks+2 || slices.Contains(keys, named("last.network")) {
		t.Errorf("a network that is served enqueues %d Tunnels", len(keys))
	}
	if err := api.Delete(t.Context(), first); err != nil {
		t.Fatal(err)
	}
	next := named(fmt.Sprintf("other%d.network", decision.MaxNetworks-1))
	if keys := beside(first); len(keys) != decision.MaxNetworks+2 || !slices.Contains(keys, next) {
		t.Errorf("after its deletion the one that takes its place is not among %d Tunnels", len(keys))
	}
}

// TestAPausedNetworkOffersNoExpiredToken: machines of the site then wait for the Secret that is created after the
// pause. Hosted apiservers would not start without theirs.
func TestAPausedNetworkOffersNoExpiredToken(t *testing.T) {
	pause := map[string]string{clusterv1.PausedAnnotation: ""}
	for name, tc := range map[string]struct {
		change func(*clusterv1.Cluster, *v1alpha1.RemoteNetwork, *v1alpha1.Tunnel)
		left   time.Duration
		stays  bool
	}{
		"the network is paused": {
			change: func(_ *clusterv1.Cluster, n *v1alpha1.RemoteNetwork, _ *v1alpha1.Tunnel) { n.Annotations = pause },
		},
		"its Tunnel is paused": {
			change: func(_ *clusterv1.Cluster, _ *v1alpha1.RemoteNetwork, own *v1alpha1.Tunnel) { own.Annotations = pause },
		},
		"its Tunnel is paused, and the token is valid": {
			change: func(_ *clusterv1.Cluster, _ *v1alpha1.RemoteNetwork, own *v1alpha1.Tunnel) { own.Annotations = pause },
			left:   time.Hour, stays: true,
		},
		"the Cluster is paused": {
			change: func(c *clusterv1.Cluster, _ *v1alpha1.RemoteNetwork, _ *v1alpha1.Tunnel) { c.Annotations = pause },
			stays:  true,
		},
		"it is the Tunnel of apiservers": {
			change: func(c *clusterv1.Cluster, _ *v1alpha1.RemoteNetwork, own *v1alpha1.Tunnel) {
				own.Name, own.Annotations = "c1.egress", pause
				own.Spec = v1alpha1.TunnelSpec{ID: heldID, EgressOf: "c1"}
				own.OwnerReferences = []metav1.OwnerReference{
					*metav1.NewControllerRef(c, clusterv1.GroupVersion.WithKind("Cluster")),
				}
			},
			stays: true,
		},
	} {
		t.Run(name, func(t *testing.T) {
			cluster := kubetest.Cluster("prod", "c1")
			cluster.UID = "a"
			site, own := servedSite(cluster, "a")
			tc.change(cluster, site, own)
			own.Status.Tokens = []v1alpha1.TokenStatus{{
				SHA256: enrol.HashToken("token"), MaxUses: 2, ExpiresAt: metav1.NewTime(time.Now().Add(tc.left)),
			}}
			secret := controllertest.SecretNamed(own.Namespace, own.Name+v1alpha1.BootstrapSecretSuffix)
			secret.OwnerReferences = []metav1.OwnerReference{
				*metav1.NewControllerRef(own, v1alpha1.GroupVersion.WithKind("Tunnel")),
			}
			api := controllertest.FakeAPI(t, cluster, site, own, secret)
			reconcileOnce(t, api, own)
			err := api.Get(t.Context(), client.ObjectKeyFromObject(secret), &corev1.Secret{})
			if client.IgnoreNotFound(err) != nil || (err == nil) != tc.stays {
				t.Errorf("reading Secret: %v, want that it stays: %t", err, tc.stays)
			}
		})
	}
}

// TestATrustBundleIsDeliveredToNetworksAfterNewWork: only Tunnels of networks and of apiservers are enqueued, and so
// that they and those that wait for their next token do not have the priority of an event.
func TestATrustBundleIsDeliveredToNetworksAfterNewWork(t *testing.T) {
	cluster := kubetest.Cluster("prod", "c1")
	cluster.UID = "a"
	site, own := servedSite(cluster, "a")
	_, ofCluster := controllertest.Served("c1", 1000)
	bundle := &corev1.ConfigMap{Data: map[string]string{v1alpha1.TrustBundleKey: "one CA"}}
	bundle.Namespace, bundle.Name = controllertest.Config().Namespace, v1alpha1.InstallationConfigMapName
	api := controllertest.FakeAPI(t, cluster, site, own, ofCluster, bundle)
	d := reconciler.Deps{Config: controllertest.Config(), Client: api, Live: api, Log: slog.New(slog.DiscardHandler)}
	queue := priorityqueue.New[reconcile.Request]("bundle")
	defer queue.ShutDown()
	rotated := &corev1.ConfigMap{Data: map[string]string{v1alpha1.TrustBundleKey: "two CAs"}}
	New(d, nil).onTrustBundle().Update(t.Context(), event.UpdateEvent{ObjectOld: bundle, ObjectNew: rotated}, queue)
	if n := queue.Len(); n != 1 {
		t.Fatalf("%d Tunnels are enqueued, want 1", n)
	}
	if request, priority, _ := queue.GetWithPriority(); request.Name != own.Name || priority != handler.LowPriority {
		t.Errorf("%s has the priority %d", request.Name, priority)
	}
	var next reconcile.Result
	for range 3 {
		next = reconcileOnce(t, api, own)
	}
	if next.RequeueAfter == 0 || next.Priority == nil || *next.Priority != handler.LowPriority {
		t.Errorf("the next token: %+v", next)
	}
}

// TestOneChangeHasFewTurns: an owner can change one network again and again, and others wait with low priority.
func TestOneChangeHasFewTurns(t *testing.T) {
	const all = 2 * atOnce
	r := &Reconciler{}
	queue := priorityqueue.New[reconcile.Request]("turns")
	defer queue.ShutDown()
	r.each(func(context.Context, client.Object) (keys []client.ObjectKey, err error) {
		for i := range all {
			keys = append(keys, client.ObjectKey{Name: fmt.Sprint(i)})
		}
		return keys, nil
	}).Delete(t.Context(), event.DeleteEvent{Object: &v1alpha1.RemoteNetwork{}}, queue)
	if n := queue.Len(); n != all {
		t.Fatalf("%d are enqueued, want %d", n, all)
	}
	for i := range all {
		want := 0
		if i >= atOnce {
			want = handler.LowPriority
		}
		if request, priority, _ := queue.GetWithPriority(); request.Name != fmt.Sprint(i) || priority != want {
			t.Errorf("number %d is %s with the priority %d, want %d", i, request.Name, priority, want)
		}
	}
}
