package agent

import (
	"crypto/x509"
	"encoding/pem"
	"errors"
	"os"
	"path/filepath"
	"slices"

	"github.com/fairlead/fairlead/pkg/certs"
)

// readLeaf reads the certificate that a folder has an identity for.
func readLeaf(dir string) (*x509.Certificate, error) {
	data, err := os.ReadFile(filepath.Join(dir, certs.LeafFile))
	if err != nil {
		return nil, err
	}
	block, _ := pem.Decode(data)
	if block == nil {
		return nil, errors.New("reading leaf: it is no PEM")
	}
	return x509.ParseCertificate(block.Bytes)
}

// trusts says whether an identity is of the installation that has a CA: a tunnel that moves has one id in two.
func trusts(dir string, ca []byte) bool {
	return slices.ContainsFunc([]string{certs.TrustFile, enrolledCAFile}, func(name string) bool {
		bundle, err := os.ReadFile(filepath.Join(dir, name))
		return err == nil && certs.Bundle(bundle).Overlaps(ca)
	})
}
