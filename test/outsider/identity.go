package outsider

import (
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"io/fs"
	"path/filepath"
	"time"

	"github.com/fairlead/fairlead/pkg/certs"
	"github.com/fairlead/fairlead/pkg/model"
)

// Stolen is the content of an agent's folder.
type Stolen struct {
	Folder      string
	Identity    certs.Identity
	Certificate tls.Certificate
	Roots       *x509.CertPool
	Bundle      certs.Bundle
	Leaf        *x509.Certificate
	Subject     model.Subject
}

// Steal reads the only identity that an agent stores, like an attacker with access to its machine.
func Steal(domain model.TunnelDomain, stateDir string) (Stolen, error) {
	all, err := StealAll(domain, stateDir)
	if err == nil && len(all) != 1 {
		err = fmt.Errorf("stealing the identity in %s: there are %d", stateDir, len(all))
	}
	if err != nil {
		return Stolen{}, err
	}
	return all[0], nil
}

// StealAll reads all identities in a folder and its subfolders.
func StealAll(domain model.TunnelDomain, stateDir string) ([]Stolen, error) {
	var all []Stolen
	err := filepath.WalkDir(stateDir, func(path string, entry fs.DirEntry, err error) error {
		if err != nil || entry.Name() != certs.LeafFile {
			return ignoreGone(err)
		}
		stolen, err := steal(domain, filepath.Dir(path))
		all = append(all, stolen)
		return err
	})
	return all, err
}

// ignoreGone ignores files that have just disappeared: agents write files under temporary names.
func ignoreGone(err error) error {
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	return err
}

func steal(domain model.TunnelDomain, folder string) (Stolen, error) {
	store, err := certs.OpenStore(folder)
	if err != nil {
		return Stolen{}, err
	}
	identity, err := store.Identity()
	if err != nil {
		return Stolen{}, fmt.Errorf("stealing the identity in %s: %w", folder, err)
	}
	roots, err := store.Roots()
	if err != nil {
		return Stolen{}, fmt.Errorf("stealing the trust bundle in %s: %w", folder, err)
	}
	subject, err := domain.ParseSubject(identity.Leaf().Subject.CommonName, identity.Leaf().DNSNames)
	return Stolen{
		Folder: folder, Identity: identity, Certificate: identity.TLSCertificate(), Roots: roots, Bundle: store.Bundle(),
		Leaf: identity.Leaf(), Subject: subject,
	}, err
}

// Forge returns an identity with a subject's names, signed by a CA.
func Forge(
	ca *certs.CA, domain model.TunnelDomain, subject model.Subject, notBefore, notAfter time.Time,
) (certs.Identity, error) {
	key, err := certs.NewKey()
	if err != nil {
		return certs.Identity{}, err
	}
	chain, err := ca.Issue(key.Public(), certs.Leaf{
		CommonName: subject.Node, DNSNames: domain.DNSNames(subject), Client: true, Server: true, NotBefore: notBefore,
		NotAfter: notAfter,
	})
	if err != nil {
		return certs.Identity{}, err
	}
	return certs.NewIdentity(chain, key)
}
