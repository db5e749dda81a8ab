// Package network reconciles RemoteNetworks. It creates, decides and ends the Tunnel of each network and the Tunnel
// with which the apiservers of its Cluster enrol, and writes the status of RemoteNetworks. Its input is RemoteNetworks,
// Clusters and Tunnels; its output is Tunnels, through the decisions and Secrets of package tunnel, and status. It does
// not know what is connected except by the conditions of Tunnels.
package network

import (
	"context"
	"slices"
	"strings"

	"k8s.io/apimachinery/pkg/api/equality"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	"github.com/fairlead/fairlead/api/v1alpha1"
	"github.com/fairlead/fairlead/pkg/controller/objects"
	"github.com/fairlead/fairlead/pkg/controller/reconciler"
	"github.com/fairlead/fairlead/pkg/controller/tunnel"
	"github.com/fairlead/fairlead/pkg/decision"
	"github.com/fairlead/fairlead/pkg/model"
)

// Reconciler reconciles the Tunnels of networks and of apiservers. A request has the key of such a Tunnel, whether or
// not it exists.
type Reconciler struct {
	reconciler.Deps
	tunnels *tunnel.Reconciler
	queue   reconciler.Queue
}

// New returns the reconciler. It decides with the names of tunnels.
func New(p reconciler.Deps, tunnels *tunnel.Reconciler) *Reconciler {
	return &Reconciler{Deps: p, tunnels: tunnels}
}

// Notify enqueues a Tunnel if its name is that of a network or of apiservers.
func (r *Reconciler) Notify(key client.ObjectKey) {
	if ours(key) {
		r.queue.Add(key)
	}
}

func ours(key client.ObjectKey) bool {
	return strings.HasSuffix(key.Name, v1alpha1.NetworkTunnelSuffix) ||
		strings.HasSuffix(key.Name, v1alpha1.EgressTunnelSuffix)
}

// group holds the objects on which one Tunnel depends. All except key may be nil.
type group struct {
	key     client.ObjectKey
	tunnel  *v1alpha1.Tunnel
	network *v1alpha1.RemoteNetwork // of the Tunnel of a network; nil also if it is removed
	cluster *clusterv1.Cluster
	// networks are all RemoteNetworks of the Cluster that are not removed.
	networks []v1alpha1.RemoteNetwork
}

// removed reports whether a RemoteNetwork counts as gone. A finalizer, which the operator of a site may add, does not
// keep it after its deletion. While its Cluster is paused it stays: clusterctl deletes what it has moved, and removes
// the finalizers afterwards.
func removed(network *v1alpha1.RemoteNetwork, cluster *clusterv1.Cluster) bool {
	return !network.DeletionTimestamp.IsZero() &&
		(cluster == nil || !objects.Paused(objects.Group{Cluster: cluster}))
}

// owner returns the object that controls the Tunnel; nil: it does not exist, or there has been no network yet. The
// Tunnel of apiservers stays when the last network is gone: nothing is reachable by it then, and control planes refer
// to its Secret, or have its content on their machines. One without a controller was restored, or moved here.
func (g group) owner() client.Object {
	switch {
	case g.ofNetwork() && g.network != nil && g.cluster != nil:
		return g.network
	case !g.ofNetwork() && g.cluster != nil &&
		(len(g.networks) > 0 || g.tunnel != nil && !controlledByOther(g.tunnel, g.cluster)):
		return g.cluster
	}
	return nil
}

func (g group) ofNetwork() bool { return strings.HasSuffix(g.key.Name, v1alpha1.NetworkTunnelSuffix) }

// foreign reports whether the Tunnel has this name by accident: it was created for another use, or for another owner of
// the same name.
func (g group) foreign() bool {
	if g.tunnel == nil {
		return false
	}
	spec := g.tunnel.Spec
	if g.ofNetwork() {
		return decision.NetworkTunnel(spec.Network) != g.key.Name
	}
	return decision.EgressTunnel(spec.EgressOf) != g.key.Name
}

