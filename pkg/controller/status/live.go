// Package status writes what is alive into the status of Tunnels and the condition of their Clusters: edges, tunnels, conditions and
// revocations. In go what edges and gateways have reported to the xds-servers, out come writes of status, the urgent ones
// first and few enough for the apiserver. It writes nothing but status, and does not know how names and tokens are decided.
package status

import (
	"context"
	"math/rand/v2"
	"sync"
	"time"

	"k8s.io/apimachinery/pkg/api/equality"
	apimeta "k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	"github.com/fairlead/fairlead/api/v1alpha1"
	"github.com/fairlead/fairlead/pkg/controller/condition"
	"github.com/fairlead/fairlead/pkg/controller/objects"
	"github.com/fairlead/fairlead/pkg/controller/reconciler"
	"github.com/fairlead/fairlead/pkg/controller/records"
	reportview "github.com/fairlead/fairlead/pkg/report/view"
)

const (
	// writeInterval bounds how often one Tunnel's live state is written: what changes meanwhile is written together. Only a
	// revocation does not wait.
	writeInterval = time.Second
	// askInterval is how soon a tunnel is looked at again of which not everything is known. The view tells when it is; this is
	// for what gets lost.
	askInterval = 30 * time.Second
	// patience is for how long a condition stays that can't be known at the moment.
	patience = time.Minute
)

// View is what edges and gateways report to the xds-servers.
type View interface {
	Tunnel(id string) reportview.Live
}

// Reconciler reconciles the part of a Tunnel's status that comes from what is alive, with the condition on its Cluster. It writes
// nothing but status, and does so while the Cluster is paused too: an edge can be revoked at any time.
type Reconciler struct {
	reconciler.Deps
	view          View // nil: nothing is ever known
	ended         *records.EndedTunnels
	clusterStatus condition.ClusterWriter
	writes        *writeQueue // nil: as often as there is something to write

	mu     sync.Mutex
	memory map[client.ObjectKey]remembered // of the Tunnels that there are
}

// remembered is what is not worth writing down about a Tunnel.
type remembered struct {
	written time.Time            // when its status was written last
	doubts  map[string]time.Time // by type of condition: since when it is not known
}

// recalled is as much of it as a reader needs.
type recalled struct {
	written time.Time
	doubts  int // how many conditions are not known
}

// Reconcile brings the live state of one Tunnel into its status.
func (r *Reconciler) Reconcile(ctx context.Context, request reconcile.Request) (reconcile.Result, error) {
	tunnel, err := objects.Get(ctx, r.Client, request.NamespacedName, &v1alpha1.Tunnel{})
	if err != nil {
		return reconcile.Result{}, objects.Wrap("reading Tunnel", err)
	}
	cluster, err := objects.Get(ctx, r.Client, request.NamespacedName, &clusterv1.Cluster{})
	if err != nil {
		return reconcile.Result{}, objects.Wrap("reading Cluster", err)
	}
	now := r.Now()
	if cluster = records.ServedCluster(cluster, tunnel, now); cluster == nil {
		r.forget(request.NamespacedName)
		r.writes.leave(request.NamespacedName)
		return reconcile.Result{}, nil
	}
	if wait := r.recall(request.NamespacedName).written.Add(writeInterval).Sub(now); wait > 0 && !revocationDue(tunnel, now) {
		return reconcile.Result{RequeueAfter: wait}, nil
	}
	wait, err := r.settle(ctx, objects.Group{Key: request.NamespacedName, Cluster: cluster, Tunnel: tunnel}, now)
	if objects.Conflict(err) {
		r.writes.again(request.NamespacedName)
		return reconcile.Result{RequeueAfter: reconciler.ConflictDelay}, nil
	}
	if err != nil {
		r.writes.leave(request.NamespacedName)
	}
	return reconcile.Result{RequeueAfter: wait}, err
}

