// Package ca manages the CAs of an installation. It creates or reads the source, takes a rotation through its phases,
// publishes the trust bundle, and provides the CA that signs for a role. Its input is the source Secret and the clock;
// its output is the state Secret, the published ConfigMap and the gateway token. It does not handle certificate
// requests: package signer does.
package ca

import (
	"context"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/client-go/util/workqueue"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/builder"
	"sigs.k8s.io/controller-runtime/pkg/cache"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/handler"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"
	"sigs.k8s.io/controller-runtime/pkg/source"

	"github.com/fairlead/fairlead/api/v1alpha1"
	"github.com/fairlead/fairlead/pkg/certs"
	"github.com/fairlead/fairlead/pkg/controller/objects"
	"github.com/fairlead/fairlead/pkg/controller/reconciler"
	"github.com/fairlead/fairlead/pkg/controller/records"
	"github.com/fairlead/fairlead/pkg/enrol"
)

const (
	// installationInterval is how often the Secrets of the installation are read. The controller watches only the metadata
	// of the CA's Secret, so that the key stays out of every cache; the other Secrets are its own.
	installationInterval = 10 * time.Second
	// maxRounds exceeds the number of writes that can be due at one time.
	maxRounds = 10
)

// Reconciler reconciles the objects of the installation as a whole: the CAs, the public ConfigMap, the gateway token,
// and the record of ended tunnels.
type Reconciler struct {
	reconciler.Deps
	up      time.Time // since when this process signs; zero before the first reconciliation
	ended   *records.EndedTunnels
	problem string // the last problem that was logged
}

// Reconcile creates what is missing, and advances a rotation of the CA to its next blocked step.
func (r *Reconciler) Reconcile(ctx context.Context, _ reconcile.Request) (reconcile.Result, error) {
	if r.up.IsZero() {
		r.up = r.Now()
	}
	wait, err := r.ensure(ctx)
	if err == nil {
		err = r.ended.Prune(ctx)
	}
	return reconciler.Retry(reconcile.Result{RequeueAfter: wait}, err)
}

// ensure performs one write after the other until nothing is due, and reads everything again before each write. After a
// crash the next process therefore continues at the same step.
func (r *Reconciler) ensure(ctx context.Context) (wait time.Duration, err error) {
	for range maxRounds {
		var changed bool
		if wait, changed, err = r.round(ctx); err != nil || !changed {
			return wait, err
		}
	}
	return 0, nil
}

// round performs the first write that is due.
func (r *Reconciler) round(ctx context.Context) (wait time.Duration, changed bool, err error) {
	source, err := r.readSource(ctx)
	if err != nil {
		return 0, false, err
	}
	state, secret, err := r.readState(ctx)
	if err != nil {
		r.reportProblem(nil, err.Error())
		return 0, false, err
	}
	key := client.ObjectKey{Namespace: r.Config.Namespace, Name: v1alpha1.InstallationConfigMapName}
	published, err := objects.Get(ctx, r.Live, key, &corev1.ConfigMap{})
	if err != nil {
		return 0, false, objects.Wrap("reading ConfigMap of the installation", err)
	}
	if secret == nil {
		return r.begin(ctx, source)
	}
	source = source.replacing(state, r.Config.Timing(), r.Now())
	facts := caFacts{now: r.Now(), up: r.up, source: source.issuer, broken: source.problem != ""}
	if published != nil {
		facts.published = []byte(published.Data[v1alpha1.TrustBundleKey])
		_, facts.requested = published.Annotations[v1alpha1.RotateCAAnnotation]
	}
	if changed, err = r.advance(ctx, source, state, secret, facts); changed || err != nil {
		return 0, changed, err
	}
	problem := problemOf(r.Config, source, state, facts)
	r.reportProblem(published, problem)
	if changed, err = r.publish(ctx, published, state, problem); changed || err != nil {
		return 0, changed, err
	}
	return r.wait(state), false, nil
}

// begin creates the first state of a new installation.
func (r *Reconciler) begin(ctx context.Context, source caSource) (wait time.Duration, changed bool, err error) {
	switch {
	case source.secret == nil:
		var ca *certs.CA
		if ca, err = r.newCA(); err == nil {
			err = r.writeSource(ctx, nil, ca)
		}
		return 0, err == nil, err
	case source.issuer == nil:
		r.reportProblem(source.secret, source.problem)
		return installationInterval, false, nil
	}
	err = r.writeState(ctx, nil, caState{phase: v1alpha1.CAPhaseSteady, signing: source.issuer})
	return 0, err == nil, err
}

