package controller

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"net/http"
	"slices"
	"sync/atomic"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	apimeta "k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/tools/events"
	"k8s.io/client-go/util/workqueue"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	"github.com/fairlead/fairlead/api/v1alpha1"
	"github.com/fairlead/fairlead/pkg/kubeconfig"
	"github.com/fairlead/fairlead/pkg/model"
)

// kubeconfigs reconciles the kubeconfig of one Cluster with what its Tunnel says. It needs no tunnel: of what others write it
// reads which names are served. Giving a kubeconfig back for good is the work of tunnels, which ends Tunnels.
type kubeconfigs struct {
	config   Config
	client   client.Client // reads come from the cache
	live     client.Reader // reads come from the apiserver
	recorder events.EventRecorder
	log      *slog.Logger
	now      func() time.Time
	resolver *resolver
	names    *registry // those of tunnels
	rule     dialRule
	oldWays  *oldWays
	proofs   *proofs
	prove    func(ctx context.Context, p proxyLeg) error

	queue atomic.Pointer[workqueue.TypedRateLimitingInterface[reconcile.Request]] // nil before the start
}

// Reconcile brings one kubeconfig to what it has to be: load, decide, record, write, report. What is decided is on record
// before it is written: the webhook writes nothing else.
func (r *kubeconfigs) Reconcile(ctx context.Context, request reconcile.Request) (reconcile.Result, error) {
	o, err := load(ctx, r.client, request.NamespacedName)
	if err != nil {
		return reconcile.Result{}, err
	}
	if o.tunnel == nil {
		r.proofs.forget(request.NamespacedName)
	}
	if o.tunnel == nil || decide(o, r.config.AllClusters) != serve || !o.tunnelComplete() {
		r.oldWays.forget(request.NamespacedName)
		return reconcile.Result{}, nil
	}
	wait, err := r.settle(ctx, o)
	if conflict(err) {
		return reconcile.Result{RequeueAfter: conflictDelay}, nil
	}
	var later errLater
	if errors.As(err, &later) {
		return reconcile.Result{RequeueAfter: later.wait}, nil
	}
	return reconcile.Result{RequeueAfter: wait}, err
}

// tunnelComplete says whether a Tunnel is this Cluster's, and whether what it says has been looked at: which names are served.
// Until then there is nothing to decide, and its next change starts another reconciliation.
func (o objects) tunnelComplete() bool {
	accepted := apimeta.FindStatusCondition(o.tunnel.Status.Conditions, v1alpha1.ConditionAccepted)
	return metav1.IsControlledBy(o.tunnel, o.cluster) && hasOurFinalizer(o.tunnel) && accepted != nil && accepted.ObservedGeneration == o.tunnel.Generation
}

func hasOurFinalizer(o client.Object) bool {
	return slices.Contains(o.GetFinalizers(), v1alpha1.TunnelFinalizer)
}

// settle decides, and writes what differs. It returns when to look again.
func (r *kubeconfigs) settle(ctx context.Context, o objects) (time.Duration, error) {
	v, err := r.verdict(ctx, o)
	if err != nil {
		return 0, err
	}
	want, written, err := v.write(o)
	if err != nil && !errors.Is(err, kubeconfig.ErrInvalid) {
		return 0, err
	}
	status, tunnel := o.tunnel.Status.DeepCopy(), o.tunnel
	if v.stays || (want != nil && immutable(o.kubeconfig)) {
		if want != nil {
			err = errNotWritable
		}
		v.say(v.ready(o, written, err))
		return v.again, r.report(ctx, tunnel, status, v)
	}
	v.putOnRecord(status, o, written, r.now())
	wait := min(v.again, r.switched(&v, status, o))
	if want != nil {
		if tunnel, err = r.record(ctx, tunnel, status, v); err != nil {
			return 0, err
		}
		switch err = r.client.Patch(ctx, want, lockedPatch(o.kubeconfig)); {
		case denied(err):
			// Who denied it may have said why, but perhaps with words of the Secret's.
			r.log.Warn("kubeconfig can't be written", "cluster", o.key.String(), "reason", apierrors.ReasonForError(err))
			v.unsay(v1alpha1.ConditionKubeconfigSwitched)
			err, wait = errNotWritable, v.again
		case err != nil:
			return 0, wrap("writing kubeconfig Secret", err)
		default:
			r.log.Info("kubeconfig written", "cluster", o.key.String(), "mode", status.Kubeconfig.Mode, "server", written.Server)
		}
	}
	v.say(v.ready(o, written, err))
	return wait, r.report(ctx, tunnel, status, v)
}

