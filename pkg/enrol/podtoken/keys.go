package podtoken

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rsa"
	"crypto/x509"
	"encoding/json"
	"errors"
	"fmt"

	jose "github.com/go-jose/go-jose/v4"
)

const (
	// MaxKeySet is the maximum size of a JWK set in bytes: MaxKeys keys of 4096 bits need less than half.
	MaxKeySet = 64 << 10
	// MaxKeys is the maximum number of usable keys in a set. An issuer has one, and two or three while it rotates.
	MaxKeys = 16
	// maxListed bounds the keys that are parsed, usable or not.
	maxListed = 64
	// maxKeyID is the maximum length of a key id in bytes.
	maxKeyID = 256
	// minRSA and maxRSA bound the size of an RSA key in bits.
	minRSA, maxRSA = 2048, 8192
)

// Key is a public key of an issuer.
type Key struct {
	ID        string // claim kid
	PublicKey []byte // PKIX, DER
}

// ParseKeys returns the keys of a JWK set that can verify tokens, in the order of the set. It skips keys of other kinds
// and uses, as RFC 7517 requires. A set without usable keys is an error, and so is one beyond the limits. No error
// contains content of the set.
func ParseKeys(set []byte) ([]Key, error) {
	if len(set) > MaxKeySet {
		return nil, fmt.Errorf("the key set is longer than %d bytes", MaxKeySet)
	}
	var listed struct {
		Keys []json.RawMessage `json:"keys"`
	}
	if json.Unmarshal(set, &listed) != nil {
		return nil, errors.New("the key set is not JSON with the field keys")
	}
	if len(listed.Keys) > maxListed {
		return nil, fmt.Errorf("the key set has %d keys, more than %d", len(listed.Keys), maxListed)
	}
	var keys []Key
	known := map[string]bool{}
	for _, raw := range listed.Keys {
		key, ok := parseKey(raw)
		if !ok {
			continue
		}
		if known[key.ID] {
			return nil, errors.New("two keys of the key set have one key id")
		}
		known[key.ID] = true
		keys = append(keys, key)
	}
	switch {
	case len(keys) == 0:
		return nil, errors.New("the key set has no usable key: RSA from 2048 bits, or ECDSA, with a key id")
	case len(keys) > MaxKeys:
		return nil, fmt.Errorf("the key set has %d usable keys, more than %d", len(keys), MaxKeys)
	}
	return keys, nil
}

// parseKey returns false for a key that verifies no tokens. A private key is none.
func parseKey(raw json.RawMessage) (Key, bool) {
	var jwk jose.JSONWebKey
	if jwk.UnmarshalJSON(raw) != nil || jwk.KeyID == "" || len(jwk.KeyID) > maxKeyID ||
		(jwk.Use != "" && jwk.Use != "sig") {
		return Key{}, false
	}
	algorithm, ok := algorithmOf(jwk.Key)
	if !ok || (jwk.Algorithm != "" && jwk.Algorithm != string(algorithm)) {
		return Key{}, false
	}
	der, err := x509.MarshalPKIXPublicKey(jwk.Key)
	return Key{ID: jwk.KeyID, PublicKey: der}, err == nil
}

// parse returns the key and the one algorithm that it verifies.
func (k Key) parse() (any, jose.SignatureAlgorithm, error) {
	key, err := x509.ParsePKIXPublicKey(k.PublicKey)
	if err != nil {
		return nil, "", invalid("the key on record cannot be parsed")
	}
	algorithm, ok := algorithmOf(key)
	if !ok {
		return nil, "", invalid("the key on record is of no accepted kind")
	}
	return key, algorithm, nil
}

// algorithmOf returns the algorithm with which Kubernetes signs by a key of this kind.
func algorithmOf(key any) (jose.SignatureAlgorithm, bool) {
	switch key := key.(type) {
	case *rsa.PublicKey:
		return jose.RS256, key.N.BitLen() >= minRSA && key.N.BitLen() <= maxRSA
	case *ecdsa.PublicKey:
		algorithm, ok := map[elliptic.Curve]jose.SignatureAlgorithm{
			elliptic.P256(): jose.ES256, elliptic.P384(): jose.ES384, elliptic.P521(): jose.ES512,
		}[key.Curve]
		return algorithm, ok
	}
	return "", false
}
