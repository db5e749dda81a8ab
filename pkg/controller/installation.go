package controller

import (
	"bytes"
	"context"
	"encoding/pem"
	"errors"
	"log/slog"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	"github.com/fairlead/fairlead/api/v1alpha1"
	"github.com/fairlead/fairlead/pkg/certs"
	"github.com/fairlead/fairlead/pkg/enrol"
)

const (
	// caLifetime is long, because replacing a CA reaches edges only as they renew.
	caLifetime = 10 * 365 * 24 * time.Hour
	// installationInterval is how often the installation's Secrets are looked at: they are not watched, so that the CA
	// key stays out of every cache.
	installationInterval = time.Minute
)

// errNoCA is what waits for the installation to be complete.
var errNoCA = errors.New("there is no CA yet")

// installation reconciles what belongs to the installation as a whole: the CA, the public ConfigMap, the gateway token.
// Everything that exists already is used as it is.
type installation struct {
	config Config
	client client.Client
	live   client.Reader
	log    *slog.Logger
	now    func() time.Time
}

// Reconcile makes what is missing.
func (r *installation) Reconcile(ctx context.Context, _ reconcile.Request) (reconcile.Result, error) {
	err := r.ensure(ctx)
	if conflict(err) {
		return reconcile.Result{RequeueAfter: conflictDelay}, nil
	}
	return reconcile.Result{RequeueAfter: installationInterval}, err
}

func (r *installation) ensure(ctx context.Context) error {
	ca, err := r.ensureCA(ctx)
	if err != nil {
		return err
	}
	key := client.ObjectKey{Namespace: r.config.Namespace, Name: v1alpha1.InstallationConfigMapName}
	have, err := get(ctx, r.live, key, &corev1.ConfigMap{})
	if err != nil {
		return wrap("reading ConfigMap of the installation", err)
	}
	want := &corev1.ConfigMap{ObjectMeta: r.meta(key.Name)}
	if have != nil {
		want = have.DeepCopy()
	}
	bundle := addToBundle(want.Data[v1alpha1.TrustBundleKey], ca.CertPEM())
	token, err := r.ensureGatewayToken(ctx, []byte(bundle))
	if err != nil {
		return err
	}
	if want.Data == nil {
		want.Data = map[string]string{}
	}
	want.Data[v1alpha1.TrustBundleKey], want.Data[v1alpha1.GatewayTokenHashKey] = bundle, enrol.HashToken(token)
	return r.write(ctx, "ConfigMap of the installation", want, have, have == nil)
}

// write creates an object, or changes what differs.
func (r *installation) write(ctx context.Context, what string, want, have client.Object, create bool) error {
	switch {
	case create:
		return wrap("creating "+what, r.client.Create(ctx, want))
	case equality.Semantic.DeepEqual(want, have):
		return nil
	}
	return wrap("updating "+what, r.client.Patch(ctx, want, lockedPatch(have)))
}

// ensureCA returns the CA, and makes one where there is none.
func (r *installation) ensureCA(ctx context.Context) (*certs.CA, error) {
	ca, err := loadCA(ctx, r.live, r.config.Namespace)
	if !errors.Is(err, errNoCA) {
		return ca, err
	}
	if ca, err = certs.NewCA("Fairlead "+r.commonName(), r.now(), caLifetime); err != nil {
		return nil, err
	}
	key, err := ca.KeyPEM()
	if err != nil {
		return nil, err
	}
	secret := &corev1.Secret{
		ObjectMeta: r.meta(v1alpha1.CASecretName),
		Type:       corev1.SecretTypeTLS,
		Data:       map[string][]byte{corev1.TLSCertKey: ca.CertPEM(), corev1.TLSPrivateKeyKey: key},
	}
	if err := r.client.Create(ctx, secret); err != nil {
		return nil, wrap("creating CA Secret", err)
	}
	r.log.Info("CA created", "not_after", ca.NotAfter())
	return ca, nil
}

// commonName is the tunnel domain, as much of it as a common name of 64 bytes has room for.
func (r *installation) commonName() string {
	return string(r.config.Domain)[:min(len(r.config.Domain), 64-len("Fairlead "))]
}

// loadCA reads the CA from its Secret: at each use, so that the key is nowhere but there and a new one is used at once.
func loadCA(ctx context.Context, live client.Reader, namespace string) (*certs.CA, error) {
	secret, err := get(ctx, live, client.ObjectKey{Namespace: namespace, Name: v1alpha1.CASecretName}, &corev1.Secret{})
	if err != nil {
		return nil, wrap("reading CA Secret", err)
	}
	if secret == nil {
		return nil, errNoCA
	}
	ca, err := certs.ParseCA(secret.Data[corev1.TLSCertKey], secret.Data[corev1.TLSPrivateKeyKey])
	return ca, wrap("reading CA Secret "+v1alpha1.CASecretName, err)
}

// ensureGatewayToken returns the token in the gateways' Secret, and makes Secret and token where there are none.
func (r *installation) ensureGatewayToken(ctx context.Context, bundle []byte) (string, error) {
	key := client.ObjectKey{Namespace: r.config.Namespace, Name: v1alpha1.GatewaySecretName}
	have, err := get(ctx, r.live, key, &corev1.Secret{})
	if err != nil {
		return "", wrap("reading gateway Secret", err)
	}
	want := &corev1.Secret{ObjectMeta: r.meta(v1alpha1.GatewaySecretName)}
	if have != nil {
		want = have.DeepCopy()
	}
	token := string(want.Data[v1alpha1.BootstrapTokenKey])
	if token == "" {
		if token, err = enrol.RandomToken(); err != nil {
			return "", err
		}
	}
	want.Data = map[string][]byte{v1alpha1.BootstrapTokenKey: []byte(token), v1alpha1.BootstrapCAKey: bundle}
	return token, r.write(ctx, "gateway Secret", want, have, have == nil)
}

// addToBundle returns a bundle that has a CA. What else is in the bundle stays: it is there while one CA replaces another.
// What is no certificate does not, because nobody could read the bundle.
func addToBundle(bundle string, caPEM []byte) string {
	ca, _ := pem.Decode(caPEM)
	var out bytes.Buffer
	for block, rest := pem.Decode([]byte(bundle)); block != nil; block, rest = pem.Decode(rest) {
		if block.Type == ca.Type && !bytes.Equal(block.Bytes, ca.Bytes) {
			out.Write(pem.EncodeToMemory(&pem.Block{Type: block.Type, Bytes: block.Bytes}))
		}
	}
	return out.String() + string(caPEM)
}

func (r *installation) meta(name string) metav1.ObjectMeta {
	return metav1.ObjectMeta{Namespace: r.config.Namespace, Name: name}
}
