// Package tunnel reconciles a Cluster with its Tunnel. It creates, completes and ends Tunnels, decides their names and
// ids and records them in their status, and delivers bootstrap tokens in Secrets. Its input is Clusters, Tunnels and
// the trust bundle; its output is Tunnels, their status and bootstrap Secrets. It does not know the endpoint of a
// kubeconfig, nor what is connected.
package tunnel

import (
	"context"
	"sync"

	"k8s.io/apimachinery/pkg/api/equality"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	"github.com/fairlead/fairlead/api/v1alpha1"
	"github.com/fairlead/fairlead/pkg/controller/condition"
	"github.com/fairlead/fairlead/pkg/controller/objects"
	"github.com/fairlead/fairlead/pkg/controller/reconciler"
	"github.com/fairlead/fairlead/pkg/controller/records"
	"github.com/fairlead/fairlead/pkg/decision"
	"github.com/fairlead/fairlead/pkg/model"
)

// Reconciler reconciles one Cluster with its Tunnel and its bootstrap Secret, and ends both.
type Reconciler struct {
	reconciler.Deps
	ended *records.EndedTunnels

	clusterStatus condition.ClusterWriter

	names       *registry
	undelivered undelivered

	claims  sync.Mutex
	claimed bool
	queue   reconciler.Queue
	// enqueues a Tunnel in the other reconcilers that depend on decisions; nil: there are none
	notify func(client.ObjectKey)

	restorer Restorer
	initial  []Initial
}

// Initial decides what another reconciler would write next into the status of a new Tunnel, so that the first write
// contains it. The Tunnel in o has everything that is decided so far. It adds fields to status and returns conditions,
// or does neither and leaves both to its reconciler. It must not block for long.
type Initial func(ctx context.Context, o objects.Group, status *v1alpha1.TunnelStatus) []metav1.Condition

// Restorer restores the kubeconfig of a Cluster whose tunnel ends, and returns its Tunnel as it is then.
type Restorer interface {
	Restore(ctx context.Context, o objects.Group) (*v1alpha1.Tunnel, error)
}

// Reconcile makes all objects of one Cluster match their specs: load, decide, write, report.
func (r *Reconciler) Reconcile(ctx context.Context, request reconcile.Request) (reconcile.Result, error) {
	if err := r.ClaimAll(ctx); err != nil {
		return reconcile.Result{}, err
	}
	o, err := objects.Load(ctx, r.Client, request.NamespacedName)
	if err != nil {
		return reconcile.Result{}, err
	}
	if o.Tunnel == nil {
		r.Release(model.Key(o.Key))
	} else if !o.Tunnel.OfCluster() {
		if r.notify != nil { // of a network or of apiservers
			r.notify(o.Key)
		}
		return reconciler.Retry(reconcile.Result{}, r.tellNameTaken(ctx, o))
	}
	result, err := r.act(ctx, o, objects.Decide(o, r.Config.AllClusters))
	return reconciler.Retry(reconciler.Timed(result), err)
}

func (r *Reconciler) act(ctx context.Context, o objects.Group, what objects.Action) (reconcile.Result, error) {
	switch what {
	case objects.Serve:
		return r.serve(ctx, o)
	case objects.Remove:
		return reconcile.Result{}, r.remove(ctx, o)
	case objects.End:
		return reconcile.Result{}, r.end(ctx, o)
	case objects.Refuse:
		return reconcile.Result{}, r.refuse(ctx, o)
	}
	if Waits(o.Tunnel) && !r.Config.NoTunnels {
		return r.Prepare(ctx, o.Tunnel, r.clusterExists(o.Key))
	}
	if err := r.recordPaused(ctx, o); err != nil {
		return reconcile.Result{}, err
	}
	if o.Cluster == nil || o.Tunnel == nil || r.Config.NoTunnels || !objects.HasPause(o.Tunnel) ||
		!objects.OptedIn(o.Cluster, r.Config.AllClusters) {
		return reconcile.Result{}, nil
	}
	return r.DropExpired(ctx, o.Cluster, o.Tunnel)
}

