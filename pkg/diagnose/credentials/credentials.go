// Package credentials reads the certificates of a kubeconfig. Input: a kubeconfig, and PEM. Output: its user, and the
// certificates in it. It does not judge them.
package credentials

import (
	"bytes"
	"crypto/x509"
	"encoding/pem"
	"slices"

	clientcmdapi "k8s.io/client-go/tools/clientcmd/api"
)

// Certificates returns the certificates in a PEM file and skips everything else.
func Certificates(data []byte) (all []*x509.Certificate) {
	for block, rest := pem.Decode(data); block != nil; block, rest = pem.Decode(rest) {
		if c, err := x509.ParseCertificate(block.Bytes); err == nil {
			all = append(all, c)
		}
	}
	return all
}

// Trusts reports whether one of the certificates in a PEM file is also in another one. It is true if the first file has
// none, because nothing is known then.
func Trusts(cas, bundle []byte) bool {
	want, have := Certificates(cas), Certificates(bundle)
	return len(want) == 0 || slices.ContainsFunc(want, func(w *x509.Certificate) bool {
		return slices.ContainsFunc(have, func(h *x509.Certificate) bool { return bytes.Equal(w.Raw, h.Raw) })
	})
}

// User returns the user of a kubeconfig's current context; nil: there is none.
func User(config *clientcmdapi.Config) *clientcmdapi.AuthInfo {
	if current := config.Contexts[config.CurrentContext]; current != nil {
		return config.AuthInfos[current.AuthInfo]
	}
	return nil
}

// Leaf returns the first certificate in a PEM file; nil: there is none.
func Leaf(data []byte) *x509.Certificate {
	if all := Certificates(data); len(all) > 0 {
		return all[0]
	}
	return nil
}
