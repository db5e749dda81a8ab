package ca

import (
	"context"
	"crypto/x509"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/fairlead/fairlead/api/v1alpha1"
	"github.com/fairlead/fairlead/pkg/certs"
	"github.com/fairlead/fairlead/pkg/controller/config"
	"github.com/fairlead/fairlead/pkg/controller/objects"
	"github.com/fairlead/fairlead/pkg/model"
)

// selfTimeout bounds one read from the apiserver during a TLS handshake.
const selfTimeout = 5 * time.Second

// SelfIssued is the controller's own identity towards the xds-servers: a leaf that it issues to itself and keeps in
// memory. It is safe for concurrent use.
type SelfIssued struct {
	Config config.Config
	Live   client.Reader
	Trust  certs.TrustSource // of the servers that verify it

	mu       sync.Mutex
	identity certs.Identity
	renewAt  time.Time
}

// Identity implements certs.Source.
func (s *SelfIssued) Identity() (certs.Identity, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	now := s.Config.Clock()()
	if s.identity.Leaf() != nil && now.Before(s.renewAt) && s.trusted(now) {
		return s.identity, nil
	}
	identity, err := s.issue(now)
	if err != nil {
		return certs.Identity{}, objects.Wrap("issuing the controller's own leaf", err)
	}
	s.identity, s.renewAt = identity, certs.RenewAt(now, identity.NotAfter())
	return identity, nil
}

// trusted reports whether the CA of the leaf is in the published bundle. After the CA state was lost or replaced it is
// not, and servers would reject the leaf until its renewal is due. If the bundle cannot be read, trusted returns true.
func (s *SelfIssued) trusted(now time.Time) bool {
	roots, err := s.Trust.Roots()
	if err != nil {
		return true
	}
	_, err = s.identity.Leaf().Verify(x509.VerifyOptions{
		Roots: roots, CurrentTime: now, KeyUsages: []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth},
	})
	return err == nil
}

func (s *SelfIssued) issue(now time.Time) (certs.Identity, error) {
	ctx, cancel := context.WithTimeout(context.Background(), selfTimeout)
	defer cancel()
	subject := model.ControllerSubject()
	ca, err := Load(ctx, s.Config, s.Live, subject.Role, now)
	if err != nil {
		return certs.Identity{}, err
	}
	key, err := certs.NewKey()
	if err != nil {
		return certs.Identity{}, err
	}
	chain, err := ca.Issue(key.Public(), certs.Leaf{
		CommonName: subject.Node, DNSNames: s.Config.Domain.DNSNames(subject), Client: true,
		NotBefore: now.Add(-certs.ClockSkew), NotAfter: now.Add(s.Config.LeafLifetime),
	})
	if err != nil {
		return certs.Identity{}, err
	}
	return certs.NewIdentity(chain, key)
}

// Roots implements certs.TrustSource.
func (t PublishedTrust) Roots() (*x509.CertPool, error) {
	ctx, cancel := context.WithTimeout(context.Background(), selfTimeout)
	defer cancel()
	bundle, err := ReadBundle(ctx, t.From, t.Namespace)
	if err != nil {
		return nil, err
	}
	return certs.Bundle(bundle).Roots()
}

// ReadBundle returns the CAs to accept, as PEM. It is empty while the installation is not complete.
func ReadBundle(ctx context.Context, from client.Reader, namespace string) ([]byte, error) {
	key := client.ObjectKey{Namespace: namespace, Name: v1alpha1.InstallationConfigMapName}
	config, err := objects.Get(ctx, from, key, &corev1.ConfigMap{})
	if err != nil || config == nil {
		return nil, objects.Wrap("reading ConfigMap of the installation", err)
	}
	return []byte(config.Data[v1alpha1.TrustBundleKey]), nil
}

// PublishedTrust is the current trust bundle of the installation.
type PublishedTrust struct {
	From      client.Reader
	Namespace string
}
