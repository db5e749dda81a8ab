// Package kubeconfigs decides the endpoint of a Cluster's kubeconfig, records it in the status of its Tunnel, and then
// writes the kubeconfig Secret. When a tunnel ends, it restores what the control-plane provider wrote. Its input is a
// Group and the answers of DNS and proxies; its output is a record, conditions and a Secret. It does not decide names:
// it queries which Tunnel holds one.
package kubeconfigs

import (
	"context"
	"errors"
	"math/rand/v2"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	apimeta "k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	"github.com/fairlead/fairlead/api/v1alpha1"
	"github.com/fairlead/fairlead/pkg/controller/condition"
	"github.com/fairlead/fairlead/pkg/controller/config"
	"github.com/fairlead/fairlead/pkg/controller/objects"
	"github.com/fairlead/fairlead/pkg/controller/reconciler"
	"github.com/fairlead/fairlead/pkg/kubeconfig"
	"github.com/fairlead/fairlead/pkg/model"
)

// Reconciler reconciles the kubeconfig of one Cluster with its Tunnel. It needs no tunnel connection: of the status
// that others write it reads only which names are served. Package tunnel restores kubeconfigs for good, because it ends
// Tunnels.
type Reconciler struct {
	reconciler.Deps
	resolver  *resolver
	names     NameHolders
	rule      dialRule
	previous  *previousEndpoints
	checks    *proxyChecks
	handshake func(ctx context.Context, p proxyLeg) error

	queue reconciler.Queue
}

// NameHolders finds the Tunnel that holds a name.
type NameHolders interface {
	Holder(name string) (holder model.Key, held bool)
}

// Reconcile makes one kubeconfig match its Tunnel: load, decide, record, write, report. The decision is recorded before
// it is written, because the webhook writes only recorded decisions.
func (r *Reconciler) Reconcile(ctx context.Context, request reconcile.Request) (reconcile.Result, error) {
	o, err := objects.Load(ctx, r.Client, request.NamespacedName)
	if err != nil {
		return reconcile.Result{}, err
	}
	if o.Tunnel == nil {
		r.checks.forget(request.NamespacedName)
	}
	if o.Tunnel == nil || objects.Decide(o, r.Config.AllClusters) != objects.Serve || !tunnelComplete(o) {
		r.previous.forget(request.NamespacedName)
		return reconcile.Result{}, nil
	}
	wait, err := r.update(ctx, o)
	return reconciler.Retry(reconcile.Result{RequeueAfter: wait}, err)
}

// tunnelComplete reports whether a Tunnel belongs to this Cluster and its current spec was processed, so that it is
// known which names are served. Until then nothing can be decided, and its next change starts another reconciliation.
func tunnelComplete(o objects.Group) bool {
	accepted := apimeta.FindStatusCondition(o.Tunnel.Status.Conditions, v1alpha1.ConditionAccepted)
	return metav1.IsControlledBy(o.Tunnel, o.Cluster) && hasOurFinalizer(o.Tunnel) && accepted != nil &&
		accepted.ObservedGeneration == o.Tunnel.Generation
}

func hasOurFinalizer(o client.Object) bool {
	return slices.Contains(o.GetFinalizers(), v1alpha1.TunnelFinalizer)
}

// update decides and writes what differs. It returns when to reconcile again.
func (r *Reconciler) update(ctx context.Context, o objects.Group) (time.Duration, error) {
	v, err := r.decide(ctx, o)
	if err != nil {
		return 0, err
	}
	want, written, err := v.write(o)
	if err != nil && !errors.Is(err, kubeconfig.ErrInvalid) {
		return 0, err
	}
	status, tunnel := o.Tunnel.Status.DeepCopy(), o.Tunnel
	if v.stays || (want != nil && immutable(o.Kubeconfig)) {
		if want != nil {
			if err = r.patch(ctx, o, want, written); err != nil && !errors.Is(err, errNotWritable) {
				return 0, err
			}
		}
		v.add(v.readyCondition(o, written, err))
		return v.again, r.report(ctx, tunnel, status, v)
	}
	v.recordIn(status, o, written, r.Now())
	wait := min(v.again, r.switched(&v, status, o))
	if want != nil {
		if tunnel, err = r.record(ctx, tunnel, status, v); err != nil {
			return 0, err
		}
		switch err = r.patch(ctx, o, want, written); {
		case errors.Is(err, errNotWritable):
			v.drop(v1alpha1.ConditionKubeconfigSwitched)
			wait = v.again
		case err != nil:
			return 0, err
		}
	}
	v.add(v.readyCondition(o, written, err))
	return wait, r.report(ctx, tunnel, status, v)
}

