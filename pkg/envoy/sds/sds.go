// Package sds names and makes the secrets that an agent serves to its own Envoy (Secret Discovery Service). Its input
// is a subject with its leaf, key and trust bundle, its output Envoy's secrets and their names. It does not know which
// TLS contexts use them.
package sds

import (
	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	tlsv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/transport_sockets/tls/v3"

	"github.com/fairlead/fairlead/pkg/model"
)

// Names returns the names of the SDS secrets of a subject: its leaf and key, and the trust bundle. The Envoy of
// an edge may have several, one for each of its enrolments, so the names of a subject that enrols contain its node
// name.
func Names(s model.Subject) (identity, trust string) {
	if !s.Role.Enrols() {
		return "identity", "trust"
	}
	return "identity_" + s.Node, "trust_" + s.Node
}

// Identity returns the SDS secret that a TLS context presents: a leaf with its intermediate certificates, and
// its key, both in PEM. The result contains the private key: it is only for the agent's own Envoy, and never for a
// log.
func Identity(name string, chain, key []byte) *tlsv3.Secret {
	return &tlsv3.Secret{Name: name, Type: &tlsv3.Secret_TlsCertificate{TlsCertificate: &tlsv3.TlsCertificate{
		CertificateChain: inline(chain),
		PrivateKey:       inline(key),
	}}}
}

// Trust returns the SDS secret with which a TLS context verifies its peer: the certificates of CAs, in PEM.
func Trust(name string, bundle []byte) *tlsv3.Secret {
	return &tlsv3.Secret{Name: name, Type: &tlsv3.Secret_ValidationContext{
		ValidationContext: &tlsv3.CertificateValidationContext{TrustedCa: inline(bundle)},
	}}
}

func inline(data []byte) *corev3.DataSource {
	return &corev3.DataSource{Specifier: &corev3.DataSource_InlineBytes{InlineBytes: data}}
}