// errNotWritable is what comes of a kubeconfig that may not be changed.
var errNotWritable = errors.New("the kubeconfig Secret may not be changed")

func immutable(secret *corev1.Secret) bool {
	return secret != nil && ptr.Deref(secret.Immutable, false)
}

// denied says whether the apiserver, or whoever it asks, does not want something to be written, so that to try it again at once
// is of no use.
func denied(err error) bool {
	var status apierrors.APIStatus
	if !errors.As(err, &status) {
		return false
	}
	switch code := status.Status().Code; code {
	case http.StatusUnauthorized, http.StatusNotFound, http.StatusRequestTimeout, http.StatusConflict, http.StatusTooManyRequests:
		return false
	default:
		return code >= 400 && code < 500
	}
}

// record puts a decision on record, if it is not there yet, and returns the Tunnel as it is then.
func (r *kubeconfigs) record(ctx context.Context, tunnel *v1alpha1.Tunnel, status *v1alpha1.TunnelStatus, v verdict) (*v1alpha1.Tunnel, error) {
	if equality.Semantic.DeepEqual(tunnel.Status.Kubeconfig, status.Kubeconfig) {
		return tunnel, nil
	}
	return r.write(ctx, tunnel, status, v)
}

// report writes the status that a verdict comes to, once and only if something differs.
func (r *kubeconfigs) report(ctx context.Context, tunnel *v1alpha1.Tunnel, status *v1alpha1.TunnelStatus, v verdict) error {
	_, err := r.write(ctx, tunnel, status, v)
	return err
}

func (r *kubeconfigs) write(ctx context.Context, tunnel *v1alpha1.Tunnel, status *v1alpha1.TunnelStatus, v verdict) (*v1alpha1.Tunnel, error) {
	for _, kind := range v.silent() {
		apimeta.RemoveStatusCondition(&status.Conditions, kind)
	}
	transitions := setConditions(status, tunnel.Generation, v.conditions...)
	if equality.Semantic.DeepEqual(*status, tunnel.Status) {
		return tunnel, nil
	}
	after, err := patchStatus(ctx, r.client, tunnel, *status)
	if err != nil {
		return nil, err
	}
	tell(r.recorder, r.log, tunnel, transitions)
	return after, nil
}

// lookAgain is when a decision is looked at again though nothing has changed: DNS, proxies and other Clusters tell of no change.
// It is spread, so that not all Tunnels are looked at together.
func lookAgain() time.Duration { return lookupInterval + rand.N(lookupInterval/10) }

// giveBack restores the kubeconfig of a Cluster. First what is on record goes, or the webhook would write it again. A kubeconfig
// that can't be read, or whose Secret is immutable, must not keep a Tunnel for ever.
func (r *tunnels) giveBack(ctx context.Context, o objects) (*v1alpha1.Tunnel, error) {
	// Most Clusters without Tunnel never had one, and what looks like ours there, say a proxy, is their owner's.
	if o.tunnel == nil && !kubeconfig.Noted(o.kubeconfig) {
		return nil, nil
	}
	tunnel := o.tunnel
	if tunnel != nil && tunnel.Status.Kubeconfig.Mode != "" {
		status := tunnel.Status.DeepCopy()
		status.Kubeconfig = v1alpha1.KubeconfigStatus{Copies: status.Kubeconfig.Copies}
		var err error
		if tunnel, err = patchStatus(ctx, r.client, tunnel, *status); err != nil {
			return nil, client.IgnoreNotFound(err)
		}
	}
	if o.kubeconfig == nil {
		return tunnel, nil
	}
	want := o.kubeconfig.DeepCopy()
	changed, err := kubeconfig.Restore(want, o.key.Name, r.config.wayBack(o))
	if !changed || errors.Is(err, kubeconfig.ErrInvalid) {
		return tunnel, nil
	}
	if err != nil {
		return nil, err
	}
	if immutable(o.kubeconfig) {
		r.log.Warn("kubeconfig can't be given back: its Secret is immutable", "cluster", o.key.String())
		if tunnel != nil {
			r.warn(tunnel, v1alpha1.ReasonNotWritable, fmt.Sprintf("Secret %s is immutable, so its kubeconfig goes on leading by Fairlead's way: delete it, and its control-plane provider writes it anew", o.kubeconfig.Name))
		}
		return tunnel, nil
	}
	switch err := r.client.Patch(ctx, want, lockedPatch(o.kubeconfig)); {
	case denied(err):
		return r.heldBack(ctx, o, tunnel, apierrors.ReasonForError(err))
	case err != nil:
		return nil, wrap("writing kubeconfig Secret", err)
	}
	r.log.Info("kubeconfig given back", "cluster", o.key.String())
	return tunnel, nil
}

