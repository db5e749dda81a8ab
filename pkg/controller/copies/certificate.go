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
	// defaultExpiration is that of a client certificate for which none is asked.
	defaultExpiration = 30 * 24 * time.Hour
	// copyJitter is the part of a certificate's life over which renewals are spread.
	copyJitter = 0.05
)

// userCASuffixes are those of the Secrets with the CA that signs clients of the apiserver. RKE2 and k3s have one for
// clients alone, and keep that of the apiserver's own certificate under the name of kubeadm's only one.
var userCASuffixes = []string{"-cca", "-ca"}

// userCA reads the CA that signs clients of a workload cluster, from the apiserver: nothing keeps its key in memory.
// A problem is one that only a person can solve.
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
	return nil, fmt.Errorf("there is no Secret %s%s with the CA of the workload cluster: its control plane stores it "+
		"elsewhere, as EKS and others do, or has not created it yet: use exec",
		cluster.Name, userCASuffixes[len(userCASuffixes)-1]), nil
}

// certified is a user with a certificate: the one that is there, while it is what is asked for and not yet due, else
// a new one.
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

// certificateIn reads the user of a copy; nil where there is none with a certificate.
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

// asAsked says whether a certificate is of this CA and says what it is to say, for as long as it is to.
func asAsked(cert *x509.Certificate, ca *certs.CA, spec *v1alpha1.ClientCertificateAudience) bool {
	end := begun(cert).Add(expiration(spec))
	if ca.NotAfter().Before(end) {
		end = ca.NotAfter()
	}
	// Certificates say their times to the second.
	return ca.Issued(cert) && cert.Subject.CommonName == spec.CommonName &&
		sameGroups(cert.Subject.Organization, spec.Groups) &&
		cert.NotAfter.Sub(end).Abs() <= time.Second
}

// sameGroups compares sets: a certificate has its groups in the order of their bytes.
func sameGroups(a, b []string) bool {
	a, b = slices.Clone(a), slices.Clone(b)
	slices.Sort(a)
	slices.Sort(b)
	return slices.Equal(a, b)
}

// begun is when a certificate was issued: it begins earlier, for clocks that are late.
func begun(cert *x509.Certificate) time.Time { return cert.NotBefore.Add(certs.ClockSkew) }

// copyDue is when a certificate is to be replaced: after two thirds of its life, and a part more that is each
// certificate's own.
func copyDue(cert *x509.Certificate) time.Time {
	life := cert.NotAfter.Sub(begun(cert))
	share := 0.0
	if serial := cert.SerialNumber.Bytes(); len(serial) > 0 {
		share = float64(serial[len(serial)-1]) / 256
	}
	return certs.RenewAt(begun(cert), cert.NotAfter).Add(time.Duration(copyJitter * share * float64(life)))
}
