// Package status writes live state into the status of Tunnels and the condition of their Clusters: edges, tunnels,
// conditions and revocations. Its input is the reports of edges and gateways to the xds-servers; its output is writes
// of status, urgent ones first, at a rate that the apiserver can bear. It writes nothing but status, and does not know
// how names and tokens are decided.
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
	"github.com/fairlead/fairlead/pkg/observed"
	reportview "github.com/fairlead/fairlead/pkg/report/view"
)

const (
	// writeInterval is the least time between two writes of one Tunnel's live state. Changes in between are written
	// together. Only a revocation does not wait.
	writeInterval = time.Second
	// askInterval is how soon a tunnel with incomplete live state is checked again. The view notifies when the state is
	// complete; this interval covers lost notifications.
	askInterval = 30 * time.Second
	// decisionTime is how long a write waits for the decision about a spec. Creation times are whole seconds.
	decisionTime = 3 * time.Second
	// patience is how long a condition stays that is unknown at the moment.
	patience = time.Minute
)

// View provides what edges and gateways report to the xds-servers.
type View interface {
	Tunnel(id string) reportview.Live
}

// Reconciler writes the live part of a Tunnel's status and the condition on its Cluster. It writes nothing but status.
// It also does so while the Cluster is paused, because an edge can be revoked at any time.
type Reconciler struct {
	reconciler.Deps
	view          View // nil: live state is never known
	ended         *records.EndedTunnels
	clusterStatus condition.ClusterWriter
	writes        *writeQueue // nil: writes are not limited
	figures       Figures

	mu     sync.Mutex
	memory map[client.ObjectKey]remembered // of existing Tunnels
}

// remembered is state of a Tunnel that is not worth persisting.
type remembered struct {
	written time.Time            // when its status was written last
	doubts  map[string]time.Time // by type of condition: since when it is unknown
	pending time.Time            // since when a change may wait to be written; zero: none does
	revoked map[string]time.Time // by node id: when its revocation was seen
	// since when a decision about a changed spec is awaited; zero: none is
	undecided time.Time
}

// recalled is a copy of the part of remembered that readers need.
type recalled struct {
	written time.Time
	doubts  int // number of unknown conditions
}

// Reconcile writes the live state of one Tunnel into its status.
func (r *Reconciler) Reconcile(ctx context.Context, request reconcile.Request) (reconcile.Result, error) {
	tunnel, err := objects.Get(ctx, r.Client, request.NamespacedName, &v1alpha1.Tunnel{})
	if err != nil {
		return reconcile.Result{}, objects.Wrap("reading Tunnel", err)
	}
	var cluster *clusterv1.Cluster
	if tunnel != nil {
		if cluster, err = objects.ClusterOf(ctx, r.Client, tunnel); err != nil {
			return reconcile.Result{}, err
		}
	}
	now := r.Now()
	if cluster = records.ServedCluster(cluster, tunnel, now); cluster == nil {
		r.forget(request.NamespacedName)
		r.writes.leave(request.NamespacedName)
		return reconcile.Result{}, nil
	}
	if wait := r.postponed(tunnel, now); wait > 0 {
		r.remember(request.NamespacedName, func(m *remembered) { m.pending = earliest(m.pending, now) })
		return reconcile.Result{RequeueAfter: wait}, nil
	}
	wait, err := r.update(ctx, objects.Group{Key: request.NamespacedName, Cluster: cluster, Tunnel: tunnel}, now)
	switch {
	case objects.Conflict(err):
		r.writes.returnTurn(request.NamespacedName)
	case err != nil:
		r.writes.leave(request.NamespacedName)
	}
	return reconciler.Retry(reconciler.Timed(reconcile.Result{RequeueAfter: wait}), err)
}

// postponed returns how long a write must wait: for the decision about the spec, and for writeInterval. A revocation
// does not wait.
func (r *Reconciler) postponed(tunnel *v1alpha1.Tunnel, now time.Time) time.Duration {
	if revocationDue(tunnel, now) {
		return 0
	}
	last := r.recall(client.ObjectKeyFromObject(tunnel)).written
	return max(
		reconciler.Remaining(r.undecidedSince(tunnel, now), decisionTime, now),
		reconciler.Remaining(last, writeInterval, now),
	)
}

