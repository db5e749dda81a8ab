package webhook

import (
	"context"
	"crypto/tls"
	"encoding/base64"
	"errors"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"net/http"
	"sync"
	"time"

	admissionv1 "k8s.io/api/admissionregistration/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/client-go/util/workqueue"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/cache"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/handler"
	"sigs.k8s.io/controller-runtime/pkg/healthz"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"
	"sigs.k8s.io/controller-runtime/pkg/source"
	"sigs.k8s.io/controller-runtime/pkg/webhook"

	"github.com/fairlead/fairlead/api/v1alpha1"
	"github.com/fairlead/fairlead/internal/traces"
	"github.com/fairlead/fairlead/pkg/controller/config"
	"github.com/fairlead/fairlead/pkg/controller/objects"
	"github.com/fairlead/fairlead/pkg/controller/reconciler"
)

const (
	// Path is that of the URL at which apiservers call the webhook.
	Path = "/kubeconfigs"
	// certificateInterval is how often the certificate is checked without an event: clocks are changed, and machines
	// sleep.
	certificateInterval = time.Hour
	// handshakeTimeout bounds how long a TLS handshake waits for the cache of the certificate.
	handshakeTimeout = time.Second
	// certificatePollInterval is the time between checks whether the first certificate is there.
	certificatePollInterval = 200 * time.Millisecond
)

// Setup adds the webhook to a manager, in every replica. If WebhookCertDir is set, it serves the files there and reads
// them again when they change; the process ends if there are none at the start. Otherwise the leading replica maintains
// a certificate in a Secret.
func Setup(p reconciler.Deps, mgr ctrl.Manager) error {
	if p.Config.WebhookListen == "" {
		return nil
	}
	host, port, err := config.SplitListen(p.Config.WebhookListen)
	if err != nil {
		return err
	}
	options := webhook.Options{Host: host, Port: port, CertDir: p.Config.WebhookCertDir}
	options.TLSOpts = append(options.TLSOpts, func(c *tls.Config) { c.MinVersion = tls.VersionTLS13 })
	if p.Config.WebhookCertDir != "" {
		mounted := func(context.Context) error { return nil }
		return add(p, mgr, options, mounted, func(serves healthz.Checker) healthz.Checker { return serves })
	}
	watched, err := webhookCache(mgr, p.Config.Namespace)
	if err != nil {
		return err
	}
	key := client.ObjectKey{Namespace: p.Config.Namespace, Name: v1alpha1.WebhookSecretName}
	source := &servingSource{from: watched, key: key}
	options.TLSOpts = append(options.TLSOpts, func(c *tls.Config) { c.GetCertificate = source.certificate })
	keeper := &webhookKeeper{
		client: p.Client, live: p.Live, watched: watched, key: key, log: p.Log, now: p.Now,
		times: servingTimes{life: webhookLifetime, settle: webhookSettle},
	}
	return errors.Join(add(p, mgr, options, source.wait, source.check), keeper.setup(mgr, watched))
}

// add adds the server, which listens once wait returns, and its readiness.
func add(p reconciler.Deps, mgr ctrl.Manager, options webhook.Options, wait func(context.Context) error,
	check func(healthz.Checker) healthz.Checker,
) error {
	hook := &kubeconfigWebhook{config: p.Config, client: p.Client, log: p.Log}
	server := webhook.NewServer(options)
	server.Register(Path, traces.Handler(&webhook.Admission{Handler: hook}, "admit kubeconfig"))
	serve := func(ctx context.Context) error { return hook.serve(ctx, mgr.GetCache(), wait, server) }
	return errors.Join(
		mgr.Add(reconciler.EveryReplica{Run: serve}), mgr.AddReadyzCheck("webhook", check(server.StartedChecker())),
	)
}

