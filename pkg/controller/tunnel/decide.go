package tunnel

import (
	"context"
	"errors"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	"github.com/fairlead/fairlead/api/v1alpha1"
	"github.com/fairlead/fairlead/pkg/controller/ca"
	"github.com/fairlead/fairlead/pkg/controller/condition"
	"github.com/fairlead/fairlead/pkg/controller/objects"
	"github.com/fairlead/fairlead/pkg/controller/reconciler"
	"github.com/fairlead/fairlead/pkg/controller/records"
	"github.com/fairlead/fairlead/pkg/decision"
	"github.com/fairlead/fairlead/pkg/model"
)

// Claim is what a Tunnel may get in its situation.
type Claim struct {
	Candidate *decision.Candidate // nil: it gets nothing, and its recorded names stay reserved
	// Enrols is true if edges may enrol, unless the decision is fatal: tokens are chosen. Otherwise those end whose Secret
	// does not exist.
	Enrols    bool
	TokensEnd bool // every token of edges ends
	Condition func(decision.Resolution) metav1.Condition
	// Initial completes the first status of a Tunnel, unless the decision is fatal, and returns further conditions; nil:
	// it is not the first, or nothing is added. Its last argument is the condition of the decision.
	Initial func(*v1alpha1.TunnelStatus, metav1.Condition) []metav1.Condition
}

// Decide is the only function that grants and revokes names and the id of a Tunnel. It decides, records the decision
// with the tokens and the condition in one write, and then enqueues the Clusters whose names are affected. A Tunnel
// that has changed since it was read is a conflict. If the error is nil, the returned tokens are on record and may be
// delivered.
func (r *Reconciler) Decide(
	ctx context.Context, tunnel *v1alpha1.Tunnel, c Claim,
) (resolution decision.Resolution, b Bootstrap, err error) {
	status := tunnel.Status.DeepCopy()
	if c.Candidate == nil {
		resolution.Affected = r.names.reserve(r.Config.Domain, decision.RecordedCandidate(tunnel))
		decision.RecordNothing(status)
	} else {
		resolution = r.names.decide(r.Config.Domain, *c.Candidate)
		decision.Record(status, resolution)
	}
	// After the write, so that a name leaves one record before it enters another. Also after a failed write: the registry
	// has changed, and a retry would find no affected Clusters.
	defer r.enqueue(resolution.Affected)
	switch {
	case c.TokensEnd:
		status.Tokens = nil
	case !c.Enrols:
		if err := r.endDeleted(ctx, tunnel, status); err != nil {
			return resolution, b, err
		}
	default:
		status.Edges = records.CurrentEdges(status.Edges, r.Now())
		if resolution.Fatal == nil {
			if b, err = r.chooseTokens(ctx, tunnel, status); err != nil {
				return resolution, b, err
			}
		}
	}
	conditions := []metav1.Condition{c.Condition(resolution)}
	if b.due {
		conditions[0].Message += r.undelivered.get(client.ObjectKeyFromObject(tunnel)).problem()
	}
	if c.Initial != nil && resolution.Fatal == nil {
		conditions = append(conditions, c.Initial(status, conditions[0])...)
	}
	return resolution, b, r.report(ctx, tunnel, status, conditions...)
}

// Withdraw writes what is withdrawn from a Tunnel while it is paused: the tokens whose Secret does not exist, and what
// change removes from the status, if it is not nil. Nothing is granted.
func (r *Reconciler) Withdraw(
	ctx context.Context, tunnel *v1alpha1.Tunnel, change func(*v1alpha1.TunnelStatus),
) error {
	status := tunnel.Status.DeepCopy()
	if err := r.endDeleted(ctx, tunnel, status); err != nil {
		return err
	}
	if change != nil {
		change(status)
	}
	return r.report(ctx, tunnel, status)
}

// endDeleted ends the tokens whose Secret does not exist, and chooses no others. Deleting the Secret is the response to
// a stolen token, and a pause must not delay it.
func (r *Reconciler) endDeleted(ctx context.Context, tunnel *v1alpha1.Tunnel, status *v1alpha1.TunnelStatus) error {
	if r.Config.NoTunnels {
		return nil
	}
	key := client.ObjectKeyFromObject(tunnel)
	undelivered := r.undelivered.get(key)
	if left := endUnused(status.Tokens, undelivered.edge); len(left) < len(status.Tokens) {
		secret, err := r.bootstrapSecret(ctx, key)
		if err != nil {
			return err
		}
		if secret == nil {
			status.Tokens = left
		}
	}
	if left := endReports(status.BootReportTokens, undelivered.report); len(left) < len(status.BootReportTokens) {
		secret, err := r.reportSecret(ctx, tunnel)
		if err != nil {
			return err
		}
		if secret == nil {
			status.BootReportTokens = left
		}
	}
	return nil
}