// settle writes what differs, unless others have to come first, and returns when to look again.
func (r *Reconciler) settle(ctx context.Context, o objects.Group, now time.Time) (time.Duration, error) {
	if err := r.revive(ctx, o.Tunnel); err != nil {
		return 0, err
	}
	var live reportview.Live
	// What is known by an id is a Tunnel's only if the id is: another one may hold it.
	if r.view != nil && o.Tunnel.HeldID() != "" && o.Tunnel.Spec.Kubeconfig.Mode.Tunnelled() {
		live = r.view.Tunnel(o.Tunnel.HeldID())
	}
	status, events := r.status(o, live, now)
	if err := r.write(ctx, o, status, events, now); err != nil {
		return 0, err
	}
	return r.wait(o.Key, status, live, now), nil
}

// write writes what differs of a Tunnel's status and of the condition on its Cluster, if it is this Tunnel's turn. A revocation does
// not wait for one.
func (r *Reconciler) write(ctx context.Context, o objects.Group, status v1alpha1.TunnelStatus, events []condition.Transition, now time.Time) error {
	tunnelReady := apimeta.FindStatusCondition(status.Conditions, v1alpha1.ConditionTunnelReady)
	tunnelDiffers := r.differs(o.Tunnel.Status, status)
	clusterDiffers := !objects.Paused(o) && o.Cluster.UID != "" && r.clusterStatus.Differs(o.Cluster, tunnelReady)
	switch {
	case !tunnelDiffers && !clusterDiffers:
		r.writes.leave(o.Key)
		return nil
	case revocationDue(o.Tunnel, now):
		r.writes.leave(o.Key)
		r.writes.spend(1)
	case !r.writes.ask(o.Key, urgencyOf(o.Tunnel.Status, status)):
		return nil
	}
	if tunnelDiffers {
		if _, err := condition.Patch(ctx, r.Client, o.Tunnel, status); err != nil {
			return err
		}
		r.remember(o.Key, func(m *remembered) { m.written = now })
		condition.Record(r.Recorder, r.Log, o.Tunnel, events)
	}
	if tunnelDiffers && clusterDiffers {
		r.writes.spend(1)
	}
	switch {
	case !clusterDiffers:
		return nil
	case tunnelReady == nil:
		return r.clusterStatus.Remove(ctx, o.Cluster)
	}
	return r.clusterStatus.Set(ctx, o.Cluster, *tunnelReady)
}

// status is what a Tunnel's status has to be.
func (r *Reconciler) status(o objects.Group, live reportview.Live, now time.Time) (v1alpha1.TunnelStatus, []condition.Transition) {
	status, revoked := *o.Tunnel.Status.DeepCopy(), o.Tunnel.Spec.RevokedEdges
	// First, so that the token of a revoked edge ends before its record can be dropped, and its tunnels are followed.
	revoke(&status, revoked, now)
	status.Edges = mergeEdges(status.Edges, live, revoked, r.Config.LeafLifetime, now)
	noteCut(status.Edges, o.Tunnel.Status.Edges, live, now)
	status.ConnectedEdges, status.Tunnels = connections(status.Edges)
	var conditions []metav1.Condition
	if r.Config.NoTunnels || !o.Tunnel.Spec.Kubeconfig.Mode.Tunnelled() {
		for _, kind := range condition.Live {
			apimeta.RemoveStatusCondition(&status.Conditions, kind)
		}
	} else {
		conditions = []metav1.Condition{enrolled(status.Edges, now), tunnelReady(live, revoked), apiServerReachable(live, revoked)}
	}
	for i, c := range conditions {
		conditions[i] = keepKnown(status.Conditions, c, r.doubt(o.Key, c, now))
	}
	if objects.Paused(o) {
		conditions = append(conditions, metav1.Condition{
			Type: v1alpha1.ConditionPaused, Status: metav1.ConditionTrue, Reason: v1alpha1.ReasonPaused, Message: "only the status is written",
		})
	} else {
		apimeta.RemoveStatusCondition(&status.Conditions, v1alpha1.ConditionPaused)
	}
	events := append(edgeEvents(o.Tunnel.Status.Edges, status.Edges), condition.Set(&status, o.Tunnel.Generation, conditions...)...)
	return status, append(events, condition.Set(&status, o.Tunnel.Generation, ready(status.Conditions))...)
}

