package copies

import (
	"context"
	"crypto/x509"
	"encoding/pem"
	"errors"
	"fmt"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/client-go/tools/clientcmd"
	clientcmdapi "k8s.io/client-go/tools/clientcmd/api"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/fairlead/fairlead/api/v1alpha1"
	"github.com/fairlead/fairlead/pkg/certs"
	"github.com/fairlead/fairlead/pkg/controller/objects"
	"github.com/fairlead/fairlead/pkg/kubeconfig"
)

const (
	// defaultExpiration is the lifetime of a client certificate if the spec requests none.
	defaultExpiration = 30 * 24 * time.Hour
	// copyJitter is the fraction of a certificate's life over which renewals are spread.
	copyJitter = 0.05
)

// userCASuffixes are the suffixes of the Secrets that hold the CA for client certificates of the apiserver. RKE2 and
// k3s have a CA for clients alone, and store the CA of the apiserver's own certificate under the name that kubeadm uses
// for its only one.
var userCASuffixes = []string{"-cca", "-ca"}

// userCA reads the CA that signs clients of a workload cluster from the apiserver, so that its key is never cached. A
// problem is one that only a person can solve.
func (r *Reconciler) userCA(ctx context.Context, cluster client.ObjectKey) (ca *certs.CA, problem, err error) {
	for _, suffix := range userCASuffixes {
		name := cluster.Name + suffix
		secret, err := objects.Get(ctx, r.Live, client.ObjectKey{Namespace: cluster.Namespace, Name: name}, &corev1.Secret{})
		if err != nil {
			return nil, nil, objects.Wrap("reading CA of the workload cluster", err)
		}
		if secret == nil {
			continue
		}
		if len(secret.Data[corev1.TLSPrivateKeyKey]) == 0 {
			return nil, fmt.Errorf(
				"the Secret %s holds the CA of the workload cluster without its key, as with an external CA: use exec", name,
			), nil
		}
		if ca, err = certs.ParseUserCA(secret.Data[corev1.TLSCertKey], secret.Data[corev1.TLSPrivateKeyKey]); err != nil {
			return nil, fmt.Errorf(
				"the CA in Secret %s: %w: put the CA of the workload cluster back, or use exec", name, err,
			), nil
		}
		return ca, nil, nil
	}
	return nil, fmt.Errorf( //nolint:staticcheck // Secret is a kind
		"Secret %s%s with the CA of the workload cluster not found: its control plane stores it "+
			"elsewhere, as EKS and others do, or has not created it yet: use exec",
		cluster.Name, userCASuffixes[len(userCASuffixes)-1],
	), nil
}

// certified returns a user with a certificate: the existing one while it matches the request and its renewal is not
// due, otherwise a new one.
func (r *Reconciler) certified(
	ca *certs.CA, spec *v1alpha1.ClientCertificateAudience, have *corev1.Secret, result *copyResult,
) (*clientcmdapi.AuthInfo, error) {
	now := r.Now()
	if user, cert := certificateIn(have); cert != nil && asAsked(cert, ca, spec) && now.Before(copyDue(cert)) {
		result.notAfter, result.renewAt = cert.NotAfter, copyDue(cert)
		return user, nil
	}
	key, err := certs.NewKey()
	if err != nil {
		return nil, err
	}
	chain, err := ca.IssueUser(key.Public(), certs.User{
		Name: spec.CommonName, Groups: spec.Groups, NotBefore: now.Add(-certs.ClockSkew), NotAfter: now.Add(expiration(spec)),
	})
	if err != nil {
		return nil, err
	}
	identity, err := certs.NewIdentity(chain, key)
	if err != nil {
		return nil, err
	}
	keyPEM, err := identity.KeyPEM()
	if err != nil {
		return nil, err
	}
	result.notAfter, result.renewAt = identity.NotAfter(), copyDue(identity.Leaf())
	return &clientcmdapi.AuthInfo{ClientCertificateData: chain, ClientKeyData: keyPEM}, nil
}

func expiration(spec *v1alpha1.ClientCertificateAudience) time.Duration {
	if spec.ExpirationSeconds == 0 {
		return defaultExpiration
	}
	return time.Duration(spec.ExpirationSeconds) * time.Second
}

// certificateIn reads the user of a copy; nil: the copy has none with a certificate.
func certificateIn(secret *corev1.Secret) (*clientcmdapi.AuthInfo, *x509.Certificate) {
	if secret == nil {
		return nil, nil
	}
	config, err := clientcmd.Load(secret.Data[kubeconfig.Key])
	if err != nil || config.AuthInfos[copyUser] == nil {
		return nil, nil
	}
	user := config.AuthInfos[copyUser]
	block, _ := pem.Decode(user.ClientCertificateData)
	if block == nil || len(user.ClientKeyData) == 0 {
		return nil, nil
	}
	cert, err := x509.ParseCertificate(block.Bytes)
	if err != nil {
		return nil, nil
	}
	if _, err := certs.ParseIdentity(user.ClientCertificateData, user.ClientKeyData); err != nil {
		return nil, nil // it was edited
	}
	return &clientcmdapi.AuthInfo{
		ClientCertificateData: user.ClientCertificateData, ClientKeyData: user.ClientKeyData,
	}, cert
}

func notAfterOf(secret *corev1.Secret) (time.Time, error) {
	_, cert := certificateIn(secret)
	if cert == nil {
		return time.Time{}, errors.New("it has no certificate")
	}
	return cert.NotAfter, nil
}

// asAsked reports whether a certificate is of this CA and has the requested subject and lifetime.
func asAsked(cert *x509.Certificate, ca *certs.CA, spec *v1alpha1.ClientCertificateAudience) bool {
	end := begun(cert).Add(expiration(spec))
	if ca.NotAfter().Before(end) {
		end = ca.NotAfter()
	}
	// Certificates state their times in whole seconds.
	return ca.Issued(cert) && cert.Subject.CommonName == spec.CommonName &&
		sameGroups(cert.Subject.Organization, spec.Groups) &&
		cert.NotAfter.Sub(end).Abs() <= time.Second
}

// sameGroups compares sets, because a certificate sorts its groups by their bytes.
func sameGroups(a, b []string) bool {
	a, b = slices.Clone(a), slices.Clone(b)
	slices.Sort(a)
	slices.Sort(b)
	return slices.Equal(a, b)
}

// begun returns when a certificate was issued. Its validity begins earlier, for clocks that are late.
func begun(cert *x509.Certificate) time.Time { return cert.NotBefore.Add(certs.ClockSkew) }

// copyDue returns when a certificate must be replaced: after two thirds of its life plus a share that differs for each
// certificate.
func copyDue(cert *x509.Certificate) time.Time {
	life := cert.NotAfter.Sub(begun(cert))
	share := 0.0
	if serial := cert.SerialNumber.Bytes(); len(serial) > 0 {
		share = float64(serial[len(serial)-1]) / 256
	}
	return certs.RenewAt(begun(cert), cert.NotAfter).Add(time.Duration(copyJitter * share * float64(life)))
}
