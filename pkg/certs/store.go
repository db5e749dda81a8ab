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

// Files of a Store.
const (
	KeyFile   = "key.pem"
	LeafFile  = "leaf.pem"
	TrustFile = "trust.pem"
	// nextLeafFile is the leaf of the key that is about to be written.
	nextLeafFile = "leaf.pem.next"
	probeFile    = "probe"
)

// probeSize is more than a key, a leaf and a first trust bundle of two CAs have together: about 3 KiB, in three files.
const probeSize = 16 << 10

// Store keeps one identity and the trust bundle that came with it in a folder of its own, for the next start. It is a
// Source and a TrustSource, and safe for concurrent use by one process.
type Store struct {
	dir string

	mu       sync.RWMutex
	identity Identity // zero: none
	bundle   Bundle
}

// OpenStore makes the folder if it is not there (mode 0700) and loads what it holds. Files that do not fit together are
// not loaded: the store then has no identity. Only a folder that can't be read or made is an error.
func OpenStore(dir string) (*Store, error) {
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return nil, fmt.Errorf("making folder of identity: %w", err)
	}
	if err := closeToOthers(dir); err != nil {
		return nil, fmt.Errorf("closing folder of identity to others: %w", err)
	}
	s := &Store{dir: dir}
	return s, s.load()
}

// closeToOthers changes nothing where nothing has to be: the disk may be read-only.
func closeToOthers(dir string) error {
	info, err := os.Stat(dir)
	if err != nil || info.Mode().Perm() == 0o700 {
		return err
	}
	return os.Chmod(dir, 0o700)
}

// load reads key and leaf. Save replaces them one after the other, so after a crash between the two the leaf of the key
// is still in nextLeafFile.
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
			return nil
		}
	}
	return nil
}

// read returns what a file holds: nothing if there is no such file.
func (s *Store) read(name string) ([]byte, error) {
	data, err := os.ReadFile(filepath.Join(s.dir, name))
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return nil, fmt.Errorf("loading identity: %w", err)
	}
	return data, nil
}

// Identity implements Source. Its error is ErrNoIdentity before the first Save.
func (s *Store) Identity() (Identity, error) {
	s.mu.RLock()
	defer s.mu.RUnlock()
	if s.identity.Leaf() == nil {
		return Identity{}, ErrNoIdentity
	}
	return s.identity, nil
}

// Bundle is the trust bundle in PEM, nil before the first Save.
func (s *Store) Bundle() Bundle {
	s.mu.RLock()
	defer s.mu.RUnlock()
	return s.bundle
}

// Roots implements TrustSource. Before the first Save it is an error.
func (s *Store) Roots() (*x509.CertPool, error) { return s.Bundle().Roots() }

// Forget makes the store give nothing until the next Save. The files stay until then.
func (s *Store) Forget() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.identity, s.bundle = Identity{}, nil
}

// Save is Use and Write.
func (s *Store) Save(identity Identity, bundlePEM []byte) error {
	if err := s.Use(identity, bundlePEM); err != nil {
		return err
	}
	return s.Write()
}

// Use replaces identity and trust bundle, in memory alone. After an error the store still gives the old ones.
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

// Write puts on disk what the store gives. Whenever the process ends, the next one loads the old identity or the new one.
// After an error it can be called again.
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
	err = errors.Join(
		s.write(TrustFile, s.bundle),
		s.write(nextLeafFile, s.identity.ChainPEM()),
	)
	if err == nil {
		err = s.write(KeyFile, key)
	}
	if err == nil {
		err = os.Rename(filepath.Join(s.dir, nextLeafFile), filepath.Join(s.dir, LeafFile))
	}
	if err == nil {
		err = disk.SyncFolder(s.dir)
	}
	if err != nil {
		return fmt.Errorf("saving identity: %w", err)
	}
	return nil
}

// Probe says whether there is room for an identity: it writes as much, and removes it again.
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
		return fmt.Errorf("making sure that an identity can be saved: %w", err)
	}
	return nil
}

func (s *Store) write(name string, data []byte) error {
	return disk.Replace(filepath.Join(s.dir, name), data)
}
