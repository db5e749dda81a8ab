package certs

import (
	"crypto/x509"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"sync"

	"github.com/fairlead/fairlead/internal/disk"
)

// Files in the directory of a Store.
const (
	KeyFile   = "key.pem"
	LeafFile  = "leaf.pem"
	TrustFile = "trust.pem"
	// nextLeafFile is the leaf of the key that is written next.
	nextLeafFile = "leaf.pem.next"
	probeFile    = "probe"
)

// probeSize exceeds the total size of a key, a leaf and a first trust bundle of two CAs: about 3 KiB, in three files.
const probeSize = 16 << 10

// Store persists one identity and its trust bundle in its own directory. It implements Source and TrustSource. It is
// safe for concurrent use by one process.
type Store struct {
	dir string

	mu       sync.RWMutex
	identity Identity // zero: none
	bundle   Bundle
}

// OpenStore creates the directory if it does not exist (mode 0700) and loads its content. If the files do not match
// each other, the store has no identity. It returns an error only if the directory cannot be created or read.
func OpenStore(dir string) (*Store, error) {
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return nil, fmt.Errorf("creating folder of identity: %w", err)
	}
	if err := restrictAccess(dir); err != nil {
		return nil, fmt.Errorf("restricting access to folder of identity: %w", err)
	}
	s := &Store{dir: dir}
	return s, s.load()
}

// restrictAccess sets mode 0700 only if the directory has another mode, because the disk may be read-only.
func restrictAccess(dir string) error {
	info, err := os.Stat(dir)
	if err != nil || info.Mode().Perm() == 0o700 {
		return err
	}
	return os.Chmod(dir, 0o700)
}

// load reads the identity and the trust bundle. Write replaces key and leaf one after the other, so after a crash
// between the two the leaf of the key is still in nextLeafFile.
func (s *Store) load() error {
	key, err := s.read(KeyFile)
	if err != nil {
		return err
	}
	trust, err := s.read(TrustFile)
	if err != nil {
		return err
	}
	for _, name := range []string{LeafFile, nextLeafFile} {
		chain, err := s.read(name)
		if err != nil {
			return err
		}
		identity, err := ParseIdentity(chain, key)
		if err != nil {
			continue
		}
		if _, err := Bundle(trust).Roots(); err == nil {
			s.identity, s.bundle = identity, trust
			if name == nextLeafFile {
				_ = s.nameNext() // the next Write does it, if the disk is read-only now
			}
			return nil
		}
	}
	return nil
}

// finish ends a Write that was interrupted between key and leaf: it gives the leaf of the key its name. Without it the
// next Write would replace that leaf before the key, and another interruption would leave a key without a leaf.
func (s *Store) finish() error {
	key, keyErr := s.read(KeyFile)
	leaf, leafErr := s.read(LeafFile)
	next, nextErr := s.read(nextLeafFile)
	if err := errors.Join(keyErr, leafErr, nextErr); err != nil {
		return err
	}
	if _, err := ParseIdentity(leaf, key); err == nil {
		return nil
	}
	if _, err := ParseIdentity(next, key); err != nil {
		return nil //nolint:nilerr // there is nothing to finish
	}
	return s.nameNext()
}

// nameNext replaces the leaf by the next one.
func (s *Store) nameNext() error {
	err := os.Rename(filepath.Join(s.dir, nextLeafFile), filepath.Join(s.dir, LeafFile))
	if err == nil {
		err = disk.SyncFolder(s.dir)
	}
	return err
}

// read returns the content of a file, or nil if it does not exist.
func (s *Store) read(name string) ([]byte, error) {
	data, err := os.ReadFile(filepath.Join(s.dir, name))
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return nil, fmt.Errorf("loading identity: %w", err)
	}
	return data, nil
}

// Identity implements Source. It returns ErrNoIdentity while the store has none.
func (s *Store) Identity() (Identity, error) {
	s.mu.RLock()
	defer s.mu.RUnlock()
	if s.identity.Leaf() == nil {
		return Identity{}, ErrNoIdentity
	}
	return s.identity, nil
}

// Bundle returns the trust bundle in PEM, or nil while the store has none.
func (s *Store) Bundle() Bundle {
	s.mu.RLock()
	defer s.mu.RUnlock()
	return s.bundle
}

// Roots implements TrustSource. It returns an error while the store has no trust bundle.
func (s *Store) Roots() (*x509.CertPool, error) { return s.Bundle().Roots() }

// Clear removes the identity and the trust bundle from memory. The files stay until the next Write.
func (s *Store) Clear() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.identity, s.bundle = Identity{}, nil
}

// Save calls Use and Write.
func (s *Store) Save(identity Identity, bundlePEM []byte) error {
	if err := s.Use(identity, bundlePEM); err != nil {
		return err
	}
	return s.Write()
}

// Use replaces the identity and the trust bundle in memory only. After an error the store keeps the old ones.
func (s *Store) Use(identity Identity, bundlePEM []byte) error {
	if identity.Leaf() == nil {
		return fmt.Errorf("using identity: %w", ErrNoIdentity)
	}
	if _, err := Bundle(bundlePEM).Roots(); err != nil {
		return fmt.Errorf("using identity: %w", err)
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.identity, s.bundle = identity, bundlePEM
	return nil
}

// Write writes the identity and the trust bundle to disk. If the process ends meanwhile, the next one loads the old or
// the new identity. After an error it can be called again.
func (s *Store) Write() error {
	s.mu.RLock()
	defer s.mu.RUnlock()
	if s.identity.Leaf() == nil {
		return fmt.Errorf("saving identity: %w", ErrNoIdentity)
	}
	key, err := s.identity.KeyPEM()
	if err != nil {
		return fmt.Errorf("saving identity: %w", err)
	}
	err = errors.Join(s.finish(), s.write(TrustFile, s.bundle))
	if err == nil {
		err = s.write(nextLeafFile, s.identity.ChainPEM())
	}
	if err == nil {
		err = s.write(KeyFile, key)
	}
	if err == nil {
		err = s.nameNext()
	}
	if err != nil {
		return fmt.Errorf("saving identity: %w", err)
	}
	return nil
}

// Probe checks that there is space for an identity: it writes a file of that size, and removes it.
func (s *Store) Probe() error {
	s.mu.RLock()
	room := probeSize + len(s.bundle)
	s.mu.RUnlock()
	path := filepath.Join(s.dir, probeFile)
	err := disk.Replace(path, make([]byte, room))
	if err == nil {
		err = os.Remove(path)
	}
	if err != nil {
		return fmt.Errorf("testing that an identity can be saved: %w", err)
	}
	return nil
}

func (s *Store) write(name string, data []byte) error {
	return disk.Replace(filepath.Join(s.dir, name), data)
}