// Bootstrap is the pending work on bootstrap Secrets after their tokens are on record; zero: none.
type Bootstrap struct {
	due     bool
	have    *corev1.Secret // nil: it must be created
	file    bootstrapFile
	reports reportDelivery
	wait    time.Duration // until a token must be replaced
}

// chooseTokens chooses the tokens of a Tunnel and records them in its status. Without a trust bundle nothing can be
// delivered; its ConfigMap enqueues every Tunnel when it appears.
func (r *Reconciler) chooseTokens(
	ctx context.Context, tunnel *v1alpha1.Tunnel, status *v1alpha1.TunnelStatus,
) (b Bootstrap, err error) {
	bundle, err := ca.ReadBundle(ctx, r.Client, r.Config.Namespace)
	if err != nil || len(bundle) == 0 {
		return b, err
	}
	key := client.ObjectKeyFromObject(tunnel)
	if b.have, err = r.bootstrapSecret(ctx, key); err != nil {
		return b, err
	}
	if b.have == nil && !tunnel.DeletionTimestamp.IsZero() {
		// Nothing can be created in a namespace that is being deleted, and no machine needs a new Secret. One that exists is
		// kept up to date: while the Cluster is being deleted, its edges may have to enrol again.
		status.Tokens = endUnused(status.Tokens, "")
		return b, nil
	}
	now := r.Now()
	token, err := chooseToken(r.Config, status, b.have, r.undelivered.get(key).edge, now)
	if err != nil {
		return b, err
	}
	b.due = true
	b.file = bootstrapFile{
		Gateway: r.Config.Public.String(), TunnelDomain: string(r.Config.Domain), Token: token, CA: string(bundle),
	}
	b.wait = requeueAfter(r.Config, *status, token, now)
	if !tunnel.OfCluster() {
		return b, nil // machines report to the Tunnel of their Cluster
	}
	if b.reports, err = r.prepareReports(ctx, tunnel, status, now); err != nil {
		return b, err
	}
	if b.reports.token != "" {
		b.wait = min(b.wait, b.reports.due+time.Second)
	}
	return b, nil
}

// Deliver writes the bootstrap Secrets whose tokens are on record, and returns when a token must be replaced. cluster
// is nil while the Tunnel waits for it. The error is reconciler.Later if a write is denied.
func (r *Reconciler) Deliver(
	ctx context.Context, cluster *clusterv1.Cluster, tunnel *v1alpha1.Tunnel, b Bootstrap,
) (reconcile.Result, error) {
	if !b.due {
		return reconcile.Result{}, nil
	}
	key, left := client.ObjectKeyFromObject(tunnel), pending{}
	err := r.writeBootstrapSecret(ctx, tunnel, b.have, b.file)
	if err != nil && b.file.Token != tokenIn(b.have) {
		left.edge = b.file.Token
	}
	if tunnel.OfCluster() {
		reports := r.deliverReports(ctx, tunnel, b.reports, b.file)
		if reports != nil && b.reports.token != tokenIn(b.reports.have) {
			left.report = b.reports.token
		}
		err = errors.Join(err, reports, r.deliverResources(ctx, cluster, tunnel, b.file))
	}
	before := r.undelivered.get(key)
	if objects.Denied(err) {
		left.denied = apierrors.ReasonForError(err)
		// The rejection is not logged: its text may quote the Secret.
		r.Log.Warn("cannot write bootstrap Secret", "name", key.String(), "reason", left.denied)
		err = reconciler.Later{Wait: deniedRetry}
	} else if before.denied != "" {
		b.wait = time.Second // the condition still has the problem
	}
	r.undelivered.set(key, left)
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

// Holder returns the Tunnel that holds a name, according to the decisions of this process. It is safe for concurrent
// use.
func (r *Reconciler) Holder(name string) (holder model.Key, held bool) { return r.names.Holder(name) }

// enqueue enqueues other Clusters whose rights to names may have changed.
func (r *Reconciler) enqueue(keys []model.Key) {
	for _, key := range keys {
		r.queue.Add(client.ObjectKey(key))
		if r.notify != nil {
			r.notify(client.ObjectKey(key))
		}
	}
}
