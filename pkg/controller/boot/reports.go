// Package boot records what machines report during boot in a condition of their Machine objects. Its input is boot
// reports and Machines; its output is conditions and events. It writes no Tunnel, and a report that matches no Machine
// changes none.
package boot

import (
	"context"
	"errors"
	"slices"
	"strings"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	apimeta "k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	"github.com/fairlead/fairlead/api/v1alpha1"
	"github.com/fairlead/fairlead/pkg/controller/condition"
	"github.com/fairlead/fairlead/pkg/controller/objects"
	"github.com/fairlead/fairlead/pkg/controller/reconciler"
	"github.com/fairlead/fairlead/pkg/report"
)

const (
	// bootInterval is the least time between two reconciliations of the Machines of one Cluster. Changes in between are
	// handled together.
	bootInterval = 2 * time.Second
)

// View provides the boot reports of machines.
type View interface {
	Boots(id string) (all []report.Boot, known bool)
}

// Reconciler writes one condition of the Machines of one Cluster from their boot reports, and records events. It writes
// nothing else.
type Reconciler struct {
	reconciler.Deps
	view View

	mu     sync.Mutex
	memory map[client.ObjectKey]*bootMemory // of existing Tunnels
}

// bootMemory is state that is not worth persisting.
type bootMemory struct {
	looked           time.Time
	matched          map[string]match         // by host, for the current reports
	unknownSources   map[string]unknownSource // by host
	lastUnknownEvent time.Time                // when the last event about unknown sources was recorded
}

// Reconcile writes the boot reports of one Cluster's machines into their conditions.
func (r *Reconciler) Reconcile(ctx context.Context, request reconcile.Request) (reconcile.Result, error) {
	key := request.NamespacedName
	cluster, err := objects.Get(ctx, r.Client, key, &clusterv1.Cluster{})
	if err != nil {
		return reconcile.Result{}, objects.Wrap("reading Cluster", err)
	}
	tunnel, err := objects.Get(ctx, r.Client, key, &v1alpha1.Tunnel{})
	if err != nil {
		return reconcile.Result{}, objects.Wrap("reading Tunnel", err)
	}
	if cluster == nil || tunnel == nil || !metav1.IsControlledBy(tunnel, cluster) || tunnel.HeldID() == "" ||
		!tunnel.Spec.Kubeconfig.Mode.Tunnelled() {
		r.forget(key)
		return reconcile.Result{}, nil
	}
	if objects.Paused(objects.Group{Cluster: cluster, Tunnel: tunnel}) {
		return reconcile.Result{}, nil // the end of the pause triggers another reconciliation
	}
	now := r.Now()
	if wait := r.tooSoon(key, now); wait > 0 {
		return reconcile.Result{RequeueAfter: wait}, nil
	}
	wait, err := r.update(ctx, cluster, tunnel, now)
	return reconciler.Retry(reconcile.Result{RequeueAfter: wait}, err)
}

// update writes the conditions that differ. It returns the wait after which time alone may change one; 0 means never.
func (r *Reconciler) update(
	ctx context.Context, cluster *clusterv1.Cluster, tunnel *v1alpha1.Tunnel, now time.Time,
) (time.Duration, error) {
	machines, err := r.machines(ctx, cluster)
	if err != nil {
		return 0, err
	}
	boots, known := r.view.Boots(tunnel.HeldID())
	byMachine, left := r.assign(client.ObjectKeyFromObject(cluster), machines, boots)
	c := bootCircumstances{
		now: now, known: known, after: reportAfter(r.Config),
		// An absent report counts against a machine only if the Cluster gives its machines the means to report.
		expected: cluster.Annotations[v1alpha1.BootReportsAnnotation] == v1alpha1.BootReportsEnabled &&
			len(tunnel.Status.BootReportTokens) > 0,
	}
	next := r.reportUnknownSources(cluster, left, now)
	var errs []error
	for _, m := range machines {
		if objects.HasPause(m) {
			continue
		}
		var boot *report.Boot
		if b, ok := byMachine[m.Name]; ok {
			boot = &b
		}
		want, again := bootCondition(m, boot, c)
		if next = sooner(next, again); want != nil {
			errs = append(errs, r.write(ctx, m, *want))
		}
	}
	return next, errors.Join(errs...)
}