// advance writes the source and state that are due.
func (r *Reconciler) advance(
	ctx context.Context, source caSource, state caState, secret *corev1.Secret, facts caFacts,
) (changed bool, err error) {
	timing := r.Config.Timing()
	switch next, due := state.step(facts, timing); {
	case state.wantsAnother(facts, timing) && fixed(source.secret):
		err := r.removeSource(ctx, source.secret)
		return err == nil, err
	case state.wantsAnother(facts, timing):
		ca, err := r.newCA()
		if err == nil {
			err = r.writeSource(ctx, source.secret, ca)
		}
		return err == nil, err
	case source.secret == nil && state.expected().made:
		r.Log.Warn("CA Secret was deleted, creating it again", "serial", state.expected().Serial())
		err := r.writeSource(ctx, nil, state.expected().CA)
		return err == nil, err
	case due:
		err := r.writeState(ctx, secret, next)
		return err == nil, err
	}
	return false, nil
}

// wait returns the time until the next deadline, at most installationInterval.
func (r *Reconciler) wait(state caState) time.Duration {
	end, _ := state.deadlines(r.Config.Timing())
	if left := end.Sub(r.Now()); !end.IsZero() && left < installationInterval {
		return max(left, 100*time.Millisecond) // a phase may wait for a condition besides its time
	}
	return installationInterval
}

// write creates an object, or patches what differs.
func (r *Reconciler) write(
	ctx context.Context, what string, want, have client.Object, create bool,
) (changed bool, err error) {
	switch {
	case create:
		err = objects.Wrap("creating "+what, r.Client.Create(ctx, want))
	case equality.Semantic.DeepEqual(want, have):
		return false, nil
	default:
		err = objects.Wrap("updating "+what, r.Client.Patch(ctx, want, objects.LockedPatch(have)))
	}
	return err == nil, err
}

// ensureGatewayToken returns the token in the gateways' Secret. It creates the Secret and the token if they do not
// exist.
func (r *Reconciler) ensureGatewayToken(ctx context.Context, bundle []byte) (token string, changed bool, err error) {
	key := client.ObjectKey{Namespace: r.Config.Namespace, Name: v1alpha1.GatewaySecretName}
	have, err := objects.Get(ctx, r.Live, key, &corev1.Secret{})
	if err != nil {
		return "", false, objects.Wrap("reading gateway Secret", err)
	}
	want := &corev1.Secret{ObjectMeta: r.meta(v1alpha1.GatewaySecretName)}
	if have != nil {
		want = have.DeepCopy()
	}
	token = string(want.Data[v1alpha1.BootstrapTokenKey])
	if token == "" {
		if token, err = enrol.RandomToken(); err != nil {
			return "", false, err
		}
	}
	want.Data = map[string][]byte{v1alpha1.BootstrapTokenKey: []byte(token), v1alpha1.BootstrapCAKey: bundle}
	changed, err = r.write(ctx, "gateway Secret", want, have, have == nil)
	return token, changed, err
}

func (r *Reconciler) meta(name string) metav1.ObjectMeta {
	return metav1.ObjectMeta{Namespace: r.Config.Namespace, Name: name}
}

// New returns the reconciler of the installation, which also prunes the record of ended tunnels.
func New(p reconciler.Deps, ended *records.EndedTunnels) *Reconciler {
	return &Reconciler{Deps: p, ended: ended}
}

// Setup adds the reconciler to a manager. It starts nothing.
func (r *Reconciler) Setup(mgr ctrl.Manager) error {
	key := client.ObjectKey{Namespace: r.Config.Namespace, Name: v1alpha1.InstallationConfigMapName}
	sources, err := reconciler.SecretCache(mgr, cache.ByObject{Namespaces: map[string]cache.Config{
		key.Namespace: {FieldSelector: fields.OneTermEqualSelector(metav1.ObjectNameField, v1alpha1.CASecretName)},
	}})
	if err != nil {
		return err
	}
	toInstallation := handler.EnqueueRequestsFromMapFunc(func(context.Context, client.Object) []reconcile.Request {
		return []reconcile.Request{{NamespacedName: key}}
	})
	return ctrl.NewControllerManagedBy(mgr).
		Named("installation").
		For(&corev1.ConfigMap{}, builder.WithPredicates(reconciler.Named(key.Namespace, key.Name))).
		WatchesRawSource(source.Kind[client.Object](sources, reconciler.SecretMetadata(), toInstallation)).
		// The first reconciliation has no ConfigMap to watch.
		WatchesRawSource(source.Func(func(
			_ context.Context, queue workqueue.TypedRateLimitingInterface[reconcile.Request],
		) error {
			queue.Add(reconcile.Request{NamespacedName: key})
			return nil
		})).
		WithOptions(reconciler.Options(1, "configmap", r.Log)).
		Complete(reconciler.Traced{Name: "installation", Reconciler: r})
}
