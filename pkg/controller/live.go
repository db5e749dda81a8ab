package controller

import (
	"context"
	"log/slog"
	"math/rand/v2"
	"sync"
	"time"

	"k8s.io/apimachinery/pkg/api/equality"
	apimeta "k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/tools/events"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	"github.com/fairlead/fairlead/api/v1alpha1"
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

// liveView is what edges and gateways report to the xds-servers.
type liveView interface {
	Tunnel(id string) reportview.Live
}

// liveStatus reconciles the part of a Tunnel's status that comes from what is alive, with the condition on its Cluster. It writes
// nothing but status, and does so while the Cluster is paused too: an edge can be revoked at any time.
type liveStatus struct {
	config        Config
	client        client.Client // reads come from the cache
	live          client.Reader // reads come from the apiserver
	log           *slog.Logger
	recorder      events.EventRecorder
	now           func() time.Time
	view          liveView // nil: nothing is ever known
	ended         *endedTunnels
	clusterStatus clusterStatus
	writes        *statusWrites // nil: as often as there is something to write

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
func (r *liveStatus) Reconcile(ctx context.Context, request reconcile.Request) (reconcile.Result, error) {
	tunnel, err := get(ctx, r.client, request.NamespacedName, &v1alpha1.Tunnel{})
	if err != nil {
		return reconcile.Result{}, wrap("reading Tunnel", err)
	}
	cluster, err := get(ctx, r.client, request.NamespacedName, &clusterv1.Cluster{})
	if err != nil {
		return reconcile.Result{}, wrap("reading Cluster", err)
	}
	now := r.now()
	if cluster = awaited(cluster, tunnel, now); cluster == nil {
		r.forget(request.NamespacedName)
		r.writes.leave(request.NamespacedName)
		return reconcile.Result{}, nil
	}
	if wait := r.recall(request.NamespacedName).written.Add(writeInterval).Sub(now); wait > 0 && !revocationDue(tunnel, now) {
		return reconcile.Result{RequeueAfter: wait}, nil
	}
	wait, err := r.settle(ctx, objects{key: request.NamespacedName, cluster: cluster, tunnel: tunnel}, now)
	if conflict(err) {
		r.writes.again(request.NamespacedName)
		return reconcile.Result{RequeueAfter: conflictDelay}, nil
	}
	if err != nil {
		r.writes.leave(request.NamespacedName)
	}
	return reconcile.Result{RequeueAfter: wait}, err
}

// settle writes what differs, unless others have to come first, and returns when to look again.
func (r *liveStatus) settle(ctx context.Context, o objects, now time.Time) (time.Duration, error) {
	if err := r.revive(ctx, o.tunnel); err != nil {
		return 0, err
	}
	var live reportview.Live
	// What is known by an id is a Tunnel's only if the id is: another one may hold it.
	if r.view != nil && o.tunnel.HeldID() != "" && o.tunnel.Spec.Kubeconfig.Mode.Tunnelled() {
		live = r.view.Tunnel(o.tunnel.HeldID())
	}
	status, events := r.status(o, live, now)
	if err := r.write(ctx, o, status, events, now); err != nil {
		return 0, err
	}
	return r.wait(o.key, status, live, now), nil
}

// write writes what differs of a Tunnel's status and of the condition on its Cluster, if it is this Tunnel's turn. A revocation does
// not wait for one.
func (r *liveStatus) write(ctx context.Context, o objects, status v1alpha1.TunnelStatus, events []transition, now time.Time) error {
	condition := apimeta.FindStatusCondition(status.Conditions, v1alpha1.ConditionTunnelReady)
	tunnelDiffers := r.differs(o.tunnel.Status, status)
	clusterDiffers := !paused(o) && o.cluster.UID != "" && r.clusterStatus.differs(o.cluster, condition)
	switch {
	case !tunnelDiffers && !clusterDiffers:
		r.writes.leave(o.key)
		return nil
	case revocationDue(o.tunnel, now):
		r.writes.leave(o.key)
		r.writes.spend(1)
	case !r.writes.ask(o.key, urgencyOf(o.tunnel.Status, status)):
		return nil
	}
	if tunnelDiffers {
		if err := writeStatus(ctx, r.client, o.tunnel, status); err != nil {
			return err
		}
		r.remember(o.key, func(m *remembered) { m.written = now })
		tell(r.recorder, r.log, o.tunnel, events)
	}
	if tunnelDiffers && clusterDiffers {
		r.writes.spend(1)
	}
	switch {
	case !clusterDiffers:
		return nil
	case condition == nil:
		return r.clusterStatus.remove(ctx, o.cluster)
	}
	return r.clusterStatus.set(ctx, o.cluster, *condition)
}

// status is what a Tunnel's status has to be.
func (r *liveStatus) status(o objects, live reportview.Live, now time.Time) (v1alpha1.TunnelStatus, []transition) {
	status, revoked := *o.tunnel.Status.DeepCopy(), o.tunnel.Spec.RevokedEdges
	// First, so that the token of a revoked edge ends before its record can be dropped, and its tunnels are followed.
	revoke(&status, revoked, now)
	status.Edges = mergeEdges(status.Edges, live, revoked, r.config.LeafLifetime, now)
	noteCut(status.Edges, o.tunnel.Status.Edges, live, now)
	status.ConnectedEdges, status.Tunnels = connections(status.Edges)
	var conditions []metav1.Condition
	if r.config.NoTunnels || !o.tunnel.Spec.Kubeconfig.Mode.Tunnelled() {
		for _, kind := range liveConditions {
			apimeta.RemoveStatusCondition(&status.Conditions, kind)
		}
	} else {
		conditions = []metav1.Condition{enrolled(status.Edges, now), tunnelReady(live, revoked), apiServerReachable(live, revoked)}
	}
	for i, c := range conditions {
		conditions[i] = keepKnown(status.Conditions, c, r.doubt(o.key, c, now))
	}
	if paused(o) {
		conditions = append(conditions, metav1.Condition{
			Type: v1alpha1.ConditionPaused, Status: metav1.ConditionTrue, Reason: v1alpha1.ReasonPaused, Message: "nothing but the status is written",
		})
	} else {
		apimeta.RemoveStatusCondition(&status.Conditions, v1alpha1.ConditionPaused)
	}
	events := append(edgeEvents(o.tunnel.Status.Edges, status.Edges), setConditions(&status, o.tunnel.Generation, conditions...)...)
	return status, append(events, setConditions(&status, o.tunnel.Generation, ready(status.Conditions))...)
}

// doubt says whether a condition is unknown, but not yet for so long that it has to be said. Each has a time of its own: that
// one is unknown for long says nothing about another.
func (r *liveStatus) doubt(key client.ObjectKey, c metav1.Condition, now time.Time) bool {
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
func (r *liveStatus) revive(ctx context.Context, tunnel *v1alpha1.Tunnel) error {
	id := tunnel.ClaimedID() // a Tunnel that was restored paused has no record yet, and its edges are to come back
	if id == "" || !r.ended.has(id) || !tunnel.DeletionTimestamp.IsZero() {
		return nil
	}
	return r.ended.revive(ctx, id, func() (bool, error) {
		key := client.ObjectKeyFromObject(tunnel)
		now, err := get(ctx, r.live, key, &v1alpha1.Tunnel{})
		if err != nil || now == nil {
			return false, wrap("reading Tunnel", err)
		}
		cluster, err := get(ctx, r.live, key, &clusterv1.Cluster{})
		if err != nil || cluster == nil {
			return false, wrap("reading Cluster", err)
		}
		lives := now.DeletionTimestamp.IsZero() && now.ClaimedID() == id && metav1.IsControlledBy(now, cluster)
		if lives {
			r.log.Info("a tunnel that had ended lives again", "cluster", key.String(), "tunnel", id)
		}
		return lives, nil
	})
}

// differs says whether a status is to be written: not only for a later lastSeen.
func (r *liveStatus) differs(before, after v1alpha1.TunnelStatus) bool {
	if !sameButSeen(before.Edges, after.Edges, equality.Semantic.DeepEqual) {
		return true
	}
	before.Edges, after.Edges = nil, nil
	return !equality.Semantic.DeepEqual(before, after)
}

// wait is when something changes by time alone.
func (r *liveStatus) wait(key client.ObjectKey, status v1alpha1.TunnelStatus, live reportview.Live, now time.Time) time.Duration {
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

func (r *liveStatus) recall(key client.ObjectKey) recalled {
	r.mu.Lock()
	defer r.mu.Unlock()
	m := r.memory[key]
	return recalled{written: m.written, doubts: len(m.doubts)}
}

func (r *liveStatus) remember(key client.ObjectKey, change func(*remembered)) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.memory == nil {
		r.memory = map[client.ObjectKey]remembered{}
	}
	m := r.memory[key]
	change(&m)
	r.memory[key] = m
}

func (r *liveStatus) forget(key client.ObjectKey) {
	r.mu.Lock()
	defer r.mu.Unlock()
	delete(r.memory, key)
}