// ofEarlier reports whether a Tunnel was decided for an earlier Cluster of the same name, which the RemoteNetwork, or
// the Tunnel of apiservers without a controller, has outlived. A Tunnel that was moved here, or waits for its Cluster,
// has no Cluster on record.
func (g group) ofEarlier() bool {
	if g.tunnel == nil || g.cluster == nil || g.tunnel.Status.Served == nil ||
		!g.ofNetwork() && metav1.GetControllerOf(g.tunnel) != nil {
		return false
	}
	recorded := g.tunnel.Status.Served.ClusterUID
	return recorded != "" && recorded != g.cluster.UID
}

// paused reports whether Cluster API's pause is set on one of the objects. The Cluster must exist.
func (g group) paused() bool {
	return objects.Paused(objects.Group{Cluster: g.cluster, Tunnel: g.tunnel}) ||
		g.network != nil && objects.HasPause(g.network)
}

// load reads the objects on which a Tunnel depends.
func load(ctx context.Context, from client.Reader, key client.ObjectKey) (g group, err error) {
	g.key = key
	if g.tunnel, err = objects.Get(ctx, from, key, &v1alpha1.Tunnel{}); err != nil {
		return g, objects.Wrap("reading Tunnel", err)
	}
	cluster := client.ObjectKey{Namespace: key.Namespace, Name: strings.TrimSuffix(key.Name, v1alpha1.EgressTunnelSuffix)}
	if g.ofNetwork() {
		name := client.ObjectKey{Namespace: key.Namespace, Name: strings.TrimSuffix(key.Name, v1alpha1.NetworkTunnelSuffix)}
		if g.network, err = objects.Get(ctx, from, name, &v1alpha1.RemoteNetwork{}); err != nil || g.network == nil {
			return g, objects.Wrap("reading RemoteNetwork", err)
		}
		cluster.Name = g.network.Spec.ClusterName
	}
	if g.cluster, err = objects.Get(ctx, from, cluster, &clusterv1.Cluster{}); err != nil {
		return g, objects.Wrap("reading Cluster", err)
	}
	if g.network != nil && removed(g.network, g.cluster) {
		g.network = nil
	}
	return g, nil
}

// load reads the objects on which a Tunnel depends, from the cache.
func (r *Reconciler) load(ctx context.Context, key client.ObjectKey) (group, error) {
	g, err := load(ctx, r.Client, key)
	if err != nil || g.cluster == nil {
		return g, err
	}
	all, err := reconciler.NetworksOf(ctx, r.Client, client.ObjectKeyFromObject(g.cluster))
	g.networks = slices.DeleteFunc(all, func(n v1alpha1.RemoteNetwork) bool { return removed(&n, g.cluster) })
	return g, err
}

// Reconcile makes one Tunnel match its RemoteNetwork and its Cluster.
func (r *Reconciler) Reconcile(ctx context.Context, request reconcile.Request) (reconcile.Result, error) {
	switch {
	case !ours(request.NamespacedName):
		return reconcile.Result{}, nil
	case r.Config.NoTunnels:
		return reconciler.Retry(reconcile.Result{}, r.dropDeleted(ctx, request.NamespacedName))
	}
	if err := r.tunnels.ClaimAll(ctx); err != nil {
		return reconcile.Result{}, err
	}
	g, err := r.load(ctx, request.NamespacedName)
	if err != nil {
		return reconcile.Result{}, err
	}
	if g.tunnel == nil {
		r.tunnels.Release(model.Key(g.key))
	}
	result, err := r.act(ctx, g)
	return reconciler.Retry(reconciler.Timed(result), err)
}

// dropDeleted removes the finalizer of a Tunnel that is being deleted, in an installation without tunnels: the Tunnel
// is one of an earlier configuration. Nothing else is written.
func (r *Reconciler) dropDeleted(ctx context.Context, key client.ObjectKey) error {
	g, err := r.load(ctx, key)
	if err != nil || g.tunnel == nil || g.tunnel.DeletionTimestamp.IsZero() || g.foreign() ||
		(g.cluster != nil && g.paused()) {
		return err
	}
	return r.tunnels.Drop(ctx, g.tunnel, false)
}

