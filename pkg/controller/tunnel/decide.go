package tunnel

import (
	"context"
	"errors"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	"github.com/fairlead/fairlead/api/v1alpha1"
	"github.com/fairlead/fairlead/pkg/controller/ca"
	"github.com/fairlead/fairlead/pkg/controller/condition"
	"github.com/fairlead/fairlead/pkg/controller/records"
	"github.com/fairlead/fairlead/pkg/decision"
	"github.com/fairlead/fairlead/pkg/model"
)

// claim is what a Tunnel may get in the situation that it is in.
type claim struct {
	candidate *decision.Candidate // nil: it gets nothing, and what is on record of it stays reserved
	enrols    bool                // edges may enrol, unless the decision is fatal: tokens are chosen
	tokensEnd bool                // every token of edges ends
	condition func(decision.Resolution) metav1.Condition
}

// decide is the one path by which a Tunnel gets or loses names and its id: it decides, records the decision with the
// tokens and the condition in one write, and then enqueues the Clusters whose names have changed by it. A Tunnel that
// has changed since it was read is a conflict. Without an error the tokens in what it returns are on record, and may
// be delivered.
func (r *Reconciler) decide(
	ctx context.Context, tunnel *v1alpha1.Tunnel, c claim,
) (resolution decision.Resolution, b bootstrap, err error) {
	status := tunnel.Status.DeepCopy()
	if c.candidate == nil {
		resolution.Affected = r.names.reserve(r.Config.Domain, decision.RecordedCandidate(tunnel))
		decision.RecordNothing(status)
	} else {
		resolution = r.names.decide(r.Config.Domain, *c.candidate)
		decision.Record(status, resolution)
	}
	// After the write, so that a name leaves one record before it enters another. After a failed write too: the registry
	// has changed, and the next attempt would find nothing that changes.
	defer r.enqueue(resolution.Affected)
	if c.tokensEnd {
		status.Tokens = nil
	}
	if c.enrols {
		status.Edges = records.CurrentEdges(status.Edges, r.Now())
		if resolution.Fatal == nil {
			if b, err = r.chooseTokens(ctx, tunnel, status); err != nil {
				return resolution, b, err
			}
		}
	}
	return resolution, b, r.report(ctx, tunnel, status, c.condition(resolution))
}

// bootstrap is what remains to be done about bootstrap Secrets after their tokens are on record; zero: nothing.
type bootstrap struct {
	due     bool
	have    *corev1.Secret // nil: it is to be created
	file    bootstrapFile
	reports reportDelivery
	wait    time.Duration // until a token is to be replaced
}

// chooseTokens chooses the tokens of a Tunnel and notes them in its status. Without a trust bundle there is nothing
// to deliver yet: its ConfigMap enqueues every Tunnel.
func (r *Reconciler) chooseTokens(
	ctx context.Context, tunnel *v1alpha1.Tunnel, status *v1alpha1.TunnelStatus,
) (b bootstrap, err error) {
	bundle, err := ca.ReadBundle(ctx, r.Client, r.Config.Namespace)
	if err != nil || len(bundle) == 0 {
		return b, err
	}
	if b.have, err = r.bootstrapSecret(ctx, client.ObjectKeyFromObject(tunnel)); err != nil {
		return b, err
	}
	now := r.Now()
	token, err := chooseToken(r.Config, status, b.have, now)
	if err != nil {
		return b, err
	}
	if b.reports, err = r.prepareReports(ctx, tunnel, status, now); err != nil {
		return b, err
	}
	b.due = true
	b.file = bootstrapFile{
		Gateway: r.Config.Public.String(), TunnelDomain: string(r.Config.Domain), Token: token, CA: string(bundle),
	}
	b.wait = min(nextLook(r.Config, *status, token, now), b.reports.due+time.Second)
	return b, nil
}

// deliver writes the bootstrap Secrets whose tokens are on record, and returns when a token is to be replaced.
func (r *Reconciler) deliver(ctx context.Context, tunnel *v1alpha1.Tunnel, b bootstrap) (reconcile.Result, error) {
	if !b.due {
		return reconcile.Result{}, nil
	}
	err := errors.Join(
		r.writeBootstrapSecret(ctx, tunnel, b.have, b.file), r.deliverReports(ctx, tunnel, b.reports, b.file),
	)
	return reconcile.Result{RequeueAfter: b.wait}, err
}

// report writes a status with these conditions, as condition.Report does.
func (r *Reconciler) report(
	ctx context.Context, tunnel *v1alpha1.Tunnel, status *v1alpha1.TunnelStatus, conditions ...metav1.Condition,
) error {
	_, err := condition.Report(
		ctx, condition.Writer{Client: r.Client, Recorder: r.Recorder, Log: r.Log}, tunnel, status, conditions...,
	)
	return err
}

// Holder returns the Tunnel that holds a name, as far as this process has decided. It is safe for concurrent use.
func (r *Reconciler) Holder(name string) (holder model.Key, held bool) { return r.names.Holder(name) }

// enqueue has other Clusters reconciled, because the rights to their names may have changed.
func (r *Reconciler) enqueue(keys []model.Key) {
	for _, key := range keys {
		if r.queue != nil {
			r.queue.Add(reconcile.Request{NamespacedName: client.ObjectKey(key)})
		}
		if r.notify != nil {
			r.notify(client.ObjectKey(key))
		}
	}
}