// undecidedSince returns since when the decision about the spec of a Tunnel is awaited, or the zero time. The decision
// is one write, which contains what Initial returns if the Tunnel is new. A write before it would be a conflict for it,
// and clients would wait for what it grants. Some Tunnels get no decision, for example of paused Clusters, so further
// changes of a spec do not prolong the wait.
func (r *Reconciler) undecidedSince(tunnel *v1alpha1.Tunnel, now time.Time) (since time.Time) {
	accepted := apimeta.FindStatusCondition(tunnel.Status.Conditions, v1alpha1.ConditionAccepted)
	switch {
	case accepted != nil:
		r.remember(client.ObjectKeyFromObject(tunnel), func(m *remembered) {
			if accepted.ObservedGeneration == tunnel.Generation {
				m.undecided = time.Time{}
			} else {
				m.undecided = earliest(m.undecided, now)
			}
			since = m.undecided
		})
	case tunnel.HeldID() == "" && len(tunnel.Status.Conditions) == 0 && !tunnel.CreationTimestamp.After(now):
		since = tunnel.CreationTimestamp.Time
	}
	return since
}

// Initial is a tunnel.Initial: it returns the conditions of a Tunnel to which no edge is connected.
func (r *Reconciler) Initial(_ context.Context, o objects.Group, _ *v1alpha1.TunnelStatus) []metav1.Condition {
	if r.Config.NoTunnels || !o.Tunnel.Spec.Kubeconfig.Mode.Tunnelled() {
		return nil
	}
	live := r.live(o.Tunnel)
	if len(live.Edges) > 0 {
		return nil // it is not new: Reconcile records the edges too
	}
	conditions := liveConditions(o.Tunnel, nil, live, r.Config.GatewaysPerTunnel, r.Now())
	status := *o.Tunnel.Status.DeepCopy()
	condition.Set(&status, o.Tunnel.Generation, conditions...)
	return append(conditions, ready(o.Tunnel, status.Conditions))
}

// live returns what is reported about a Tunnel, whatever its mode: a Tunnel with a mode without a tunnel keeps its id,
// and the reports say when the tunnels that it had are closed.
func (r *Reconciler) live(tunnel *v1alpha1.Tunnel) reportview.Live {
	// Reports carry ids, so they belong to this Tunnel only if it holds the id: another Tunnel may.
	if r.view == nil || tunnel.HeldID() == "" {
		return reportview.Live{}
	}
	return r.view.Tunnel(tunnel.HeldID())
}

// update writes what differs, unless the write has to wait its turn, and returns when to reconcile again.
func (r *Reconciler) update(ctx context.Context, o objects.Group, now time.Time) (time.Duration, error) {
	if err := r.revive(ctx, o.Tunnel); err != nil {
		return 0, err
	}
	live := r.live(o.Tunnel)
	status, events := r.status(o, live, now)
	if err := r.write(ctx, o, status, events, now); err != nil {
		return 0, err
	}
	return r.wait(o.Key, status, live, now), nil
}

