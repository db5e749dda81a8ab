// Package waves maintains the record of rollouts. It collects the announcements of the xds-servers, calls
// pkg/rollout for the decision, and writes it into the ConfigMap fairlead-rollout, which the xds-servers follow. In
// go a view of the fleet and that ConfigMap; out come writes to it, events about it and a metric. It does not know
// what a profile means, and does not connect to any Envoy.
package waves

import (
	"context"
	"fmt"
	"log/slog"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/tools/events"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/fairlead/fairlead/api/v1alpha1"
	"github.com/fairlead/fairlead/internal/metrics"
	"github.com/fairlead/fairlead/internal/retry"
	reportview "github.com/fairlead/fairlead/pkg/report/view"
	"github.com/fairlead/fairlead/pkg/rollout"
)

const (
	// interval is the time between decisions. It is much shorter than the time for which a phase is observed.
	interval = time.Second
	// reread is the time between reads of the ConfigMap. Only this program writes it, and an operator who retries a
	// rollout.
	reread = 10 * time.Second
	// callTime is the timeout of one call to the apiserver.
	callTime = 10 * time.Second
	// owner is the field owner of the record.
	owner = "fairlead-rollout"
)

// Config is the input of New. All fields are required except Soak and Gone.
type Config struct {
	Namespace string // of the installation's own objects
	Client    client.Client
	Live      client.Reader // reads from the apiserver
	Recorder  events.EventRecorder
	Log       *slog.Logger
	// Fleet returns the announcements of the xds-servers, and the state of all nodes only if nodes is true.
	Fleet     func(nodes bool) reportview.FleetNow
	Immediate bool          // a change applies to all nodes at once
	Soak      time.Duration // how long each phase is observed; zero: rollout.DefaultSoak
	// Gone reports whether an edge has ended for good: its tunnel has ended, or it is revoked.
	Gone func(context.Context, rollout.Node) bool
}

// Reconciler maintains the record. Run may be called once.
type Reconciler struct {
	Config
	figures metrics.Set
	decider rollout.Decider

	// Only Run uses these.
	object *corev1.ConfigMap // the last version read or written; nil: there is none, or it was not read
	read   time.Time

	mu     sync.Mutex
	leads  bool            // this process holds the lease
	record *rollout.Record // nil: none is known
}

// New returns a Reconciler that has read nothing yet.
func New(config Config) *Reconciler {
	r := &Reconciler{Config: config, decider: rollout.Decider{Soak: config.Soak, Immediate: config.Immediate}}
	r.figures.Observe(r.collect, "fairlead_controller_rollout_phase")
	return r
}

// Metrics returns the collector of the Reconciler's metrics.
func (r *Reconciler) Metrics() prometheus.Collector { return &r.figures }

func (r *Reconciler) collect(emit metrics.Emit) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if !r.leads {
		return
	}
	current := rollout.PhaseNone
	if r.record != nil {
		current = r.record.Phase
	}
	for phase, name := range rollout.Phases {
		emit("fairlead_controller_rollout_phase", metrics.Bool(phase == current), name)
	}
}

// Run decides at each interval until ctx ends, and returns nil then.
func (r *Reconciler) Run(ctx context.Context) error {
	r.setLeads(true)
	defer r.setLeads(false)
	var reasons retry.Reasons
	backoff := retry.Backoff{Min: interval, Max: 30 * time.Second}
	for failures := 0; ; {
		wait := interval
		if err := r.Reconcile(ctx, time.Now()); err != nil && ctx.Err() == nil {
			failures++
			wait, r.object, r.read = backoff.Wait(failures), nil, time.Time{}
			if reasons.New(err) {
				r.Log.Warn("cannot reconcile rollout, retrying", "error", err)
			}
		} else {
			failures, reasons = 0, retry.Reasons{}
		}
		if retry.Sleep(ctx, wait) != nil {
			return nil
		}
	}
}

// Reconcile decides once. It fails if the record cannot be read or written, or was changed since it was read.
func (r *Reconciler) Reconcile(ctx context.Context, now time.Time) error {
	ctx, cancel := context.WithTimeout(ctx, callTime)
	defer cancel()
	if now.Sub(r.read) >= reread {
		if err := r.get(ctx); err != nil {
			return err
		}
		r.read = now
	}
	var data, annotations map[string]string
	if r.object != nil {
		data, annotations = r.object.Data, r.object.Annotations
	}
	before, err := rollout.ParseRecord(data)
	if err != nil {
		return err // do not overwrite a record that cannot be read: an operator has to repair it
	}
	r.note(before)
	in := rollout.Input{Record: before, Observation: observe(r.Fleet(false)), Retry: annotations[rollout.RetryAnnotation]}
	if r.decider.Idle(in, now) {
		return nil // as in almost every second: the state of 10,000 edges is not needed
	}
	in.Observation = observe(r.Fleet(true))
	if r.Gone != nil {
		in.Gone = func(n rollout.Node) bool { return r.Gone(ctx, n) }
	}
	after := r.decider.Decide(in, now)
	if after == nil || before != nil && after.Equal(*before) {
		return nil
	}
	if err := r.write(ctx, after); err != nil {
		return err
	}
	r.note(after)
	r.announce(before, after)
	return nil
}

