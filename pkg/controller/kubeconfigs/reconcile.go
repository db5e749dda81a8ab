// Package kubeconfigs decides where the kubeconfig of a Cluster leads, records that in the status of its Tunnel, and
// then writes the kubeconfig Secret; for a tunnel that ends it restores what the control-plane provider wrote. In go
// a Group and what DNS and proxies answer, out come a record, conditions and a Secret. It does not know how names are
// decided: it asks which Tunnel holds one.
package kubeconfigs

import (
	"context"
	"errors"
	"math/rand/v2"
	"slices"
	"sync/atomic"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	apimeta "k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/util/workqueue"
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

// Reconciler reconciles the kubeconfig of one Cluster with what its Tunnel says. It needs no tunnel: of what others
// write it reads which names are served. Giving a kubeconfig back for good is the work of tunnels, which ends
// Tunnels.
type Reconciler struct {
	reconciler.Deps
	resolver  *resolver
	names     NameHolders
	rule      dialRule
	previous  *previousEndpoints
	checks    *proxyChecks
	handshake func(ctx context.Context, p proxyLeg) error

	queue atomic.Pointer[workqueue.TypedRateLimitingInterface[reconcile.Request]] // nil before the start
}

// NameHolders finds the Tunnel that holds a name.
type NameHolders interface {
	Holder(name string) (holder model.Key, held bool)
}

// Reconcile brings one kubeconfig to what it has to be: load, decide, record, write, report. What is decided is on
// record before it is written: the webhook writes nothing else.
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
	wait, err := r.settle(ctx, o)
	return reconciler.Retry(reconcile.Result{RequeueAfter: wait}, err)
}

// tunnelComplete says whether a Tunnel is this Cluster's, and whether what it says has been looked at: which names
// are served. Until then there is nothing to decide, and its next change starts another reconciliation.
func tunnelComplete(o objects.Group) bool {
	accepted := apimeta.FindStatusCondition(o.Tunnel.Status.Conditions, v1alpha1.ConditionAccepted)
	return metav1.IsControlledBy(o.Tunnel, o.Cluster) && hasOurFinalizer(o.Tunnel) && accepted != nil &&
		accepted.ObservedGeneration == o.Tunnel.Generation
}

func hasOurFinalizer(o client.Object) bool {
	return slices.Contains(o.GetFinalizers(), v1alpha1.TunnelFinalizer)
}

// settle decides, and writes what differs. It returns when to look again.
func (r *Reconciler) settle(ctx context.Context, o objects.Group) (time.Duration, error) {
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
			err = errNotWritable
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
		switch err = r.Client.Patch(ctx, want, objects.LockedPatch(o.Kubeconfig)); {
		case objects.Denied(err):
			// Who denied it may have said why, but perhaps with words of the Secret's.
			r.Log.Warn("cannot write kubeconfig", "cluster", o.Key.String(), "reason", apierrors.ReasonForError(err))
			v.drop(v1alpha1.ConditionKubeconfigSwitched)
			err, wait = errNotWritable, v.again
		case err != nil:
			return 0, objects.Wrap("writing kubeconfig Secret", err)
		default:
			r.Log.Info("kubeconfig written", "cluster", o.Key.String(), "mode", status.Kubeconfig.Mode, "server", written.Server)
		}
	}
	v.add(v.readyCondition(o, written, err))
	return wait, r.report(ctx, tunnel, status, v)
}

// errNotWritable is what comes of a kubeconfig that may not be changed.
var errNotWritable = errors.New("the kubeconfig Secret must not be changed")

func immutable(secret *corev1.Secret) bool {
	return secret != nil && ptr.Deref(secret.Immutable, false)
}

// record puts a decision on record, if it is not there yet, and returns the Tunnel as it is then.
func (r *Reconciler) record(
	ctx context.Context, tunnel *v1alpha1.Tunnel, status *v1alpha1.TunnelStatus, v decision,
) (*v1alpha1.Tunnel, error) {
	if equality.Semantic.DeepEqual(tunnel.Status.Kubeconfig, status.Kubeconfig) {
		return tunnel, nil
	}
	return r.write(ctx, tunnel, status, v)
}

// report writes the status of a decision, once and only if something differs.
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

// lookAgain is when a decision is looked at again though nothing has changed: DNS, proxies and other Clusters tell of
// no change. It is spread, so that not all Tunnels are looked at together.
func lookAgain() time.Duration { return lookupInterval + rand.N(lookupInterval/10) }

// wayBack is what is needed to know a kubeconfig of ours and to restore it. A hostname that can't be built was never
// written.
func wayBack(c config.Config, o objects.Group) kubeconfig.Decision {
	hostname, err := c.Domain.Hostname(model.Key(o.Key))
	if err != nil {
		hostname = ""
	}
	return kubeconfig.Decision{Hostname: hostname, Gateways: c.Gateways(), Endpoint: endpointOf(o)}
}

// endpointOf is the server that providers write for a Cluster, as far as the Cluster knows.
func endpointOf(o objects.Group) string {
	endpoint := o.Cluster.Spec.ControlPlaneEndpoint
	return kubeconfig.EndpointURL(endpoint.Host, endpoint.Port)
}

// unused says whether no manager of Cluster API can be connected by the kubeconfig of a Cluster: they begin when
// there are machines.
func unused(o objects.Group) bool {
	provisioned := o.Cluster.Status.Initialization.InfrastructureProvisioned
	return provisioned == nil || !*provisioned
}