// recordPaused records the decision about a Tunnel of a paused Cluster that has none on record. A Tunnel that
// clusterctl move or a restored backup has just created has no status, and its edges are about to connect here.
// Otherwise it only withdraws.
func (r *Reconciler) recordPaused(ctx context.Context, o objects.Group) error {
	if o.Tunnel == nil || r.Config.NoTunnels || !objects.HasPause(o.Tunnel) && (o.Cluster == nil || !objects.Paused(o)) {
		return nil
	}
	if o.Cluster == nil || granted(o) || o.TunnelDeleting() || !objects.OptedIn(o.Cluster, r.Config.AllClusters) {
		return r.Withdraw(ctx, o.Tunnel, nil)
	}
	candidate, ok := decision.CandidateOf(o.Cluster, o.Tunnel)
	if !ok {
		return r.Withdraw(ctx, o.Tunnel, nil)
	}
	_, _, err := r.Decide(ctx, o.Tunnel, Claim{Candidate: &candidate, Condition: accepted})
	return err
}

// granted reports whether the recorded decision permits serving clients of this Cluster.
func granted(o objects.Group) bool {
	return o.Tunnel.HeldID() != "" && decision.ServedFor(o.Tunnel, o.Cluster.UID)
}

// Release gives up every name of a Tunnel that no longer exists.
func (r *Reconciler) Release(key model.Key) {
	r.undelivered.forget(client.ObjectKey(key))
	r.enqueue(r.names.release(key))
}

// ClaimAll lets every existing Tunnel claim its names before the first decision after a start. The records and the ages
// of the Tunnels then decide, not the order of reconciliation. Every later call returns nil at once.
func (r *Reconciler) ClaimAll(ctx context.Context) error {
	r.claims.Lock()
	defer r.claims.Unlock()
	if r.claimed {
		return nil
	}
	var all v1alpha1.TunnelList
	// There may be many, and nothing here changes them.
	if err := r.Client.List(ctx, &all, client.UnsafeDisableDeepCopy); err != nil {
		return objects.Wrap("listing Tunnels", err)
	}
	for i := range all.Items {
		tunnel := &all.Items[i]
		cluster, err := objects.Get(ctx, r.Client, client.ObjectKeyFromObject(tunnel), &clusterv1.Cluster{})
		if err != nil {
			return objects.Wrap("reading Cluster", err)
		}
		// A Tunnel without a right to be served must not keep a name from a Tunnel with that right.
		if candidate, ok := decision.Claimant(cluster, tunnel, r.Now()); ok {
			r.names.resolve(r.Config.Domain, candidate)
		} else {
			r.names.reserve(r.Config.Domain, decision.RecordedCandidate(tunnel))
		}
	}
	r.claimed = true
	return nil
}

// serve creates or keeps the Tunnel of a Cluster and everything that belongs to it.
func (r *Reconciler) serve(ctx context.Context, o objects.Group) (reconcile.Result, error) {
	tunnel, err := r.ensureTunnel(ctx, o)
	if err != nil {
		return reconcile.Result{}, err
	}
	if r.Config.NoTunnels || !tunnel.Spec.Kubeconfig.Mode.Tunnelled() {
		return reconcile.Result{}, r.serveNothing(ctx, o.Cluster, tunnel)
	}
	candidate, ok := decision.CandidateOf(o.Cluster, tunnel)
	if !ok {
		return reconcile.Result{}, nil // it is being deleted, and was never complete
	}
	c := Claim{Candidate: &candidate, Enrols: true, Condition: accepted}
	if len(tunnel.Status.Conditions) == 0 {
		o.Tunnel = tunnel
		c.Initial = func(status *v1alpha1.TunnelStatus, accepted metav1.Condition) []metav1.Condition {
			return r.complete(ctx, o, status, accepted)
		}
	}
	_, d, err := r.Decide(ctx, tunnel, c)
	if err != nil {
		return reconcile.Result{}, err
	}
	return r.Deliver(ctx, o.Cluster, tunnel, d)
}