// webhookCache caches the Secret of the webhook, with its key, and the configuration of the webhook, and no other
// object.
func webhookCache(mgr ctrl.Manager, namespace string) (cache.Cache, error) {
	c, err := cache.New(mgr.GetConfig(), cache.Options{
		HTTPClient: mgr.GetHTTPClient(), Scheme: mgr.GetScheme(), Mapper: mgr.GetRESTMapper(),
		ByObject: map[client.Object]cache.ByObject{
			&corev1.Secret{}: {Namespaces: map[string]cache.Config{
				namespace: {FieldSelector: fields.OneTermEqualSelector(metav1.ObjectNameField, v1alpha1.WebhookSecretName)},
			}},
			&admissionv1.MutatingWebhookConfiguration{}: {
				Field: fields.OneTermEqualSelector(metav1.ObjectNameField, v1alpha1.WebhookConfigurationName),
			},
		},
		DefaultTransform: cache.TransformStripManagedFields(),
	})
	if err != nil {
		return nil, fmt.Errorf("creating cache of the webhook: %w", err)
	}
	return c, mgr.Add(reconciler.EveryReplica{Run: c.Start}) // added directly, it would start only with leadership
}

// servingSource provides the certificate that is in the Secret now.
type servingSource struct {
	from client.Reader
	key  client.ObjectKey

	mu      sync.Mutex
	version string
	pair    *tls.Certificate
}

// certificate is for tls.Config. An unusable Secret leaves the previous certificate in use.
func (s *servingSource) certificate(*tls.ClientHelloInfo) (*tls.Certificate, error) {
	ctx, cancel := context.WithTimeout(context.Background(), handshakeTimeout)
	defer cancel()
	secret, err := objects.Get(ctx, s.from, s.key, &corev1.Secret{})
	s.mu.Lock()
	defer s.mu.Unlock()
	if err == nil && secret != nil && secret.ResourceVersion != s.version {
		if pair, err := tls.X509KeyPair(secret.Data[corev1.TLSCertKey], secret.Data[corev1.TLSPrivateKeyKey]); err == nil {
			s.version, s.pair = secret.ResourceVersion, &pair
		}
	}
	if s.pair == nil {
		return nil, errors.Join(fmt.Errorf("Secret %s has no certificate yet", s.key), err) //nolint:staticcheck // a kind
	}
	return s.pair, nil
}

// wait returns when there is a certificate, or ctx has ended. Until then the port is closed, so that connections of
// apiservers fail at once instead of waiting.
func (s *servingSource) wait(ctx context.Context) error {
	return wait.PollUntilContextCancel(ctx, certificatePollInterval, true, func(context.Context) (bool, error) {
		_, err := s.certificate(nil)
		return err == nil, nil
	})
}

// check checks the server only once it can serve. Before the first replica leads there is no certificate, and no
// replica may wait for it.
func (s *servingSource) check(serves healthz.Checker) healthz.Checker {
	return func(request *http.Request) error {
		if _, err := s.certificate(nil); err != nil {
			return nil //nolint:nilerr // as said
		}
		return serves(request)
	}
}

// webhookKeeper creates the certificate of the webhook, rotates it, and publishes its CA to apiservers.
type webhookKeeper struct {
	client  client.Client
	live    client.Reader
	watched client.Reader
	key     client.ObjectKey
	log     *slog.Logger
	now     func() time.Time
	times   servingTimes
	problem string // the last problem that was logged
}

func (k *webhookKeeper) setup(mgr ctrl.Manager, watched cache.Cache) error {
	request := reconcile.Request{NamespacedName: k.key}
	to := handler.EnqueueRequestsFromMapFunc(
		func(context.Context, client.Object) []reconcile.Request { return []reconcile.Request{request} },
	)
	return ctrl.NewControllerManagedBy(mgr).
		Named("webhook").
		WatchesRawSource(source.Kind[client.Object](watched, &admissionv1.MutatingWebhookConfiguration{}, to)).
		WatchesRawSource(source.Kind[client.Object](watched, &corev1.Secret{}, to)).
		WatchesRawSource(source.Func(func(
			_ context.Context, queue workqueue.TypedRateLimitingInterface[reconcile.Request],
		) error {
			queue.Add(request)
			return nil
		})).
		WithOptions(reconciler.Options(1, "secret", k.log)).
		Complete(reconciler.Traced{Name: "webhook", Reconciler: k})
}

