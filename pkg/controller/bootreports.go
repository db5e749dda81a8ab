package controller

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
	"github.com/fairlead/fairlead/pkg/report"
)

const (
	// bootInterval bounds how often the Machines of one Cluster are looked at: what comes meanwhile is looked at together.
	bootInterval = 2 * time.Second
)

// bootView is what machines report of how they boot.
type bootView interface {
	Boots(id string) (all []report.Boot, known bool)
}

// bootReports reconciles the Machines of one Cluster with what they report. It writes one condition of Machines, events, and nothing
// else.
type bootReports struct {
	deps
	view bootView

	mu     sync.Mutex
	memory map[client.ObjectKey]*bootMemory // of the Tunnels that there are
}

// bootMemory is what is not worth writing down.
type bootMemory struct {
	looked    time.Time
	matched   map[string]match    // by host, of the reports that there are
	strangers map[string]stranger // by host
	told      time.Time           // when strangers were told of last
}

// Reconcile brings what the machines of one Cluster report into their conditions.
func (r *bootReports) Reconcile(ctx context.Context, request reconcile.Request) (reconcile.Result, error) {
	key := request.NamespacedName
	cluster, err := get(ctx, r.client, key, &clusterv1.Cluster{})
	if err != nil {
		return reconcile.Result{}, wrap("reading Cluster", err)
	}
	tunnel, err := get(ctx, r.client, key, &v1alpha1.Tunnel{})
	if err != nil {
		return reconcile.Result{}, wrap("reading Tunnel", err)
	}
	if cluster == nil || tunnel == nil || !metav1.IsControlledBy(tunnel, cluster) || tunnel.HeldID() == "" || !tunnel.Spec.Kubeconfig.Mode.Tunnelled() {
		r.forget(key)
		return reconcile.Result{}, nil
	}
	if paused(objects{cluster: cluster, tunnel: tunnel}) {
		return reconcile.Result{}, nil // the end of the pause is an event
	}
	now := r.now()
	if wait := r.tooSoon(key, now); wait > 0 {
		return reconcile.Result{RequeueAfter: wait}, nil
	}
	wait, err := r.settle(ctx, cluster, tunnel, now)
	if conflict(err) {
		return reconcile.Result{RequeueAfter: conflictDelay}, nil
	}
	return reconcile.Result{RequeueAfter: wait}, err
}

// settle writes what differs, and returns when time alone may change something; 0: never.
func (r *bootReports) settle(ctx context.Context, cluster *clusterv1.Cluster, tunnel *v1alpha1.Tunnel, now time.Time) (time.Duration, error) {
	machines, err := r.machines(ctx, cluster)
	if err != nil {
		return 0, err
	}
	boots, known := r.view.Boots(tunnel.HeldID())
	byMachine, left := r.assign(client.ObjectKeyFromObject(cluster), machines, boots)
	c := bootCircumstances{
		now: now, known: known, after: reportAfter(r.config),
		// A machine can only be blamed for its silence where there is something that it can report with.
		expected: cluster.Annotations[v1alpha1.BootReportsAnnotation] == v1alpha1.BootReportsEnabled && len(tunnel.Status.BootReportTokens) > 0,
	}
	next := r.strangers(cluster, left, now)
	var errs []error
	for _, m := range machines {
		if hasPause(m) {
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

// machines are those of a Cluster, in order. The label is what can be looked up, the field is what counts.
func (r *bootReports) machines(ctx context.Context, cluster *clusterv1.Cluster) ([]*clusterv1.Machine, error) {
	var list clusterv1.MachineList
	err := r.client.List(ctx, &list, client.InNamespace(cluster.Namespace), client.MatchingLabels{clusterv1.ClusterNameLabel: cluster.Name})
	if err != nil {
		return nil, wrap("listing Machines", err)
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

// write writes the condition of a Machine, if it is not there already, and tells of a change that is one.
func (r *bootReports) write(ctx context.Context, m *clusterv1.Machine, c metav1.Condition) error {
	c.ObservedGeneration = m.Generation
	have := apimeta.FindStatusCondition(m.Status.Conditions, c.Type)
	news := have == nil || have.Status != c.Status || have.Reason != c.Reason
	want := slices.Clone(m.Status.Conditions)
	if !apimeta.SetStatusCondition(&want, c) {
		return nil
	}
	kind := clusterv1.GroupVersion.WithKind("Machine")
	if err := applyConditions(ctx, r.client, kind, m, []metav1.Condition{*apimeta.FindStatusCondition(want, c.Type)}); err != nil {
		return err
	}
	if news {
		r.tell(m, c)
	}
	return nil
}

// tell makes an event of a condition that is new. That nothing was heard yet is none.
func (r *bootReports) tell(m *clusterv1.Machine, c metav1.Condition) {
	if c.Reason == v1alpha1.ReasonWaitingForReport {
		return
	}
	kind := corev1.EventTypeNormal
	if c.Status == metav1.ConditionFalse {
		kind = corev1.EventTypeWarning
	}
	r.recorder.Eventf(m, nil, kind, c.Reason, "Boot", "%s", shorten(c.Message))
	r.log.Info("machine reported", "machine", client.ObjectKeyFromObject(m).String(), "reason", c.Reason)
}

// assign is the function of that name, by what is remembered.
func (r *bootReports) assign(key client.ObjectKey, machines []*clusterv1.Machine, boots []report.Boot) (byMachine map[string]report.Boot, left []unmatched) {
	r.mu.Lock()
	defer r.mu.Unlock()
	m := r.recall(key)
	byMachine, left, m.matched = assign(machines, boots, m.matched)
	return byMachine, left
}

// tooSoon says for how long a Cluster's Machines are to be left alone.
func (r *bootReports) tooSoon(key client.ObjectKey, now time.Time) time.Duration {
	r.mu.Lock()
	defer r.mu.Unlock()
	m := r.recall(key)
	if wait := m.looked.Add(bootInterval).Sub(now); wait > 0 {
		return min(wait, bootInterval)
	}
	m.looked = now
	return 0
}

// recall is for who holds the lock.
func (r *bootReports) recall(key client.ObjectKey) *bootMemory {
	if r.memory == nil {
		r.memory = map[client.ObjectKey]*bootMemory{}
	}
	if r.memory[key] == nil {
		r.memory[key] = &bootMemory{}
	}
	return r.memory[key]
}

func (r *bootReports) forget(key client.ObjectKey) {
	r.mu.Lock()
	defer r.mu.Unlock()
	delete(r.memory, key)
}

// sooner is the lesser of two waits, of which 0 has no end.
func sooner(a, b time.Duration) time.Duration {
	if a == 0 || b == 0 {
		return a + b
	}
	return min(a, b)
}