// patch writes a kubeconfig. The error is errNotWritable if the Secret is immutable or the apiserver denies the write.
func (r *Reconciler) patch(
	ctx context.Context, o objects.Group, want *corev1.Secret, leads kubeconfig.Endpoint,
) error {
	if immutable(o.Kubeconfig) {
		return errNotWritable
	}
	err := r.Client.Patch(ctx, want, objects.LockedPatch(o.Kubeconfig))
	if objects.Denied(err) {
		// The rejection is not logged: its text may quote the Secret.
		r.Log.Warn("cannot write kubeconfig", "cluster", o.Key.String(), "reason", apierrors.ReasonForError(err))
		return errNotWritable
	}
	if err != nil {
		return objects.Wrap("writing kubeconfig Secret", err)
	}
	r.Log.Info("kubeconfig written", "cluster", o.Key.String(), "endpoint", leads.String())
	return nil
}

// initialTime bounds how long a new Tunnel waits for DNS before its first status is written. It is far more than an
// answer takes. Later answers are recorded by a second write.
const initialTime = 250 * time.Millisecond

// Initial is a tunnel.Initial: it decides the kubeconfig of a new Cluster that has none yet. The decision is then on
// record before the control-plane provider writes the Secret.
func (r *Reconciler) Initial(
	ctx context.Context, o objects.Group, status *v1alpha1.TunnelStatus,
) []metav1.Condition {
	if o.Kubeconfig != nil || !o.Tunnel.Spec.Kubeconfig.Mode.Tunnelled() || !tunnelComplete(o) {
		return nil
	}
	ctx, cancel := context.WithTimeout(ctx, initialTime)
	defer cancel()
	v, err := r.decide(ctx, o)
	if err != nil || ctx.Err() != nil || v.stays {
		return nil // Reconcile decides again
	}
	v.recordIn(status, o, kubeconfig.Endpoint{}, r.Now())
	v.add(v.readyCondition(o, kubeconfig.Endpoint{}, nil))
	return v.conditions
}

// errNotWritable is the result for a kubeconfig that may not be changed.
var errNotWritable = errors.New("the kubeconfig Secret must not be changed")

func immutable(secret *corev1.Secret) bool {
	return secret != nil && ptr.Deref(secret.Immutable, false)
}

// record writes a decision to the Tunnel's status, if it differs, and returns the Tunnel as written.
func (r *Reconciler) record(
	ctx context.Context, tunnel *v1alpha1.Tunnel, status *v1alpha1.TunnelStatus, v decision,
) (*v1alpha1.Tunnel, error) {
	if equality.Semantic.DeepEqual(tunnel.Status.Kubeconfig, status.Kubeconfig) {
		return tunnel, nil
	}
	return r.write(ctx, tunnel, status, v)
}

// report writes the status of a decision in at most one write.
func (r *Reconciler) report(
	ctx context.Context, tunnel *v1alpha1.Tunnel, status *v1alpha1.TunnelStatus, v decision,
) error {
	_, err := r.write(ctx, tunnel, status, v)
	return err
}

func (r *Reconciler) write(
	ctx context.Context, tunnel *v1alpha1.Tunnel, status *v1alpha1.TunnelStatus, v decision,
) (*v1alpha1.Tunnel, error) {
	for _, kind := range v.absent() {
		apimeta.RemoveStatusCondition(&status.Conditions, kind)
	}
	return condition.Report(
		ctx, condition.Writer{Client: r.Client, Recorder: r.Recorder, Log: r.Log}, tunnel, status, v.conditions...,
	)
}

// requeueAfter returns when a decision must be checked again without an event: DNS, proxies and other Clusters send
// none. It is spread, so that not all Tunnels are reconciled together.
func requeueAfter() time.Duration { return lookupInterval + rand.N(lookupInterval/10) }

// restorable returns what is required to recognize and restore a kubeconfig that Fairlead wrote. A hostname that cannot
// be built was never written.
func restorable(c config.Config, o objects.Group) kubeconfig.Decision {
	hostname, err := c.Domain.Hostname(model.Key(o.Key))
	if err != nil {
		hostname = ""
	}
	return kubeconfig.Decision{Hostname: hostname, Gateways: c.Gateways(), Endpoint: endpointOf(o)}
}

// endpointOf returns the server that providers write for a Cluster, from the Cluster's endpoint.
func endpointOf(o objects.Group) string {
	endpoint := o.Cluster.Spec.ControlPlaneEndpoint
	return kubeconfig.EndpointURL(endpoint.Host, endpoint.Port)
}

// unused reports whether no manager of Cluster API can be connected through the kubeconfig of a Cluster: managers
// connect once there are machines.
func unused(o objects.Group) bool {
	provisioned := o.Cluster.Status.Initialization.InfrastructureProvisioned
	return provisioned == nil || !*provisioned
}