// Reconcile takes one step.
func (k *webhookKeeper) Reconcile(ctx context.Context, _ reconcile.Request) (reconcile.Result, error) {
	configuration, err := objects.Get(
		ctx, k.watched, client.ObjectKey{Name: v1alpha1.WebhookConfigurationName},
		&admissionv1.MutatingWebhookConfiguration{},
	)
	if err != nil {
		return reconcile.Result{}, objects.Wrap("reading configuration of the webhook", err)
	}
	if configuration == nil {
		k.logProblem(
			"MutatingWebhookConfiguration " + v1alpha1.WebhookConfigurationName +
				" not found: kubeconfigs are rewritten after each write, not at admission",
		)
		return reconcile.Result{}, nil // its creation comes back here
	}
	hosts, err := webhookHosts(configuration)
	if err != nil {
		k.logProblem("MutatingWebhookConfiguration " + v1alpha1.WebhookConfigurationName + ": " + err.Error())
		return reconcile.Result{}, nil
	}
	k.logProblem("")
	state, err := k.rotate(ctx, configuration, hosts)
	if err == nil {
		err = k.publish(ctx, configuration, state.bundle)
	}
	if err != nil {
		return reconciler.Retry(reconcile.Result{}, err)
	}
	pause := min(max(time.Second, state.nextStep(k.times).Sub(k.now())), certificateInterval)
	return reconcile.Result{RequeueAfter: pause + rand.N(pause/10+1)}, nil
}

// rotate advances the Secret to its next state.
func (k *webhookKeeper) rotate(
	ctx context.Context, configuration *admissionv1.MutatingWebhookConfiguration, hosts []string,
) (servingCerts, error) {
	have, err := objects.Get(
		ctx, k.live, k.key, &corev1.Secret{},
	) // an outdated copy would result in a superfluous certificate
	if err != nil {
		return servingCerts{}, objects.Wrap("reading Secret of the webhook", err)
	}
	var state servingCerts
	if have != nil {
		if state, err = parseServing(have.Data); err != nil {
			k.log.Warn("certificate of the webhook is not usable, issuing another", "error", err)
		}
	}
	state, err = state.step(hosts, publishedEverywhere(configuration, state.bundle), k.times, k.now())
	if err != nil {
		return state, objects.Wrap("issuing certificate of the webhook", err)
	}
	data, err := state.data()
	if err != nil {
		return state, objects.Wrap("writing certificate of the webhook", err)
	}
	if have == nil {
		want := &corev1.Secret{
			ObjectMeta: metav1.ObjectMeta{Namespace: k.key.Namespace, Name: k.key.Name}, Type: corev1.SecretTypeTLS, Data: data,
		}
		err = objects.Wrap("creating Secret of the webhook", k.client.Create(ctx, want))
	} else if want := have.DeepCopy(); !equality.Semantic.DeepEqual(have.Data, data) {
		want.Data = data
		err = objects.Wrap("updating Secret of the webhook", k.client.Patch(ctx, want, objects.LockedPatch(have)))
	} else {
		return state, nil
	}
	if err == nil {
		k.log.Info(
			"certificate of the webhook issued", "serial", state.current.Serial(), "not_after", state.current.NotAfter(), "next",
			state.next.Leaf() != nil,
		)
	}
	return state, err
}

// fieldOwner is the field manager of the CA bundles in the configuration of the webhook.
const fieldOwner = "fairlead-webhook"

// publish applies the bundle to every webhook of the configuration that apiservers read, and leaves all other fields to
// their owners.
func (k *webhookKeeper) publish(
	ctx context.Context, have *admissionv1.MutatingWebhookConfiguration, bundle []byte,
) error {
	if publishedEverywhere(have, bundle) {
		return nil
	}
	var hooks []any
	for i := range have.Webhooks {
		clientConfig := map[string]any{"caBundle": base64.StdEncoding.EncodeToString(bundle)}
		hooks = append(hooks, map[string]any{"name": have.Webhooks[i].Name, "clientConfig": clientConfig})
	}
	want := &unstructured.Unstructured{Object: map[string]any{"webhooks": hooks}}
	want.SetGroupVersionKind(admissionv1.SchemeGroupVersion.WithKind("MutatingWebhookConfiguration"))
	want.SetName(have.Name)
	want.SetUID(have.UID) // a deleted one is not created again
	applied := client.ApplyConfigurationFromUnstructured(want)
	return objects.Wrap(
		"writing configuration of the webhook",
		k.client.Apply(ctx, applied, client.FieldOwner(fieldOwner), client.ForceOwnership),
	)
}

// logProblem logs a problem once.
func (k *webhookKeeper) logProblem(problem string) {
	if problem != "" && problem != k.problem {
		k.log.Warn("webhook is not called", "problem", problem)
	}
	k.problem = problem
}