// doubt says whether a condition is unknown, but not yet for so long that it has to be said. Each has a time of its own: that
// one is unknown for long says nothing about another.
func (r *Reconciler) doubt(key client.ObjectKey, c metav1.Condition, now time.Time) bool {
	var doubted bool
	r.remember(key, func(m *remembered) {
		if c.Status != metav1.ConditionUnknown {
			delete(m.doubts, c.Type)
			return
		}
		if m.doubts == nil {
			m.doubts = map[string]time.Time{}
		}
		since, ok := m.doubts[c.Type]
		if !ok {
			since = now
			m.doubts[c.Type] = now
		}
		doubted = now.Before(since.Add(patience))
	})
	return doubted
}

// revive takes a tunnel off the record of those that have ended, if it lives: its Cluster was moved back, or restored.
func (r *Reconciler) revive(ctx context.Context, tunnel *v1alpha1.Tunnel) error {
	id := tunnel.ClaimedID() // a Tunnel that was restored paused has no record yet, and its edges are to come back
	if id == "" || !r.ended.Has(id) || !tunnel.DeletionTimestamp.IsZero() {
		return nil
	}
	return r.ended.Revive(ctx, id, func() (bool, error) {
		key := client.ObjectKeyFromObject(tunnel)
		now, err := objects.Get(ctx, r.Live, key, &v1alpha1.Tunnel{})
		if err != nil || now == nil {
			return false, objects.Wrap("reading Tunnel", err)
		}
		cluster, err := objects.Get(ctx, r.Live, key, &clusterv1.Cluster{})
		if err != nil || cluster == nil {
			return false, objects.Wrap("reading Cluster", err)
		}
		lives := now.DeletionTimestamp.IsZero() && now.ClaimedID() == id && metav1.IsControlledBy(now, cluster)
		if lives {
			r.Log.Info("ended tunnel is live again", "cluster", key.String(), "tunnel", id)
		}
		return lives, nil
	})
}

// differs says whether a status is to be written: not only for a later lastSeen.
func (r *Reconciler) differs(before, after v1alpha1.TunnelStatus) bool {
	if !sameButSeen(before.Edges, after.Edges, equality.Semantic.DeepEqual) {
		return true
	}
	before.Edges, after.Edges = nil, nil
	return !equality.Semantic.DeepEqual(before, after)
}

// wait is when something changes by time alone.
func (r *Reconciler) wait(key client.ObjectKey, status v1alpha1.TunnelStatus, live reportview.Live, now time.Time) time.Duration {
	wait := seenInterval + rand.N(seenInterval/10) // spread, so that not all Tunnels are written together
	if r.view != nil && !live.Known {
		wait = askInterval + rand.N(askInterval/2)
	}
	if r.view != nil && r.recall(key).doubts > 0 {
		wait = min(wait, patience)
	}
	if end := firstEnd(status.Edges, now); !end.IsZero() {
		wait = min(wait, end.Sub(now)+time.Second)
	}
	return wait
}

func (r *Reconciler) recall(key client.ObjectKey) recalled {
	r.mu.Lock()
	defer r.mu.Unlock()
	m := r.memory[key]
	return recalled{written: m.written, doubts: len(m.doubts)}
}

func (r *Reconciler) remember(key client.ObjectKey, change func(*remembered)) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.memory == nil {
		r.memory = map[client.ObjectKey]remembered{}
	}
	m := r.memory[key]
	change(&m)
	r.memory[key] = m
}

func (r *Reconciler) forget(key client.ObjectKey) {
	r.mu.Lock()
	defer r.mu.Unlock()
	delete(r.memory, key)
}
