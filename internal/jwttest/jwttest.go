// Package jwttest signs JSON Web Tokens for tests. Its input is a key and claims; its output is a token as a Kubernetes
// apiserver issues it. It does not know what the claims mean.
package jwttest

import (
	"encoding/json"
	"testing"

	jose "github.com/go-jose/go-jose/v4"
)

// Sign returns a token with these claims, whose header names the key kid.
func Sign(t testing.TB, algorithm jose.SignatureAlgorithm, key any, kid string, claims map[string]any) string {
	t.Helper()
	options := (&jose.SignerOptions{}).WithType("JWT")
	signer, err := jose.NewSigner(jose.SigningKey{
		Algorithm: algorithm, Key: jose.JSONWebKey{Key: key, KeyID: kid},
	}, options)
	if err != nil {
		t.Fatal(err)
	}
	body, err := json.Marshal(claims)
	if err != nil {
		t.Fatal(err)
	}
	signed, err := signer.Sign(body)
	if err != nil {
		t.Fatal(err)
	}
	token, err := signed.CompactSerialize()
	if err != nil {
		t.Fatal(err)
	}
	return token
}
