package ca

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/fairlead/fairlead/api/v1alpha1"
	"github.com/fairlead/fairlead/pkg/certs"
	"github.com/fairlead/fairlead/pkg/controller/config"
	"github.com/fairlead/fairlead/pkg/controller/objects"
	"github.com/fairlead/fairlead/pkg/model"
)

// cureCA is what to do about a source that can't be used.
const cureCA = "put in a self-signed root CA and its key, such as cert-manager issues for a Certificate with " +
	"isCA and a" +
	" SelfSigned issuer, or delete the Secret"

// caSource is the Secret from which new CAs come.
type caSource struct {
	secret  *corev1.Secret // nil: there is none
	issuer  *Issuer        // nil: it holds none that can be used
	problem string         // what is wrong with it
}

// readSource reads the source from the apiserver.
func (r *Reconciler) readSource(ctx context.Context) (caSource, error) {
	key := client.ObjectKey{Namespace: r.Config.Namespace, Name: v1alpha1.CASecretName}
	secret, err := objects.Get(ctx, r.Live, key, &corev1.Secret{})
	if err != nil || secret == nil {
		return caSource{}, objects.Wrap("reading CA Secret", err)
	}
	s := caSource{secret: secret}
	var field string
	if s.issuer, field, err = parseSource(r.Config, secret, r.Now()); err != nil {
		s.problem = fmt.Sprintf("Secret %s: %s: %v: %s", key, field, err, cureCA)
	}
	return s, nil
}

// parseSource reads the CA of a Secret, and tries whether it can sign what is needed. An error comes with the field
// that it is about.
func parseSource(c config.Config, secret *corev1.Secret, now time.Time) (*Issuer, string, error) {
	if secret.Type != corev1.SecretTypeTLS {
		return nil, "type", fmt.Errorf("it is %q, not %q", secret.Type, corev1.SecretTypeTLS)
	}
	ca, err := certs.ParseCA(secret.Data[corev1.TLSCertKey], secret.Data[corev1.TLSPrivateKeyKey])
	if errors.Is(err, certs.ErrCAKey) {
		return nil, corev1.TLSPrivateKeyKey, err
	}
	if err == nil {
		// The name of any role will do: all of them lie below the tunnel domain.
		subject := model.ControlSubject()
		err = ca.Check(certs.Leaf{
			CommonName: subject.Node, DNSNames: c.Domain.DNSNames(subject), Server: true, Client: true,
			NotBefore: now.Add(-certs.ClockSkew), NotAfter: now.Add(c.LeafLifetime),
		}, now)
	}
	if err != nil {
		return nil, corev1.TLSCertKey, err
	}
	return &Issuer{CA: ca, made: secret.Annotations[v1alpha1.CAMadeAnnotation] == ca.Serial()}, "", nil
}

// writeSource puts a CA that the controller made into the source.
func (r *Reconciler) writeSource(ctx context.Context, have *corev1.Secret, ca *certs.CA) error {
	key, err := ca.KeyPEM()
	if err != nil {
		return err
	}
	want := &corev1.Secret{ObjectMeta: r.meta(v1alpha1.CASecretName), Type: corev1.SecretTypeTLS}
	if have != nil {
		want = have.DeepCopy()
	}
	want.Annotations = maps.Clone(want.Annotations)
	if want.Annotations == nil {
		want.Annotations = map[string]string{}
	}
	want.Annotations[v1alpha1.CAMadeAnnotation] = ca.Serial()
	want.Data = map[string][]byte{corev1.TLSCertKey: ca.CertPEM(), corev1.TLSPrivateKeyKey: key}
	_, err = r.write(ctx, "CA Secret", want, have, have == nil)
	return err
}

// fixed says whether a Secret can't be made a source: Kubernetes never changes a Secret's type, nor one that is
// immutable.
func fixed(secret *corev1.Secret) bool {
	return secret != nil && (secret.Type != corev1.SecretTypeTLS || ptr.Deref(secret.Immutable, false))
}

// removeSource makes room for a source, if the Secret is still the one that was looked at.
func (r *Reconciler) removeSource(ctx context.Context, have *corev1.Secret) error {
	r.Log.Warn(
		"CA Secret is immutable, deleting it to create it with another CA", "type",
		string(have.Type),
	)
	err := r.Client.Delete(ctx, have, client.Preconditions{UID: &have.UID, ResourceVersion: &have.ResourceVersion})
	return objects.Wrap("deleting CA Secret", client.IgnoreNotFound(err))
}

// controllertest.NewCA makes a CA, which is nowhere yet.
func (r *Reconciler) newCA() (*certs.CA, error) {
	ca, err := certs.NewCA("Fairlead "+r.commonName(), r.Now(), r.Config.Timing().Life)
	if err == nil {
		r.Log.Info("CA created", "serial", ca.Serial(), "not_after", ca.NotAfter())
	}
	return ca, err
}

// commonName is the tunnel domain, as much of it as a common name of 64 bytes has room for.
func (r *Reconciler) commonName() string {
	return string(r.Config.Domain)[:min(len(r.Config.Domain), 64-len("Fairlead "))]
}