// act chooses between serving and ending a Tunnel.
func (r *Reconciler) act(ctx context.Context, g group) (reconcile.Result, error) {
	owner := g.owner()
	switch {
	case g.foreign():
		return reconcile.Result{}, nil
	case owner == nil && waits(g.tunnel):
		return r.tunnels.Prepare(ctx, g.tunnel, r.arrives(g.key))
	case g.tunnel != nil && (owner == nil || controlledByOther(g.tunnel, owner) || g.ofEarlier()):
		return reconcile.Result{}, r.end(ctx, g)
	case owner == nil:
		return reconcile.Result{}, nil
	case g.paused():
		if err := r.recordPaused(ctx, g); err != nil || g.tunnel == nil || !g.ofNetwork() {
			return reconcile.Result{}, err // hosted apiservers do not start without their Secret
		}
		return r.tunnels.DropExpired(ctx, g.cluster, g.tunnel)
	case g.tunnel != nil && !g.tunnel.DeletionTimestamp.IsZero() && owner.GetDeletionTimestamp().IsZero():
		r.Log.Info("tunnel ended: it is deleted", "tunnel", g.tunnel.ClaimedID(), "name", g.key.String())
		return reconcile.Result{}, r.tunnels.Drop(ctx, g.tunnel, false)
	case g.tunnel == nil && (!owner.GetDeletionTimestamp().IsZero() || !g.cluster.DeletionTimestamp.IsZero()):
		return reconcile.Result{}, nil // nothing begins
	}
	return r.serve(ctx, g, owner)
}

// waits reports whether a Tunnel waits for its Cluster. One that has served a network does not, whatever its annotation
// says: the operator of a site can write that, and remove the owner, before the network is removed.
func waits(of *v1alpha1.Tunnel) bool {
	return tunnel.Waits(of) && (of.Status.Served == nil || of.Status.Served.EnrolmentOnly)
}

// arrives returns a function that reports whether what will own a Tunnel exists: the RemoteNetwork, or the Cluster of
// the apiservers. It reads from the apiserver.
func (r *Reconciler) arrives(key client.ObjectKey) func(context.Context) (bool, error) {
	return func(ctx context.Context) (bool, error) {
		now, err := load(ctx, r.Live, key)
		return now.network != nil || !now.ofNetwork() && now.cluster != nil, err
	}
}

// controlledByOther reports whether a Tunnel is controlled by another object than its owner, such as an earlier owner
// of the same name.
func controlledByOther(tunnel *v1alpha1.Tunnel, owner client.Object) bool {
	return metav1.GetControllerOf(tunnel) != nil && !metav1.IsControlledBy(tunnel, owner)
}

// serve creates or keeps a Tunnel, and decides and delivers what belongs to it.
func (r *Reconciler) serve(ctx context.Context, g group, owner client.Object) (reconcile.Result, error) {
	if err := r.adopt(ctx, g); err != nil {
		return reconcile.Result{}, err
	}
	tunnel, err := r.ensure(ctx, g, owner)
	if err != nil {
		return reconcile.Result{}, err
	}
	claim, err := r.claim(ctx, g, tunnel)
	if err != nil {
		return reconcile.Result{}, err
	}
	claim.Enrols = true
	_, b, err := r.tunnels.Decide(ctx, tunnel, claim)
	if err != nil {
		return reconcile.Result{}, err
	}
	return r.tunnels.Deliver(ctx, g.cluster, tunnel, b)
}

// recordPaused records the decision about a Tunnel of a paused Cluster that has none on record: clusterctl move or a
// restored backup has just created it, and its edges are about to connect here. Otherwise it only withdraws: a pause
// must not keep gateways dialling an address that the installation no longer permits.
func (r *Reconciler) recordPaused(ctx context.Context, g group) error {
	if g.tunnel == nil {
		return nil
	}
	claim, err := r.claim(ctx, g, g.tunnel)
	switch {
	case err != nil:
		return err
	case claim.Candidate == nil:
		return r.tunnels.Withdraw(ctx, g.tunnel, nil)
	case !g.tunnel.DeletionTimestamp.IsZero() ||
		g.tunnel.HeldID() != "" && decision.ServedFor(g.tunnel, g.cluster.UID) &&
			!arrivedLater(g.tunnel.Status.Served.Network, claim.Candidate.Network):
		return r.tunnels.Withdraw(ctx, g.tunnel, func(status *v1alpha1.TunnelStatus) {
			keepPermitted(status.Served, claim.Candidate.Network)
		})
	}
	_, _, err = r.tunnels.Decide(ctx, g.tunnel, claim)
	return err
}