// complete adds what other reconcilers would write next to the first status of a Tunnel, and returns their conditions.
func (r *Reconciler) complete(
	ctx context.Context, o objects.Group, status *v1alpha1.TunnelStatus, accepted metav1.Condition,
) []metav1.Condition {
	all := []metav1.Condition{accepted}
	for _, initial := range r.initial {
		o.Tunnel = o.Tunnel.DeepCopy()
		o.Tunnel.Status = *status.DeepCopy()
		condition.Set(&o.Tunnel.Status, o.Tunnel.Generation, all...)
		all = append(all, initial(ctx, o, status)...)
	}
	return all[1:]
}

// serveNothing keeps a Tunnel that only selects the mode of its Cluster's kubeconfig: no name is served, and no edge is
// admitted. It keeps its id, because edges may have certificates for it.
func (r *Reconciler) serveNothing(ctx context.Context, cluster *clusterv1.Cluster, tunnel *v1alpha1.Tunnel) error {
	c := Claim{TokensEnd: true, Condition: func(decision.Resolution) metav1.Condition {
		return notTunnelled(tunnel.Spec.Kubeconfig.Mode)
	}}
	if !r.Config.NoTunnels {
		if candidate, ok := decision.UnservedCandidate(cluster, tunnel); ok {
			c.Candidate = &candidate
		}
		if err := r.deleteBootstrapSecret(ctx, tunnel); err != nil {
			return err
		}
	}
	_, _, err := r.Decide(ctx, tunnel, c)
	return err
}

// ensureTunnel returns the Tunnel of a Cluster. It creates, adopts or completes it if necessary.
func (r *Reconciler) ensureTunnel(ctx context.Context, o objects.Group) (*v1alpha1.Tunnel, error) {
	if o.Tunnel == nil {
		tunnel := &v1alpha1.Tunnel{ObjectMeta: metav1.ObjectMeta{Namespace: o.Key.Namespace, Name: o.Key.Name}}
		objects.CompleteTunnel(tunnel, o.Cluster)
		if err := r.Client.Create(ctx, tunnel); err != nil {
			return nil, objects.Wrap("creating Tunnel", err)
		}
		r.Log.Info("tunnel created", "cluster", o.Key.String(), "tunnel", tunnel.ClaimedID())
		return tunnel, nil
	}
	tunnel := o.Tunnel.DeepCopy()
	if o.TunnelDeleting() {
		return tunnel, nil // nothing may be added any more
	}
	objects.CompleteTunnel(tunnel, o.Cluster)
	if equality.Semantic.DeepEqual(tunnel, o.Tunnel) {
		return tunnel, nil
	}
	return tunnel, objects.Wrap("completing Tunnel", r.Client.Patch(ctx, tunnel, objects.LockedPatch(o.Tunnel)))
}

// refuse records that a Tunnel has another controlling owner, and grants it nothing.
func (r *Reconciler) refuse(ctx context.Context, o objects.Group) error {
	_, _, err := r.Decide(ctx, o.Tunnel, Claim{Condition: func(decision.Resolution) metav1.Condition {
		return controlledByOther(*metav1.GetControllerOf(o.Tunnel))
	}})
	return err
}

// tellNameTaken reports on a Cluster that it gets no tunnel, because the Tunnel with its name is that of a network or
// of apiservers.
func (r *Reconciler) tellNameTaken(ctx context.Context, o objects.Group) error {
	switch {
	case o.Cluster == nil || objects.Paused(objects.Group{Cluster: o.Cluster}):
		return nil
	case !objects.OptedIn(o.Cluster, r.Config.AllClusters):
		return r.clusterStatus.Remove(ctx, o.Cluster)
	}
	return r.clusterStatus.Set(ctx, o.Cluster, nameTaken(o.Tunnel))
}
