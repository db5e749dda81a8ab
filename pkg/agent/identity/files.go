package identity

import (
	"crypto/x509"
	"encoding/pem"
	"errors"
	"os"
	"path/filepath"
	"slices"

	"github.com/fairlead/fairlead/pkg/certs"
)

// ReadLeaf reads the certificate of the identity in a folder.
func ReadLeaf(dir string) (*x509.Certificate, error) {
	data, err := os.ReadFile(filepath.Join(dir, certs.LeafFile))
	if err != nil {
		return nil, err
	}
	block, _ := pem.Decode(data)
	if block == nil {
		return nil, errors.New("reading leaf: it is not PEM")
	}
	return x509.ParseCertificate(block.Bytes)
}

// Trusts reports whether the identity in a folder belongs to the installation with the CA. A tunnel that moves between
// installations keeps its id, so the id is not sufficient.
func Trusts(dir string, ca []byte) bool {
	return slices.ContainsFunc([]string{certs.TrustFile, enrolledCAFile}, func(name string) bool {
		bundle, err := os.ReadFile(filepath.Join(dir, name))
		return err == nil && certs.Bundle(bundle).Overlaps(ca)
	})
}
