package podtoken

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/rsa"
	"encoding/json"
	"fmt"
	"strings"
	"testing"

	jose "github.com/go-jose/go-jose/v4"
)

func keySet(t *testing.T, keys ...jose.JSONWebKey) []byte {
	t.Helper()
	set, err := json.Marshal(jose.JSONWebKeySet{Keys: keys})
	if err != nil {
		t.Fatal(err)
	}
	return set
}

// TestParseKeys skips what verifies no tokens, and keeps the rest in order.
func TestParseKeys(t *testing.T) {
	rsaKey, ecKey := keys()
	small, err := rsa.GenerateKey(rand.Reader, 1024)
	if err != nil {
		t.Fatal(err)
	}
	old, err := ecdsa.GenerateKey(elliptic.P224(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	set := keySet(
		t, jose.JSONWebKey{Key: &rsaKey.PublicKey, KeyID: "b", Use: "sig", Algorithm: "RS256"},
		jose.JSONWebKey{Key: &ecKey.PublicKey, KeyID: "a"},
		jose.JSONWebKey{Key: &ecKey.PublicKey, KeyID: "encrypts", Use: "enc"},
		jose.JSONWebKey{Key: &ecKey.PublicKey, KeyID: "wrong", Algorithm: "RS256"},
		jose.JSONWebKey{Key: &ecKey.PublicKey}, jose.JSONWebKey{Key: []byte("secret"), KeyID: "symmetric"},
		jose.JSONWebKey{Key: ecKey, KeyID: "private"}, jose.JSONWebKey{Key: &small.PublicKey, KeyID: "small"},
		jose.JSONWebKey{Key: &ecKey.PublicKey, KeyID: strings.Repeat("k", maxKeyID+1)},
	)
	got, err := ParseKeys(set)
	if err != nil || len(got) != 2 || got[0].ID != "b" || got[1].ID != "a" {
		t.Errorf("got %+v, %v", got, err)
	}
	if _, ok := algorithmOf(&old.PublicKey); ok {
		t.Error("P-224 is accepted")
	}
}

func TestKeySetsBeyondTheLimits(t *testing.T) {
	_, ecKey := keys()
	many := func(n int) []byte {
		var all []jose.JSONWebKey
		for i := range n {
			all = append(all, jose.JSONWebKey{Key: &ecKey.PublicKey, KeyID: fmt.Sprint(i)})
		}
		return keySet(t, all...)
	}
	if got, err := ParseKeys(many(MaxKeys)); err != nil || len(got) != MaxKeys {
		t.Errorf("%d keys, %v", len(got), err)
	}
	twice := keySet(
		t, jose.JSONWebKey{Key: &ecKey.PublicKey, KeyID: "a"}, jose.JSONWebKey{Key: &ecKey.PublicKey, KeyID: "a"},
	)
	for name, set := range map[string][]byte{
		"too many usable keys": many(MaxKeys + 1), "too many keys": many(maxListed + 1), "1,000 keys": many(1000),
		"one key id twice": twice, "too long": append(many(1), make([]byte, MaxKeySet)...), "no keys": []byte(`{"keys":[]}`),
		"not JSON": []byte("<html>"), "another type": []byte(`{"keys":{}}`), "nothing": nil,
	} {
		if got, err := ParseKeys(set); err == nil {
			t.Errorf("%s: got %d keys", name, len(got))
		}
	}
}