// machines returns the Machines of a Cluster in order. The label can be indexed, but the field is authoritative.
func (r *Reconciler) machines(ctx context.Context, cluster *clusterv1.Cluster) ([]*clusterv1.Machine, error) {
	var list clusterv1.MachineList
	err := r.Client.List(
		ctx, &list, client.InNamespace(cluster.Namespace), client.MatchingLabels{clusterv1.ClusterNameLabel: cluster.Name},
	)
	if err != nil {
		return nil, objects.Wrap("listing Machines", err)
	}
	var all []*clusterv1.Machine
	for i := range list.Items {
		if list.Items[i].Spec.ClusterName == cluster.Name {
			all = append(all, &list.Items[i])
		}
	}
	slices.SortFunc(all, func(a, b *clusterv1.Machine) int { return strings.Compare(a.Name, b.Name) })
	return all, nil
}

// write writes the condition of a Machine if it differs, and records an event if its state has changed.
func (r *Reconciler) write(ctx context.Context, m *clusterv1.Machine, c metav1.Condition) error {
	c.ObservedGeneration = m.Generation
	have := apimeta.FindStatusCondition(m.Status.Conditions, c.Type)
	news := have == nil || have.Status != c.Status || have.Reason != c.Reason
	want := slices.Clone(m.Status.Conditions)
	if !apimeta.SetStatusCondition(&want, c) {
		return nil
	}
	kind := clusterv1.GroupVersion.WithKind("Machine")
	if err := condition.Apply(ctx, r.Client, kind, m, []metav1.Condition{*apimeta.FindStatusCondition(want,
		c.Type)}); err != nil {
		return err
	}
	if news {
		r.recordEvent(m, c)
	}
	return nil
}

// recordEvent records an event for a changed condition. The first unknown state is not an event.
func (r *Reconciler) recordEvent(m *clusterv1.Machine, c metav1.Condition) {
	if c.Reason == v1alpha1.ReasonWaitingForReport {
		return
	}
	kind := corev1.EventTypeNormal
	if c.Status == metav1.ConditionFalse {
		kind = corev1.EventTypeWarning
	}
	r.Recorder.Eventf(m, nil, kind, c.Reason, "Boot", "%s", condition.Shorten(c.Message))
	r.Log.Info("machine reported", "machine", client.ObjectKeyFromObject(m).String(), "reason", c.Reason)
}

// assign calls the function assign with the stored matches.
func (r *Reconciler) assign(
	key client.ObjectKey, machines []*clusterv1.Machine, boots []report.Boot,
) (byMachine map[string]report.Boot, left []unmatched) {
	r.mu.Lock()
	defer r.mu.Unlock()
	m := r.recall(key)
	byMachine, left, m.matched = assign(machines, boots, m.matched)
	return byMachine, left
}

// tooSoon returns how long to wait before the next reconciliation of a Cluster's Machines.
func (r *Reconciler) tooSoon(key client.ObjectKey, now time.Time) time.Duration {
	r.mu.Lock()
	defer r.mu.Unlock()
	m := r.recall(key)
	if wait := reconciler.Remaining(m.looked, bootInterval, now); wait > 0 {
		return wait
	}
	m.looked = now
	return 0
}

// recall returns the memory of a Tunnel. The caller holds the lock.
func (r *Reconciler) recall(key client.ObjectKey) *bootMemory {
	if r.memory == nil {
		r.memory = map[client.ObjectKey]*bootMemory{}
	}
	if r.memory[key] == nil {
		r.memory[key] = &bootMemory{}
	}
	return r.memory[key]
}

func (r *Reconciler) forget(key client.ObjectKey) {
	r.mu.Lock()
	defer r.mu.Unlock()
	delete(r.memory, key)
}

// sooner returns the shorter of two waits, where 0 means forever.
func sooner(a, b time.Duration) time.Duration {
	if a == 0 || b == 0 {
		return a + b
	}
	return min(a, b)
}