// keepPermitted removes the addresses of apiservers from the record of a network that gateways may no longer dial.
func keepPermitted(recorded *v1alpha1.ServedStatus, now *decision.NetworkFacts) {
	if recorded == nil || recorded.Network == nil || now == nil {
		return
	}
	all := &recorded.Network.APIServers
	*all = slices.DeleteFunc(*all, func(address string) bool {
		return !slices.ContainsFunc(now.APIServers, func(e model.Endpoint) bool { return e.String() == address })
	})
}

// arrivedLater reports whether the Tunnel of the apiservers, or that of the Cluster, was decided after the record of a
// network, in which it is missing: clusterctl creates all of them in any order, and unpauses the Cluster much later.
func arrivedLater(recorded *v1alpha1.ServedNetwork, now *decision.NetworkFacts) bool {
	return recorded != nil && now != nil &&
		(recorded.EgressID == "" && now.EgressID != "" || recorded.APIServerTunnelID == "" && now.APIServerID != "")
}

// claim returns what a Tunnel may get.
func (r *Reconciler) claim(ctx context.Context, g group, of *v1alpha1.Tunnel) (claim tunnel.Claim, err error) {
	var candidate decision.Candidate
	var ok bool
	problem := ""
	if g.ofNetwork() {
		owners, err := r.owners(ctx, g)
		if err != nil {
			return claim, err
		}
		settings := decision.NetworkSettings{
			Gateways: r.Config.GatewayAddresses(), APIServers: r.Config.APIServerCIDRs,
		}
		candidate, ok = decision.NetworkCandidate(of, owners, settings)
		problem = decision.ForwardTo(g.cluster, owners.Tunnel, settings).Problem
	} else {
		candidate, ok = decision.EgressCandidate(g.cluster, of)
	}
	if ok {
		claim.Candidate = &candidate
	}
	claim.Condition = func(resolution decision.Resolution) metav1.Condition { return accepted(resolution, problem) }
	return claim, nil
}

// owners reads the remaining objects on which the decision about a network depends.
func (r *Reconciler) owners(ctx context.Context, g group) (o decision.NetworkOwners, err error) {
	o.Network, o.Cluster = g.network, g.cluster
	key := client.ObjectKeyFromObject(g.cluster)
	if o.Tunnel, err = objects.Get(ctx, r.Client, key, &v1alpha1.Tunnel{}); err != nil {
		return o, objects.Wrap("reading Tunnel", err)
	}
	key.Name = decision.EgressTunnel(key.Name)
	if o.Egress, err = objects.Get(ctx, r.Client, key, &v1alpha1.Tunnel{}); err != nil {
		return o, objects.Wrap("reading Tunnel", err)
	}
	o.Others = slices.DeleteFunc(
		slices.Clone(g.networks), func(n v1alpha1.RemoteNetwork) bool { return n.Name == g.network.Name },
	)
	return o, nil
}

// adopt makes the Cluster the controlling owner of a network, so that both move and end together. Another controlling
// owner stays, except an earlier Cluster of the same name.
func (r *Reconciler) adopt(ctx context.Context, g group) error {
	if g.network == nil || metav1.IsControlledBy(g.network, g.cluster) {
		return nil
	}
	own := objects.OwnerRef(clusterv1.GroupVersion.WithKind("Cluster"), g.cluster)
	want := g.network.DeepCopy()
	want.OwnerReferences = slices.DeleteFunc(want.OwnerReferences, func(o metav1.OwnerReference) bool {
		return o.Kind == own.Kind && o.Name == own.Name && strings.HasPrefix(o.APIVersion, clusterv1.GroupVersion.Group+"/")
	})
	if metav1.GetControllerOf(want) != nil {
		own.Controller = nil
	}
	want.OwnerReferences = append(want.OwnerReferences, own)
	if equality.Semantic.DeepEqual(want, g.network) {
		return nil
	}
	return objects.Wrap("completing RemoteNetwork", r.Client.Patch(ctx, want, objects.LockedPatch(g.network)))
}

