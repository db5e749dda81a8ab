package source_test

import (
	"context"
	"fmt"
	"log/slog"
	"maps"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/ptr"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/fairlead/fairlead/api/v1alpha1"
	"github.com/fairlead/fairlead/internal/kubetest"
	"github.com/fairlead/fairlead/pkg/decision"
	"github.com/fairlead/fairlead/pkg/model"
	"github.com/fairlead/fairlead/pkg/rollout"
	"github.com/fairlead/fairlead/pkg/source"
)

const domain = model.TunnelDomain("tunnels.example.com")

// id returns a valid id that begins with begin.
func id(begin string) string { return begin + strings.Repeat("0", 20-len(begin)) }

// newCluster and newTunnel return a pair that belongs together.
func newCluster(name string, uid types.UID) *clusterv1.Cluster {
	return &clusterv1.Cluster{ObjectMeta: metav1.ObjectMeta{Namespace: "prod", Name: name, UID: uid}}
}

func newTunnel(name, id string, owner types.UID) *v1alpha1.Tunnel {
	return &v1alpha1.Tunnel{
		ObjectMeta: metav1.ObjectMeta{Namespace: "prod", Name: name, OwnerReferences: []metav1.OwnerReference{{
			APIVersion: clusterv1.GroupVersion.String(), Kind: "Cluster", Name: name, UID: owner, Controller: ptr.To(true),
		}}},
		Spec: v1alpha1.TunnelSpec{ID: id},
	}
}

// publisher holds what is published.
type publisher struct {
	updates  chan update
	rollouts chan *rollout.Record
}

type update struct {
	all      bool // clusters has all workload clusters; otherwise cluster has the one of key
	key      model.Key
	cluster  *model.WorkloadCluster
	served   map[string][]string
	waits    map[model.Key]bool
	networks map[string]model.WorkloadCluster // also of apiservers
	revoked  map[string][]string
	ended    map[string]time.Time // only the record of ended tunnels; nil: another update
	gateways []model.Gateway      // only the gateways; nil: another update
}

// Replace implements source.Publisher.
func (p publisher) Replace(clusters []model.WorkloadCluster) {
	served, revoked, waits := map[string][]string{}, map[string][]string{}, map[model.Key]bool{}
	networks := map[string]model.WorkloadCluster{}
	for _, c := range clusters {
		if c.Prepared {
			waits[c.Key] = true
		}
		if c.Network != nil || c.Egress {
			networks[c.Key.Name] = c
		} else if !c.Withheld {
			served[c.Key.Name] = c.Names()
		}
		revoked[c.Key.Name] = c.Revoked
	}
	p.updates <- update{all: true, served: served, revoked: revoked, waits: waits, networks: networks}
}

// Ended implements source.Publisher.
func (p publisher) Ended(ids map[string]time.Time) { p.updates <- update{ended: ids} }

// SetGateways implements source.Publisher.
func (p publisher) SetGateways(gateways []model.Gateway) { p.updates <- update{gateways: gateways} }

// SetRollout implements source.Publisher.
func (p publisher) SetRollout(record *rollout.Record) { p.rollouts <- record }

// Publish implements source.Publisher.
func (p publisher) Publish(key model.Key, cluster *model.WorkloadCluster) {
	p.updates <- update{key: key, cluster: cluster}
}

// bed is a source that runs on a real kube-apiserver. Each test has its own namespace, which is also the
// installation's.
type bed struct {
	client.Client
	*source.Kube
	namespace string
	updates   chan update
	rollouts  chan *rollout.Record
	served    map[string][]string // served names, by workload cluster
	addresses map[string]string   // address of the apiserver, by workload cluster
	limits    map[string]model.Limits
	revoked   map[string][]string              // revoked edges, by workload cluster
	networks  map[string]model.WorkloadCluster // of networks and apiservers, by Tunnel
	prepared  map[model.Key]bool               // workload clusters that wait for their Cluster
	ended     map[string]time.Time
	gateways  []model.Gateway   // that are known
	config    source.KubeConfig // additions to the common configuration
	names     decision.Names    // as in the controller
	log       *slog.Logger
}

