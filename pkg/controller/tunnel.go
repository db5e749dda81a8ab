package controller

import (
	"context"
	"errors"
	"sync"
	"time"

	"k8s.io/apimachinery/pkg/api/equality"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/util/workqueue"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	"github.com/fairlead/fairlead/api/v1alpha1"
	"github.com/fairlead/fairlead/pkg/decision"
	"github.com/fairlead/fairlead/pkg/model"
)

// tunnels reconciles one Cluster with its Tunnel and its bootstrap Secret, and ends both.
type tunnels struct {
	deps
	ended *endedTunnels

	clusterStatus clusterStatus

	names   *registry
	claims  sync.Mutex
	claimed bool
	queue   workqueue.TypedRateLimitingInterface[reconcile.Request] // nil before the start
	notify  func(client.ObjectKey)                                  // enqueues the kubeconfig of another Cluster; nil: there is none

	restorer kubeconfigRestorer
}

// kubeconfigRestorer restores the kubeconfig of a Cluster whose tunnel ends, and returns its Tunnel as it is then.
type kubeconfigRestorer interface {
	giveBack(ctx context.Context, o objects) (*v1alpha1.Tunnel, error)
}

// Reconcile brings everything of one Cluster to what it has to be: load, decide, write, report.
func (r *tunnels) Reconcile(ctx context.Context, request reconcile.Request) (reconcile.Result, error) {
	if err := r.claimAll(ctx); err != nil {
		return reconcile.Result{}, err
	}
	o, err := load(ctx, r.client, request.NamespacedName)
	if err != nil {
		return reconcile.Result{}, err
	}
	if o.tunnel == nil {
		r.enqueue(r.names.release(model.Key(o.key)))
	}
	return retry(r.act(ctx, o, decide(o, r.config.AllClusters)))
}

func (r *tunnels) act(ctx context.Context, o objects, what action) (reconcile.Result, error) {
	switch what {
	case serve:
		return r.serve(ctx, o)
	case remove:
		return reconcile.Result{}, r.remove(ctx, o)
	case end:
		return reconcile.Result{}, r.end(ctx, o)
	case refuse:
		return reconcile.Result{}, r.refuse(ctx, o)
	}
	if waitsForCluster(o) && !r.config.NoTunnels {
		return r.prepare(ctx, o)
	}
	return reconcile.Result{}, r.recordPaused(ctx, o)
}

// recordPaused records the decision about a Tunnel that has none on record for its Cluster while that is paused, and writes nothing
// else: a Tunnel that clusterctl move or a restored backup has just created has no status, and its edges follow it here.
func (r *tunnels) recordPaused(ctx context.Context, o objects) error {
	if o.cluster == nil || o.tunnel == nil || !paused(o) || r.config.NoTunnels || granted(o) || o.tunnelGoing() || !optedIn(o.cluster, r.config.AllClusters) {
		return nil
	}
	candidate, ok := decision.CandidateOf(o.cluster, o.tunnel)
	if !ok {
		return nil
	}
	resolution := r.names.decide(r.config.Domain, candidate)
	r.enqueue(resolution.Affected)
	status := o.tunnel.Status.DeepCopy()
	decision.Record(status, resolution)
	return r.report(ctx, o.tunnel, status, accepted(resolution))
}

// granted says whether a decision is on record that lets clients of this Cluster be served.
func granted(o objects) bool {
	served := o.tunnel.Status.Served
	return o.tunnel.HeldID() != "" && served != nil && !served.EnrolmentOnly && served.ClusterUID == o.cluster.UID
}

// claimAll lets every Tunnel that exists claim its names before the first decision after a start. What is on
// record and the age of the Tunnels then decide, and not the order in which they are looked at.
func (r *tunnels) claimAll(ctx context.Context) error {
	r.claims.Lock()
	defer r.claims.Unlock()
	if r.claimed {
		return nil
	}
	var all v1alpha1.TunnelList
	if err := r.client.List(ctx, &all); err != nil {
		return wrap("listing Tunnels", err)
	}
	for i := range all.Items {
		tunnel := &all.Items[i]
		cluster, err := get(ctx, r.client, client.ObjectKeyFromObject(tunnel), &clusterv1.Cluster{})
		if err != nil {
			return wrap("reading Cluster", err)
		}
		// Whoever has no right to be served must not keep a name from those who have.
		if candidate, ok := decision.Claimant(cluster, tunnel, r.now()); ok {
			r.names.resolve(r.config.Domain, candidate)
		} else {
			r.names.reserve(r.config.Domain, decision.RecordedCandidate(tunnel))
		}
	}
	r.claimed = true
	return nil
}

// holder returns the Tunnel that holds a name, as far as this process has decided. It is safe for concurrent use.
func (r *tunnels) holder(name string) (holder model.Key, held bool) { return r.names.holder(name) }

// enqueue has other Clusters reconciled, because the rights to their names may have changed.
func (r *tunnels) enqueue(keys []model.Key) {
	for _, key := range keys {
		if r.queue != nil {
			r.queue.Add(reconcile.Request{NamespacedName: client.ObjectKey(key)})
		}
		if r.notify != nil {
			r.notify(client.ObjectKey(key))
		}
	}
}