// ensure returns the Tunnel. It creates or completes it if necessary.
func (r *Reconciler) ensure(ctx context.Context, g group, owner client.Object) (*v1alpha1.Tunnel, error) {
	want := &v1alpha1.Tunnel{ObjectMeta: metav1.ObjectMeta{Namespace: g.key.Namespace, Name: g.key.Name}}
	kind := clusterv1.GroupVersion.WithKind("Cluster")
	if g.ofNetwork() {
		want.Spec.Network, kind = g.network.Name, v1alpha1.GroupVersion.WithKind("RemoteNetwork")
	} else {
		want.Spec.EgressOf = g.cluster.Name
	}
	if g.tunnel != nil {
		want = g.tunnel.DeepCopy()
		if !want.DeletionTimestamp.IsZero() {
			return want, nil // nothing may be added any more
		}
	}
	objects.Adopt(want, kind, owner)
	switch {
	case g.tunnel == nil:
		if err := r.Client.Create(ctx, want); err != nil {
			return nil, objects.Wrap("creating Tunnel", err)
		}
		r.Log.Info("tunnel created", "cluster", g.cluster.Name, "name", g.key.String(), "tunnel", want.ClaimedID())
	case !equality.Semantic.DeepEqual(want, g.tunnel):
		return want, objects.Wrap("completing Tunnel", r.Client.Patch(ctx, want, objects.LockedPatch(g.tunnel)))
	}
	return want, nil
}

// end removes a Tunnel whose network or Cluster is gone, also if there is a new one of the same name. Its edges cannot
// return after that, so it reads from the apiserver: the cache may be late.
func (r *Reconciler) end(ctx context.Context, g group) error {
	now, err := load(ctx, r.Live, g.key)
	if err != nil || now.tunnel == nil || now.tunnel.UID != g.tunnel.UID {
		return err
	}
	if now.cluster != nil {
		var list v1alpha1.RemoteNetworkList
		if err := r.Live.List(ctx, &list, client.InNamespace(g.key.Namespace)); err != nil {
			return objects.Wrap("listing RemoteNetworks", err)
		}
		now.networks = slices.DeleteFunc(list.Items, func(n v1alpha1.RemoteNetwork) bool {
			return n.Spec.ClusterName != now.cluster.Name || removed(&n, now.cluster)
		})
	}
	if owner := now.owner(); owner != nil && !controlledByOther(now.tunnel, owner) && !now.ofEarlier() {
		return nil // the next event of the cache comes back here
	}
	moved, err := r.moved(ctx, now)
	if err != nil {
		return err
	}
	r.Log.Info(
		"tunnel ended: its network or its Cluster is gone", "name", g.key.String(), "tunnel", now.tunnel.ClaimedID(), "moved",
		moved,
	)
	return r.tunnels.Drop(ctx, now.tunnel, moved)
}

// moved reports whether a Tunnel that ends was moved to another installation. The operator of a site may annotate the
// Tunnel of its network, so a Cluster that exists must be paused too: clusterctl pauses it before everything else, and
// deletes it last.
func (r *Reconciler) moved(ctx context.Context, now group) (bool, error) {
	name := now.tunnel.ClusterName()
	if !tunnel.WasMoved(now.tunnel) || now.ofEarlier() {
		return false, nil
	}
	if name == "" {
		return true, nil // nothing is on record, so no edge was served
	}
	key := client.ObjectKey{Namespace: now.key.Namespace, Name: name}
	cluster, err := objects.Get(ctx, r.Live, key, &clusterv1.Cluster{})
	return cluster == nil || objects.Paused(objects.Group{Cluster: cluster}), objects.Wrap("reading Cluster", err)
}
