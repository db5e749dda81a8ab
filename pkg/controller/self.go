package controller

import (
	"context"
	"crypto/x509"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/fairlead/fairlead/api/v1alpha1"
	"github.com/fairlead/fairlead/pkg/certs"
	"github.com/fairlead/fairlead/pkg/model"
)

// selfTimeout bounds one look at the apiserver during a TLS handshake.
const selfTimeout = 5 * time.Second

// selfIssued is the controller's own identity towards the xds-servers: a leaf that it issues to itself and keeps in memory
// alone. It is safe for concurrent use.
type selfIssued struct {
	config Config
	live   client.Reader
	trust  certs.TrustSource // of whom it is shown to

	mu       sync.Mutex
	identity certs.Identity
	renewAt  time.Time
}

// Identity implements certs.Source.
func (s *selfIssued) Identity() (certs.Identity, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	now := s.config.clock()()
	if s.identity.Leaf() != nil && now.Before(s.renewAt) && s.trusted(now) {
		return s.identity, nil
	}
	identity, err := s.issue(now)
	if err != nil {
		return certs.Identity{}, wrap("issuing the controller's own leaf", err)
	}
	s.identity, s.renewAt = identity, certs.RenewAt(now, identity.NotAfter())
	return identity, nil
}

// trusted says whether the leaf is of a CA in the published bundle. It is not any more after the state of the CA was lost or
// replaced, and would then be refused until it is due. A bundle that can't be read says nothing.
func (s *selfIssued) trusted(now time.Time) bool {
	roots, err := s.trust.Roots()
	if err != nil {
		return true
	}
	_, err = s.identity.Leaf().Verify(x509.VerifyOptions{Roots: roots, CurrentTime: now, KeyUsages: []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth}})
	return err == nil
}

func (s *selfIssued) issue(now time.Time) (certs.Identity, error) {
	ctx, cancel := context.WithTimeout(context.Background(), selfTimeout)
	defer cancel()
	subject := model.ControllerSubject()
	ca, err := loadCA(s.config, ctx, s.live, subject.Role, now)
	if err != nil {
		return certs.Identity{}, err
	}
	key, err := certs.NewKey()
	if err != nil {
		return certs.Identity{}, err
	}
	chain, err := ca.Issue(key.Public(), certs.Leaf{
		CommonName: subject.Node, DNSNames: s.config.Domain.DNSNames(subject), Client: true,
		NotBefore: now.Add(-certs.ClockSkew), NotAfter: now.Add(s.config.LeafLifetime),
	})
	if err != nil {
		return certs.Identity{}, err
	}
	return certs.NewIdentity(chain, key)
}

// Roots implements certs.TrustSource.
func (t publishedTrust) Roots() (*x509.CertPool, error) {
	ctx, cancel := context.WithTimeout(context.Background(), selfTimeout)
	defer cancel()
	bundle, err := readBundle(ctx, t.from, t.namespace)
	if err != nil {
		return nil, err
	}
	return certs.Bundle(bundle).Roots()
}

// readBundle returns the CAs to accept, as PEM; nothing while the installation is not complete.
func readBundle(ctx context.Context, from client.Reader, namespace string) ([]byte, error) {
	key := client.ObjectKey{Namespace: namespace, Name: v1alpha1.InstallationConfigMapName}
	config, err := get(ctx, from, key, &corev1.ConfigMap{})
	if err != nil || config == nil {
		return nil, wrap("reading ConfigMap of the installation", err)
	}
	return []byte(config.Data[v1alpha1.TrustBundleKey]), nil
}

// publishedTrust is the installation's trust bundle at this moment.
type publishedTrust struct {
	from      client.Reader
	namespace string
}
