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

// cureCA states how to repair a source that cannot be used.
const cureCA = "put in a self-signed root CA and its key, such as cert-manager issues for a Certificate with " +
	"isCA and a SelfSigned issuer, or delete the Secret"

// caSource is the Secret from which new CAs come.
type caSource struct {
	secret  *corev1.Secret // nil: it does not exist
	issuer  *Issuer        // nil: the Secret holds no usable CA
	problem string         // why the Secret is unusable
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

// replacing returns the source without its CA if that would replace one that is valid for longer, and expires before it
// has signed for the life of a leaf. It is usually a mistake: openssl makes certificates of 30 days.
func (s caSource) replacing(state caState, t config.Timing, now time.Time) caSource {
	if s.issuer == nil || s.issuer.Equal(state.signing.CA) || state.next != nil && s.issuer.Equal(state.next.CA) {
		return s
	}
	end, needs := s.issuer.NotAfter(), t.Introduce()+t.Leaf
	if end.Before(now.Add(needs)) && !end.After(state.signing.NotAfter()) {
		s.issuer, s.problem = nil, fmt.Sprintf(
			"Secret %s: %s: the CA expires at %s, sooner than %s from now, which it needs to be introduced and to sign: put in "+
				"one that is valid for longer", s.secret.Name, corev1.TLSCertKey, end.UTC().Format(time.RFC3339), needs,
		)
	}
	return s
}

// parseSource reads the CA of a Secret and tests whether it can sign leaves. An error is returned with the field that
// it is about.
func parseSource(c config.Config, secret *corev1.Secret, now time.Time) (*Issuer, string, error) {
	if secret.Type != corev1.SecretTypeTLS {
		return nil, "type", fmt.Errorf("it is %q, not %q", secret.Type, corev1.SecretTypeTLS)
	}
	ca, err := certs.ParseCA(secret.Data[corev1.TLSCertKey], secret.Data[corev1.TLSPrivateKeyKey])
	if errors.Is(err, certs.ErrCAKey) {
		return nil, corev1.TLSPrivateKeyKey, err
	}
	if err == nil {
		// Any role will do: all names are below the tunnel domain.
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

// writeSource writes a CA that the controller created into the source.
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

// fixed reports whether a Secret cannot become a source: Kubernetes never changes a Secret's type or an immutable
// Secret.
func fixed(secret *corev1.Secret) bool {
	return secret != nil && (secret.Type != corev1.SecretTypeTLS || ptr.Deref(secret.Immutable, false))
}

// removeSource deletes the source if the Secret has not changed since it was read.
func (r *Reconciler) removeSource(ctx context.Context, have *corev1.Secret) error {
	r.Log.Warn("CA Secret is immutable, deleting it to create it with another CA", "type", string(have.Type))
	err := r.Client.Delete(ctx, have, client.Preconditions{UID: &have.UID, ResourceVersion: &have.ResourceVersion})
	return objects.Wrap("deleting CA Secret", client.IgnoreNotFound(err))
}

// newCA creates a CA, which is not stored yet.
func (r *Reconciler) newCA() (*certs.CA, error) {
	ca, err := certs.NewCA("Fairlead "+r.commonName(), r.Now(), r.Config.Timing().Life)
	if err == nil {
		r.Log.Info("CA created", "serial", ca.Serial(), "not_after", ca.NotAfter())
	}
	return ca, err
}

// commonName returns the tunnel domain, cut to the 64 bytes of a common name.
func (r *Reconciler) commonName() string {
	return string(r.Config.Domain)[:min(len(r.Config.Domain), 64-len("Fairlead "))]
}