// newBed makes a namespace; run starts the source. It removes first what other tests left in the apiserver.
func newBed(t *testing.T) *bed {
	t.Helper()
	admin, err := kubetest.NewClient(server.Config(t))
	if err != nil {
		t.Fatal(err)
	}
	b := &bed{
		Client: admin, updates: make(chan update, 64), rollouts: make(chan *rollout.Record, 64),
		served: map[string][]string{}, addresses: map[string]string{},
		revoked: map[string][]string{}, limits: map[string]model.Limits{}, log: slog.New(slog.DiscardHandler),
	}
	b.namespace = kubetest.NewNamespace(t, b)
	t.Cleanup(func() {
		for _, kind := range []client.Object{&v1alpha1.Tunnel{}, &v1alpha1.RemoteNetwork{}, &clusterv1.Cluster{}} {
			if err := b.DeleteAllOf(context.Background(), kind, client.InNamespace(b.namespace)); err != nil {
				t.Error(err)
			}
		}
	})
	return b
}

func (b *bed) run(t *testing.T) {
	t.Helper()
	config := b.config
	config.Domain, config.Namespace, config.Publisher, config.Log = domain, b.namespace, publisher{
		b.updates,
		b.rollouts,
	}, b.log
	kube, err := source.NewKube(server.Config(t), config)
	if err != nil {
		t.Fatal(err)
	}
	b.Kube = kube
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan error, 1)
	go func() { ended <- kube.Run(ctx) }()
	t.Cleanup(func() {
		cancel()
		for { // it may be about to publish
			select {
			case <-b.updates:
			case err := <-ended:
				if err != nil {
					t.Errorf("running: %v", err)
				}
				return
			}
		}
	})
}

// cluster creates a Cluster without a Tunnel.
func (b *bed) cluster(t *testing.T, name string, finalizers ...string) *clusterv1.Cluster {
	t.Helper()
	cluster := newCluster(name, "")
	cluster.Namespace, cluster.Finalizers = b.namespace, finalizers
	cluster.Spec.ControlPlaneEndpoint = clusterv1.APIEndpoint{Host: "10.0.0.1", Port: 6443}
	if err := b.Create(t.Context(), cluster); err != nil {
		t.Fatal(err)
	}
	return cluster
}

// pair creates a Cluster and its Tunnel.
func (b *bed) pair(t *testing.T, name, begin string, extra ...string) (*clusterv1.Cluster, *v1alpha1.Tunnel) {
	t.Helper()
	cluster := b.cluster(t, name)
	return cluster, b.tunnel(t, cluster, begin, extra...)
}

func (b *bed) tunnel(t *testing.T, of *clusterv1.Cluster, begin string, extra ...string) *v1alpha1.Tunnel {
	t.Helper()
	tunnel := newTunnel(of.Name, id(begin), of.UID)
	tunnel.Namespace, tunnel.Spec.ExtraNames = b.namespace, extra
	if err := b.Create(t.Context(), tunnel); err != nil {
		t.Fatal(err)
	}
	b.record(t, tunnel)
	return tunnel
}

// record decides about a Tunnel and records the decision, as the controller does.
func (b *bed) record(t *testing.T, tunnel *v1alpha1.Tunnel) {
	t.Helper()
	cluster := &clusterv1.Cluster{}
	if err := b.Get(t.Context(), client.ObjectKeyFromObject(tunnel), cluster); client.IgnoreNotFound(err) != nil {
		t.Fatal(err)
	} else if err != nil {
		cluster = nil
	}
	candidate, ok := decision.Claimant(cluster, tunnel, time.Now())
	if !ok {
		t.Fatalf("Tunnel %s claims nothing", tunnel.Name)
	}
	decision.Record(&tunnel.Status, b.names.Resolve(domain, candidate))
	b.writeStatus(t, tunnel)
}

