package controller

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
	"github.com/fairlead/fairlead/pkg/model"
)

// cureCA is what to do about a source that can't be used.
const cureCA = "put in a root CA that signed itself and its key, such as cert-manager makes of a Certificate with isCA and a" +
	" SelfSigned issuer, or delete the Secret"

// caSource is the Secret from which new CAs come.
type caSource struct {
	secret  *corev1.Secret // nil: there is none
	issuer  *issuer        // nil: it holds none that can be used
	problem string         // what is wrong with it
}

// readSource reads the source from the apiserver.
func (r *installation) readSource(ctx context.Context) (caSource, error) {
	key := client.ObjectKey{Namespace: r.config.Namespace, Name: v1alpha1.CASecretName}
	secret, err := get(ctx, r.live, key, &corev1.Secret{})
	if err != nil || secret == nil {
		return caSource{}, wrap("reading CA Secret", err)
	}
	s := caSource{secret: secret}
	var field string
	if s.issuer, field, err = parseSource(r.config, secret, r.now()); err != nil {
		s.problem = fmt.Sprintf("Secret %s: %s: %v: %s", key, field, err, cureCA)
	}
	return s, nil
}

// parseSource reads the CA of a Secret, and tries whether it can sign what is needed. An error comes with the field that it is about.
func parseSource(c Config, secret *corev1.Secret, now time.Time) (*issuer, string, error) {
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
	return &issuer{CA: ca, made: secret.Annotations[v1alpha1.CAMadeAnnotation] == ca.Serial()}, "", nil
}

// writeSource puts a CA that the controller made into the source.
func (r *installation) writeSource(ctx context.Context, have *corev1.Secret, ca *certs.CA) error {
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

// fixed says whether a Secret can't be made a source: Kubernetes never changes a Secret's type, nor one that is immutable.
func fixed(secret *corev1.Secret) bool {
	return secret != nil && (secret.Type != corev1.SecretTypeTLS || ptr.Deref(secret.Immutable, false))
}

// removeSource makes room for a source, if the Secret is still the one that was looked at.
func (r *installation) removeSource(ctx context.Context, have *corev1.Secret) error {
	r.log.Warn("the CA Secret can't be changed and is deleted, so that it can be made again with another CA", "type", string(have.Type))
	err := r.client.Delete(ctx, have, client.Preconditions{UID: &have.UID, ResourceVersion: &have.ResourceVersion})
	return wrap("deleting CA Secret", client.IgnoreNotFound(err))
}

// newCA makes a CA, which is nowhere yet.
func (r *installation) newCA() (*certs.CA, error) {
	ca, err := certs.NewCA("Fairlead "+r.commonName(), r.now(), r.config.timing().life)
	if err == nil {
		r.log.Info("CA created", "serial", ca.Serial(), "not_after", ca.NotAfter())
	}
	return ca, err
}

// commonName is the tunnel domain, as much of it as a common name of 64 bytes has room for.
func (r *installation) commonName() string {
	return string(r.config.Domain)[:min(len(r.config.Domain), 64-len("Fairlead "))]
}