// A Tunnel waits giveBackPatience for a kubeconfig that may not be given back, and tries each giveBackRetry: long enough for a
// webhook that is started again, or a person who reads the condition. Then it goes: nothing holds a finalizer for ever.
const giveBackPatience, giveBackRetry = 10 * time.Minute, 30 * time.Second

// heldBack says of a kubeconfig that an admission policy or webhook does not let be given back, and returns the Tunnel when it
// has waited for long enough, else errLater. The condition's time is when it began: so a restart does not begin anew.
func (r *tunnels) heldBack(ctx context.Context, o objects, tunnel *v1alpha1.Tunnel, why metav1.StatusReason) (*v1alpha1.Tunnel, error) {
	r.log.Warn("kubeconfig can't be given back", "cluster", o.key.String(), "reason", why)
	if tunnel == nil { // nothing waits for it
		return nil, errLater{giveBackPatience}
	}
	now, status := r.now(), tunnel.Status.DeepCopy()
	c := apimeta.FindStatusCondition(status.Conditions, v1alpha1.ConditionKubeconfigReady)
	if c != nil && c.Reason == v1alpha1.ReasonNotGivenBack {
		if now.Sub(c.LastTransitionTime.Time) < giveBackPatience {
			return nil, errLater{giveBackRetry}
		}
		r.warn(tunnel, v1alpha1.ReasonNotGivenBack, fmt.Sprintf("the Tunnel goes, though Secret %s could not be written for %s: its kubeconfig goes on leading by Fairlead's way until its control-plane provider writes it anew", o.kubeconfig.Name, giveBackPatience))
		return tunnel, nil
	}
	apimeta.RemoveStatusCondition(&status.Conditions, v1alpha1.ConditionKubeconfigReady) // so that its time begins now
	err := r.report(ctx, tunnel, status, metav1.Condition{
		Type: v1alpha1.ConditionKubeconfigReady, Status: metav1.ConditionFalse, Reason: v1alpha1.ReasonNotGivenBack, LastTransitionTime: metav1.NewTime(now),
		Message: fmt.Sprintf("Secret %s may not be written: an admission policy or webhook refuses it (%s), so the kubeconfig still leads by Fairlead's way. "+
			"Let the controller patch it; it is tried until %s, and then the Tunnel goes all the same", o.kubeconfig.Name, why, now.Add(giveBackPatience).UTC().Format(time.RFC3339)),
	})
	if err != nil {
		return nil, err
	}
	return nil, errLater{giveBackRetry}
}

// wayBack is what is needed to know a kubeconfig of ours and to restore it. A hostname that can't be built was never written.
func (c Config) wayBack(o objects) kubeconfig.Decision {
	hostname, err := c.Domain.Hostname(model.Key(o.key))
	if err != nil {
		hostname = ""
	}
	return kubeconfig.Decision{Hostname: hostname, Gateways: c.Gateways(), Endpoint: endpointOf(o)}
}

// endpointOf is the server that providers write for a Cluster, as far as the Cluster knows.
func endpointOf(o objects) string {
	endpoint := o.cluster.Spec.ControlPlaneEndpoint
	return kubeconfig.EndpointURL(endpoint.Host, endpoint.Port)
}

// unused says whether no manager of Cluster API can be connected by the kubeconfig of a Cluster: they begin when there are machines.
func unused(o objects) bool {
	provisioned := o.cluster.Status.Initialization.InfrastructureProvisioned
	return provisioned == nil || !*provisioned
}