// writeStatus writes the status of a Tunnel unconditionally.
func (b *bed) writeStatus(t *testing.T, tunnel *v1alpha1.Tunnel) {
	t.Helper()
	now := &v1alpha1.Tunnel{}
	if err := b.Get(t.Context(), client.ObjectKeyFromObject(tunnel), now); err != nil {
		t.Fatal(err)
	}
	now.Status = tunnel.Status
	if err := b.Status().Update(t.Context(), now); err != nil {
		t.Fatal(err)
	}
	now.DeepCopyInto(tunnel)
}

// update updates the present version of an object.
func (b *bed) update(t *testing.T, o client.Object, change func()) {
	t.Helper()
	if err := b.Get(t.Context(), client.ObjectKeyFromObject(o), o); err != nil {
		t.Fatal(err)
	}
	change()
	if err := b.Update(t.Context(), o); err != nil {
		t.Fatal(err)
	}
}

// await takes updates until exactly these workload clusters are served, under these names.
func (b *bed) await(t *testing.T, want map[string][]string) {
	t.Helper()
	timeout := time.After(kubetest.Patience)
	for {
		got := maps.Clone(b.served)
		for name, names := range got {
			got[name] = names[1:] // every workload cluster has its own hostname
		}
		diff := cmp.Diff(want, got)
		if diff == "" {
			return
		}
		select {
		case u := <-b.updates:
			b.take(t, u)
		case <-timeout:
			t.Fatalf("not published:\n%s", diff)
		}
	}
}

// next waits for an update.
func (b *bed) next(t *testing.T) update {
	t.Helper()
	select {
	case u := <-b.updates:
		return u
	case <-time.After(kubetest.Patience):
		t.Fatal("nothing was published")
		return update{}
	}
}

func (b *bed) delete(t *testing.T, o client.Object) {
	t.Helper()
	if err := b.Delete(t.Context(), o); err != nil {
		t.Fatal(err)
	}
}

func keyOf(o client.Object) client.ObjectKey { return client.ObjectKeyFromObject(o) }

func (b *bed) take(t *testing.T, u update) {
	t.Helper()
	switch {
	case u.ended != nil:
		b.ended = u.ended
	case u.gateways != nil:
		b.gateways = u.gateways
	case u.all:
		b.served, b.revoked, b.prepared, b.networks = u.served, u.revoked, u.waits, u.networks
	case u.key.Namespace != b.namespace:
	case strings.Contains(u.key.Name, ".") && u.cluster != nil && !u.cluster.Withheld:
		b.networks[u.key.Name] = *u.cluster
	case strings.Contains(u.key.Name, "."):
		delete(b.networks, u.key.Name)
	case u.cluster == nil:
		delete(b.served, u.key.Name)
		delete(b.revoked, u.key.Name)
	case u.cluster.Withheld:
		delete(b.served, u.key.Name)
		b.revoked[u.key.Name] = u.cluster.Revoked
	default:
		if u.cluster.Key != u.key {
			t.Errorf("%s was published as %s", u.cluster.Key, u.key)
		}
		b.served[u.key.Name] = u.cluster.Names()
		delete(b.prepared, u.key)
		if u.cluster.Prepared {
			b.prepared[u.key] = true
		}
		b.addresses[u.key.Name] = fmt.Sprint(append([]model.Endpoint{u.cluster.APIServer}, u.cluster.Others...))
		b.revoked[u.key.Name], b.limits[u.key.Name] = u.cluster.Revoked, u.cluster.Limits
	}
}

// first waits for the first updates: the ended tunnels, and then all workload clusters.
func (b *bed) first(t *testing.T, want map[string][]string) {
	t.Helper()
	for all := false; !all; {
		select {
		case u := <-b.updates:
			if all = u.all; all && b.ended == nil || !all && u.ended == nil {
				t.Fatalf("got %+v first, want the record of ended tunnels, and then all workload clusters", u)
			}
			b.take(t, u)
		case <-time.After(kubetest.Patience):
			t.Fatal("nothing was published")
		}
	}
	b.await(t, want)
}

// none is an empty list of extra names.
var none = []string{}