// setLeads records whether this process leads. Without the lease it knows no record.
func (r *Reconciler) setLeads(leads bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.leads, r.record = leads, nil
}

func (r *Reconciler) note(record *rollout.Record) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.record = record
}

// get reads the ConfigMap.
func (r *Reconciler) get(ctx context.Context) error {
	var object corev1.ConfigMap
	err := r.Live.Get(ctx, client.ObjectKey{Namespace: r.Namespace, Name: v1alpha1.RolloutConfigMapName}, &object)
	switch {
	case apierrors.IsNotFound(err):
		r.object = nil
		return nil
	case err != nil:
		return fmt.Errorf("reading record of rollouts: %w", err)
	}
	r.object = &object
	return nil
}

// write writes the record, unless the ConfigMap was changed since it was read.
func (r *Reconciler) write(ctx context.Context, record *rollout.Record) error {
	text, err := record.Text()
	if err != nil {
		return fmt.Errorf("writing record of rollouts: %w", err)
	}
	if r.object == nil {
		object := &corev1.ConfigMap{
			ObjectMeta: metav1.ObjectMeta{Namespace: r.Namespace, Name: v1alpha1.RolloutConfigMapName},
			Data:       map[string]string{rollout.RecordKey: text},
		}
		if err := r.Client.Create(ctx, object, client.FieldOwner(owner)); err != nil {
			return fmt.Errorf("creating record of rollouts: %w", err)
		}
		r.object = object
		return nil
	}
	object := r.object.DeepCopy() // with its resourceVersion
	object.Data = map[string]string{rollout.RecordKey: text}
	if err := r.Client.Update(ctx, object, client.FieldOwner(owner)); err != nil {
		return fmt.Errorf("updating record of rollouts: %w", err)
	}
	r.object = object
	return nil
}

// announce logs a decision, and makes an event of it.
func (r *Reconciler) announce(before, after *rollout.Record) {
	if before == nil {
		r.Log.Info("rollout recorded", "current", after.Current.ID())
		return
	}
	if before.Size != after.Size {
		r.Log.Info("fleet has another size", "nodes", after.Size, "before", before.Size)
		resized := *before
		if resized.Size = after.Size; resized.Equal(*after) {
			return
		}
	}
	kind, reason, message := describe(before, after)
	r.Log.Info("rollout changed", "phase", rollout.Phases[after.Phase], "current", after.Current.ID(),
		"next", after.Next.ID(), "nodes", len(after.Nodes), "reason", after.Reason)
	object := r.object.DeepCopy()
	object.TypeMeta = metav1.TypeMeta{APIVersion: "v1", Kind: "ConfigMap"}
	r.Recorder.Eventf(object, nil, kind, reason, "Reconcile", "%s", message)
}

// describe returns the reason and the text of a decision's event.
func describe(before, after *rollout.Record) (kind, reason, message string) {
	current, next := after.Current.ID(), after.Next.ID()
	switch after.Phase {
	case rollout.PhaseFirst:
		message = fmt.Sprintf("rollout of profile %s started on %d nodes", next, len(after.Nodes))
		return corev1.EventTypeNormal, v1alpha1.EventRolloutStarted, message
	case rollout.PhaseRest:
		message = fmt.Sprintf("rollout of profile %s continues on all nodes", next)
		return corev1.EventTypeNormal, v1alpha1.EventRolloutStarted, message
	case rollout.PhaseStopped:
		message = fmt.Sprintf("rollout of profile %s stopped, all nodes run %s again: %s", next, current, after.Reason)
		return corev1.EventTypeWarning, v1alpha1.EventRolloutStopped, message
	}
	message = fmt.Sprintf("rollout of profile %s completed on all nodes: %s", current, after.Reason)
	if before.Current == after.Current {
		message = fmt.Sprintf("rollout ended, all nodes run profile %s: %s", current, after.Reason)
	}
	return corev1.EventTypeNormal, v1alpha1.EventRolloutEnded, message
}