// serve makes or keeps the Tunnel of a Cluster and everything that belongs to it.
func (r *tunnels) serve(ctx context.Context, o objects) (reconcile.Result, error) {
	tunnel, err := r.ensureTunnel(ctx, o)
	if err != nil {
		return reconcile.Result{}, err
	}
	if r.config.NoTunnels || !tunnel.Spec.Kubeconfig.Mode.Tunnelled() {
		return reconcile.Result{}, r.serveNothing(ctx, o.cluster, tunnel)
	}
	candidate, ok := decision.CandidateOf(o.cluster, tunnel)
	if !ok {
		return reconcile.Result{}, nil // it is going, and was never complete
	}
	resolution := r.names.decide(r.config.Domain, candidate)
	r.enqueue(resolution.Affected)
	status := tunnel.Status.DeepCopy()
	decision.Record(status, resolution)
	status.Edges = liveEdges(status.Edges, r.now())
	if resolution.Fatal != nil {
		return reconcile.Result{}, r.report(ctx, tunnel, status, accepted(resolution))
	}
	return r.serveBootstrap(ctx, tunnel, status, []metav1.Condition{accepted(resolution)})
}

// serveNothing keeps a Tunnel that only says how its Cluster's kubeconfig is written: no name is served, and no edge gets in.
// It keeps its id, for which edges may have certificates.
func (r *tunnels) serveNothing(ctx context.Context, cluster *clusterv1.Cluster, tunnel *v1alpha1.Tunnel) error {
	status := tunnel.Status.DeepCopy()
	if candidate, ok := decision.UnservedCandidate(cluster, tunnel); ok && !r.config.NoTunnels {
		resolution := r.names.decide(r.config.Domain, candidate)
		r.enqueue(resolution.Affected)
		decision.Record(status, resolution)
	} else {
		r.enqueue(r.names.reserve(r.config.Domain, decision.RecordedCandidate(tunnel)))
		decision.RecordNothing(status)
	}
	if !r.config.NoTunnels {
		if err := r.deleteBootstrapSecret(ctx, tunnel); err != nil {
			return err
		}
	}
	status.Tokens = nil
	return r.report(ctx, tunnel, status, notTunnelled(tunnel.Spec.Kubeconfig.Mode))
}

// serveBootstrap chooses a token, reports it with all the rest in one status, and then delivers it.
func (r *tunnels) serveBootstrap(ctx context.Context, tunnel *v1alpha1.Tunnel, status *v1alpha1.TunnelStatus, conditions []metav1.Condition) (reconcile.Result, error) {
	bundle, err := readBundle(ctx, r.client, r.config.Namespace)
	if err != nil {
		return reconcile.Result{}, err
	}
	if len(bundle) == 0 { // a new installation: its ConfigMap starts another reconciliation
		return reconcile.Result{}, r.report(ctx, tunnel, status, conditions...)
	}
	secret, err := r.bootstrapSecret(ctx, client.ObjectKeyFromObject(tunnel))
	if err != nil {
		return reconcile.Result{}, err
	}
	now := r.now()
	token, err := chooseToken(r.config, status, secret, now)
	if err != nil {
		return reconcile.Result{}, err
	}
	reports, err := r.prepareReports(ctx, tunnel, status, now)
	if err != nil {
		return reconcile.Result{}, err
	}
	if err := r.report(ctx, tunnel, status, conditions...); err != nil {
		return reconcile.Result{}, err
	}
	file := bootstrapFile{Gateway: r.config.Public.String(), TunnelDomain: string(r.config.Domain), Token: token, CA: string(bundle)}
	err = errors.Join(r.writeBootstrapSecret(ctx, tunnel, secret, file), r.deliverReports(ctx, tunnel, reports, file))
	return reconcile.Result{RequeueAfter: min(nextLook(r.config, *status, token, now), reports.due+time.Second)}, err
}

// ensureTunnel returns the Tunnel of a Cluster: made, taken over or completed where it has to be.
func (r *tunnels) ensureTunnel(ctx context.Context, o objects) (*v1alpha1.Tunnel, error) {
	if o.tunnel == nil {
		tunnel := &v1alpha1.Tunnel{ObjectMeta: metav1.ObjectMeta{Namespace: o.key.Namespace, Name: o.key.Name}}
		fillTunnel(tunnel, o.cluster)
		if err := r.client.Create(ctx, tunnel); err != nil {
			return nil, wrap("creating Tunnel", err)
		}
		r.log.Info("tunnel created", "cluster", o.key.String(), "tunnel", tunnel.ClaimedID())
		return tunnel, nil
	}
	tunnel := o.tunnel.DeepCopy()
	if o.tunnelGoing() {
		return tunnel, nil // nothing may be added any more
	}
	fillTunnel(tunnel, o.cluster)
	if equality.Semantic.DeepEqual(tunnel, o.tunnel) {
		return tunnel, nil
	}
	return tunnel, wrap("completing Tunnel", r.client.Patch(ctx, tunnel, lockedPatch(o.tunnel)))
}

// report writes a status with these conditions, as condition.Report does.
func (r *tunnels) report(ctx context.Context, tunnel *v1alpha1.Tunnel, status *v1alpha1.TunnelStatus, conditions ...metav1.Condition) error {
	_, err := reportStatus(ctx, statusWriter{r.client, r.recorder, r.log}, tunnel, status, conditions...)
	return err
}

// refuse says that a Tunnel belongs to somebody else.
func (r *tunnels) refuse(ctx context.Context, o objects) error {
	r.enqueue(r.names.reserve(r.config.Domain, decision.RecordedCandidate(o.tunnel)))
	status := o.tunnel.Status.DeepCopy()
	decision.RecordNothing(status)
	return r.report(ctx, o.tunnel, status, controlledByOther(*metav1.GetControllerOf(o.tunnel)))
}