// write writes the Tunnel's status and the condition on its Cluster if they differ and writeQueue permits it. A
// revocation does not wait.
func (r *Reconciler) write(
	ctx context.Context, o objects.Group, status v1alpha1.TunnelStatus, events []condition.Transition, now time.Time,
) error {
	tunnelReady := apimeta.FindStatusCondition(status.Conditions, v1alpha1.ConditionTunnelReady)
	tunnelDiffers := r.differs(o.Tunnel.Status, status)
	ofCluster := o.Cluster.UID != "" && o.Tunnel.OfCluster()
	clusterDiffers := ofCluster && !objects.Paused(o) && r.clusterStatus.Differs(o.Cluster, tunnelReady)
	before, pending := *o.Tunnel.Status.DeepCopy(), now
	r.remember(o.Key, func(m *remembered) {
		if pending = earliest(m.pending, now); tunnelDiffers {
			m.pending = pending
		} else {
			m.pending = time.Time{}
		}
	})
	switch {
	case !tunnelDiffers && !clusterDiffers:
		r.writes.leave(o.Key)
		return nil
	case revocationDue(o.Tunnel, now):
		r.writes.leave(o.Key)
		r.writes.spend(1)
	case !r.writes.request(o.Key, urgencyOf(o.Tunnel.Status, status)):
		return nil
	}
	if tunnelDiffers {
		if _, err := condition.Patch(ctx, r.Client, o.Tunnel, status); err != nil {
			return err
		}
		r.written(o.Key, before, status, pending, now)
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

// status returns the status as it must be.
func (r *Reconciler) status(
	o objects.Group, live reportview.Live, now time.Time,
) (v1alpha1.TunnelStatus, []condition.Transition) {
	status, revoked := *o.Tunnel.Status.DeepCopy(), o.Tunnel.Spec.RevokedEdges
	// First, so that the token of a revoked edge ends before its record can be removed, and its tunnels are tracked.
	revoke(&status, revoked, now)
	status.Edges = mergeEdges(status.Edges, live, revoked, r.Config.LeafLifetime, now)
	recordCut(status.Edges, o.Tunnel.Status.Edges, live, now)
	if o.Tunnel.Spec.EgressOf != "" {
		recordConnected(status.Edges, live)
	}
	edges := observed.Recorded(&v1alpha1.Tunnel{Spec: o.Tunnel.Spec, Status: status}, now)
	status.ConnectedEdges, status.Tunnels = connections(edges)
	var conditions []metav1.Condition
	if r.Config.NoTunnels || !o.Tunnel.Spec.Kubeconfig.Mode.Tunnelled() {
		for _, kind := range condition.Live {
			apimeta.RemoveStatusCondition(&status.Conditions, kind)
		}
	} else {
		conditions = liveConditions(o.Tunnel, edges, live, r.Config.GatewaysPerTunnel, now)
	}
	for i, c := range conditions {
		conditions[i] = keepKnown(status.Conditions, c, r.doubt(o.Key, c, now))
	}
	if objects.Paused(o) {
		conditions = append(conditions, metav1.Condition{
			Type: v1alpha1.ConditionPaused, Status: metav1.ConditionTrue, Reason: v1alpha1.ReasonPaused,
			Message: "only the status is written",
		})
	} else {
		apimeta.RemoveStatusCondition(&status.Conditions, v1alpha1.ConditionPaused)
	}
	events := append(
		edgeEvents(o.Tunnel.Status.Edges, status.Edges),
		condition.Set(&status, o.Tunnel.Generation, conditions...)...)
	return status, append(events, condition.Set(&status, o.Tunnel.Generation, ready(o.Tunnel, status.Conditions))...)
}

// written records a write of a Tunnel's status, and measures it. Measurements end when the apiserver has answered.
func (r *Reconciler) written(key client.ObjectKey, before, after v1alpha1.TunnelStatus, pending, now time.Time) {
	var cut []time.Duration
	end := r.Now()
	r.remember(key, func(m *remembered) {
		m.written, m.pending = now, time.Time{}
		m.revoked, cut = cutTimes(m.revoked, before.Edges, after.Edges, now)
	})
	if r.figures.Written != nil {
		r.figures.Written(urgencyNames[urgencyOf(before, after)], end.Sub(pending))
	}
	if r.figures.Cut == nil {
		return
	}
	for _, d := range cut {
		r.figures.Cut(d)
	}
}

// earliest returns a time, or now if it is zero.
func earliest(at, now time.Time) time.Time {
	if at.IsZero() {
		return now
	}
	return at
}

// doubt reports whether a condition is unknown, but not for long enough to be reported. Each condition has its own
// time, because they are independent.
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
		if !ok || since.After(now) { // the clock was corrected
			since = now
			m.doubts[c.Type] = now
		}
		doubted = now.Before(since.Add(patience))
	})
	return doubted
}

// revive removes a tunnel from the record of ended tunnels if it exists again: its Cluster was moved back or restored.
func (r *Reconciler) revive(ctx context.Context, tunnel *v1alpha1.Tunnel) error {
	id := tunnel.ClaimedID() // a Tunnel that was restored paused has no record yet, and its edges must be able to return
	if id == "" || !r.ended.Has(id) || !tunnel.DeletionTimestamp.IsZero() {
		return nil
	}
	return r.ended.Revive(ctx, id, func() (bool, error) {
		key := client.ObjectKeyFromObject(tunnel)
		now, err := objects.Get(ctx, r.Live, key, &v1alpha1.Tunnel{})
		if err != nil || now == nil {
			return false, objects.Wrap("reading Tunnel", err)
		}
		cluster, err := objects.ClusterOf(ctx, r.Live, now)
		if err != nil || cluster == nil {
			return false, err
		}
		lives := now.DeletionTimestamp.IsZero() && now.ClaimedID() == id &&
			(now.Spec.Network != "" || metav1.IsControlledBy(now, cluster))
		if lives {
			r.Log.Info("ended tunnel is live again", "cluster", key.String(), "tunnel", id)
		}
		return lives, nil
	})
}

// differs reports whether a status must be written. A slightly later lastSeen is not sufficient.
func (r *Reconciler) differs(before, after v1alpha1.TunnelStatus) bool {
	if !sameButSeen(before.Edges, after.Edges, equality.Semantic.DeepEqual) {
		return true
	}
	before.Edges, after.Edges = nil, nil
	return !equality.Semantic.DeepEqual(before, after)
}

// wait returns when something may change by time alone.
func (r *Reconciler) wait(
	key client.ObjectKey, status v1alpha1.TunnelStatus, live reportview.Live, now time.Time,
) time.Duration {
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
