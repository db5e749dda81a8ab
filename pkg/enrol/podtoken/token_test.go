package podtoken

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/hmac"
	"crypto/rand"
	"crypto/rsa"
	"crypto/sha256"
	"crypto/x509"
	"encoding/base64"
	"encoding/json"
	"encoding/pem"
	"errors"
	"maps"
	"strings"
	"sync"
	"testing"
	"time"

	jose "github.com/go-jose/go-jose/v4"

	"github.com/fairlead/fairlead/internal/jwttest"
)

const (
	testID     = "abcdefghij0123456789"
	testUID    = "6b8f4f0a-1f1e-4d0c-9d3a-0c1d2e3f4a5b"
	testIssuer = "https://kubernetes.default.svc.cluster.local"
)

var now = time.Unix(1_800_000_000, 0)

// keys are made once, because RSA keys take long.
var keys = sync.OnceValues(func() (*rsa.PrivateKey, *ecdsa.PrivateKey) {
	rsaKey, err := rsa.GenerateKey(rand.Reader, 2048)
	if err != nil {
		panic(err)
	}
	ecKey, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		panic(err)
	}
	return rsaKey, ecKey
})

// payload returns the claims of a token that a kube-apiserver issues for a Pod of the tunnel.
func payload() map[string]any {
	return map[string]any{
		"iss": testIssuer, "sub": "system:serviceaccount:fairlead-edge:edge", "aud": []string{"fairlead.dev/" + testID},
		"iat": now.Unix(), "nbf": now.Unix(), "exp": now.Unix() + 600, "jti": "1",
		"kubernetes.io": map[string]any{
			"namespace": "fairlead-edge", "serviceaccount": map[string]any{"name": "edge", "uid": "u"},
			"pod": map[string]any{"name": "edge-0", "uid": testUID},
		},
	}
}

// assemble returns a token with a header and a signature of the attacker's choice.
func assemble(header string, claims map[string]any, signature func(input string) []byte) string {
	body, _ := json.Marshal(claims)
	input := base64.RawURLEncoding.EncodeToString([]byte(header)) + "." + base64.RawURLEncoding.EncodeToString(body)
	return input + "." + base64.RawURLEncoding.EncodeToString(signature(input))
}

func issuer(t testing.TB) Issuer {
	t.Helper()
	rsaKey, ecKey := keys()
	i := Issuer{URL: testIssuer, TunnelID: testID, Namespace: "fairlead-edge", ServiceAccount: "edge"}
	for kid, key := range map[string]any{"rsa": &rsaKey.PublicKey, "ec": &ecKey.PublicKey} {
		der, err := x509.MarshalPKIXPublicKey(key)
		if err != nil {
			t.Fatal(err)
		}
		i.Keys = append(i.Keys, Key{ID: kid, PublicKey: der})
	}
	return i
}

func TestVerify(t *testing.T) {
	rsaKey, ecKey := keys()
	for name, token := range map[string]string{
		"RS256": jwttest.Sign(t, jose.RS256, rsaKey, "rsa", payload()),
		"ES256": jwttest.Sign(t, jose.ES256, ecKey, "ec", payload()),
	} {
		if id, err := TunnelID(token); err != nil || id != testID {
			t.Errorf("%s: the tunnel is %q, %v", name, id, err)
		}
		pod, err := issuer(t).Verify(token, now.Add(time.Minute))
		if want := (Pod{Name: "edge-0", UID: testUID, IssuedAt: now}); err != nil || pod != want {
			t.Errorf("%s: got %+v, %v; want %+v", name, pod, err, want)
		}
	}
}

// TestForgeries has the attacks by a caller without the key of the issuer.
func TestForgeries(t *testing.T) {
	rsaKey, ecKey := keys()
	other, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	der, err := x509.MarshalPKIXPublicKey(&rsaKey.PublicKey)
	if err != nil {
		t.Fatal(err)
	}
	publicPEM := pem.EncodeToMemory(&pem.Block{Type: "PUBLIC KEY", Bytes: der})
	mac := func(key []byte) func(string) []byte {
		return func(input string) []byte {
			h := hmac.New(sha256.New, key)
			h.Write([]byte(input))
			return h.Sum(nil)
		}
	}
	valid := jwttest.Sign(t, jose.ES256, ecKey, "ec", payload())
	parts := strings.Split(valid, ".")
	changed := payload()
	changed["kubernetes.io"].(map[string]any)["pod"].(map[string]any)["uid"] = "00000000-1f1e-4d0c-9d3a-0c1d2e3f4a5b"
	body, _ := json.Marshal(changed)
	none := func(string) []byte { return nil }
	embedded, _ := json.Marshal(jose.JSONWebKey{Key: &other.PublicKey, KeyID: "ec"})
	tests := map[string]string{
		"no algorithm":                        assemble(`{"alg":"none","kid":"ec"}`, payload(), none),
		"no algorithm, in capitals":           assemble(`{"alg":"NONE","kid":"ec"}`, payload(), none),
		"no signature":                        parts[0] + "." + parts[1] + ".",
		"HS256 by the public key, PEM":        assemble(`{"alg":"HS256","kid":"rsa"}`, payload(), mac(publicPEM)),
		"HS256 by the public key, DER":        assemble(`{"alg":"HS256","kid":"rsa"}`, payload(), mac(der)),
		"another key with the same id":        jwttest.Sign(t, jose.ES256, other, "ec", payload()),
		"another key with another id":         jwttest.Sign(t, jose.ES256, other, "mine", payload()),
		"no key id":                           jwttest.Sign(t, jose.ES256, ecKey, "", payload()),
		"an algorithm that is not the key's":  jwttest.Sign(t, jose.PS256, rsaKey, "rsa", payload()),
		"RS512 by the RSA key":                jwttest.Sign(t, jose.RS512, rsaKey, "rsa", payload()),
		"other claims with a valid signature": parts[0] + "." + base64.RawURLEncoding.EncodeToString(body) + "." + parts[2],
		"a key in the header": assemble(
			`{"alg":"ES256","kid":"ec","jwk":`+string(embedded)+`}`, payload(), func(string) []byte { return make([]byte, 64) },
		),
		"a signature of zeros": assemble(
			`{"alg":"ES256","kid":"ec"}`, payload(), func(string) []byte { return make([]byte, 64) },
		),
		"a critical extension": assemble(
			`{"alg":"ES256","kid":"ec","crit":["x"],"x":1}`, payload(), func(string) []byte { return make([]byte, 64) },
		),
		"four parts":     valid + ".x",
		"nothing":        "",
		"two dots":       "..",
		"a token for an": strings.Repeat("a", MaxToken+1),
		"oversized":      jwttest.Sign(t, jose.ES256, ecKey, "ec", with(payload(), "padding", strings.Repeat("x", MaxToken))),
	}
	for name, token := range tests {
		t.Run(name, func(t *testing.T) {
			if pod, err := issuer(t).Verify(token, now); !errors.Is(err, ErrInvalid) {
				t.Errorf("accepted for %+v, %v", pod, err)
			}
		})
	}
}

func with(claims map[string]any, key string, value any) map[string]any {
	claims = maps.Clone(claims)
	if value == nil {
		delete(claims, key)
	} else {
		claims[key] = value
	}
	return claims
}

// TestTokensForSomethingElse has the tokens that the issuer itself has signed, for another purpose, Pod or time.
func TestTokensForSomethingElse(t *testing.T) {
	kubernetes := func(change func(map[string]any)) map[string]any {
		claims := payload()
		change(claims["kubernetes.io"].(map[string]any))
		return claims
	}
	pod := func(name, uid any) map[string]any {
		return kubernetes(func(k map[string]any) { k["pod"] = map[string]any{"name": name, "uid": uid} })
	}
	at := func(offset int64) int64 { return now.Unix() + offset }
	tests := map[string]map[string]any{
		"another issuer":                 with(payload(), "iss", "https://example.org"),
		"no issuer":                      with(payload(), "iss", nil),
		"the apiserver as audience":      with(payload(), "aud", []string{"https://kubernetes.default.svc.cluster.local"}),
		"another tunnel":                 with(payload(), "aud", []string{"fairlead.dev/" + strings.Repeat("b", 20)}),
		"the audience of gateways":       with(payload(), "aud", []string{"fairlead.dev"}),
		"a second audience":              with(payload(), "aud", []string{"fairlead.dev/" + testID, "vault"}),
		"no audience":                    with(payload(), "aud", nil),
		"another ServiceAccount":         with(payload(), "sub", "system:serviceaccount:fairlead-edge:default"),
		"another namespace":              with(payload(), "sub", "system:serviceaccount:default:edge"),
		"a subject that is no account":   with(payload(), "sub", "system:admin"),
		"another namespace in claims":    kubernetes(func(k map[string]any) { k["namespace"] = "default" }),
		"another account in claims":      kubernetes(func(k map[string]any) { k["serviceaccount"] = named{Name: "x"} }),
		"no Pod":                         kubernetes(func(k map[string]any) { delete(k, "pod") }),
		"no claims of Kubernetes":        with(payload(), "kubernetes.io", nil),
		"a Pod without name":             pod("", testUID),
		"a Pod without UID":              pod("edge-0", ""),
		"a UID that is none":             pod("edge-0", "../../x"),
		"a UID in capitals":              pod("edge-0", strings.ToUpper(testUID)),
		"a UID in braces":                pod("edge-0", "{"+testUID+"}"),
		"a Pod with a line break":        pod("a\nb", testUID),
		"a Pod with a long name":         pod(strings.Repeat("a", 254), testUID),
		"expired":                        with(with(with(payload(), "iat", at(-1300)), "nbf", at(-1300)), "exp", at(-601)),
		"not valid yet":                  with(with(with(payload(), "iat", at(0)), "nbf", at(601)), "exp", at(700)),
		"issued in the future":           with(with(with(payload(), "iat", at(601)), "nbf", at(0)), "exp", at(700)),
		"valid for a day":                with(payload(), "exp", at(86400)),
		"valid for ever":                 with(payload(), "exp", 1e300),
		"no end":                         with(payload(), "exp", nil),
		"no beginning":                   with(payload(), "nbf", nil),
		"no time of issue":               with(payload(), "iat", nil),
		"an end before its issue":        with(payload(), "exp", at(-1)),
		"a legacy token of a Secret":     {"iss": "kubernetes/serviceaccount", "sub": "system:serviceaccount:x:y"},
		"claims of other types":          with(payload(), "kubernetes.io", "x"),
		"an audience of another type":    with(payload(), "aud", 7),
		"a time of issue that overflows": with(payload(), "iat", -1e300),
	}
	_, ecKey := keys()
	for name, claims := range tests {
		t.Run(name, func(t *testing.T) {
			token := jwttest.Sign(t, jose.ES256, ecKey, "ec", claims)
			if pod, err := issuer(t).Verify(token, now); !errors.Is(err, ErrInvalid) {
				t.Errorf("accepted for %+v, %v", pod, err)
			}
		})
	}
}

// TestAnIssuerWithoutValuesAcceptsNothing, so that a record that is incomplete is never a wildcard.
func TestAnIssuerWithoutValuesAcceptsNothing(t *testing.T) {
	_, ecKey := keys()
	claims := payload()
	claims["iss"], claims["sub"] = "", "system:serviceaccount::"
	claims["kubernetes.io"].(map[string]any)["namespace"] = ""
	claims["kubernetes.io"].(map[string]any)["serviceaccount"] = map[string]any{"name": ""}
	empty := Issuer{TunnelID: testID, Keys: issuer(t).Keys}
	if pod, err := empty.Verify(jwttest.Sign(t, jose.ES256, ecKey, "ec", claims), now); !errors.Is(err, ErrInvalid) {
		t.Errorf("accepted for %+v, %v", pod, err)
	}
	none := issuer(t)
	none.Keys = []Key{{}}
	if pod, err := none.Verify(jwttest.Sign(t, jose.ES256, ecKey, "", payload()), now); !errors.Is(err, ErrInvalid) {
		t.Errorf("accepted for %+v, %v", pod, err)
	}
}

// TestClocksMayDiffer by 10 minutes, like those of certificates.
func TestClocksMayDiffer(t *testing.T) {
	_, ecKey := keys()
	token := jwttest.Sign(t, jose.ES256, ecKey, "ec", payload())
	for _, at := range []time.Duration{-10 * time.Minute, 0, 20 * time.Minute} {
		if _, err := issuer(t).Verify(token, now.Add(at)); err != nil {
			t.Errorf("at %s: %v", at, err)
		}
	}
	for _, at := range []time.Duration{-10*time.Minute - time.Second, 20*time.Minute + time.Second} {
		if _, err := issuer(t).Verify(token, now.Add(at)); !errors.Is(err, ErrInvalid) {
			t.Errorf("at %s: %v", at, err)
		}
	}
}

// FuzzVerify feeds tokens and key sets to the parsers. A token that the issuer has not signed is never accepted, and no
// input causes a panic.
func FuzzVerify(f *testing.F) {
	_, ecKey := keys()
	valid := jwttest.Sign(f, jose.ES256, ecKey, "ec", payload())
	set, err := json.Marshal(jose.JSONWebKeySet{Keys: []jose.JSONWebKey{{Key: &ecKey.PublicKey, KeyID: "ec"}}})
	if err != nil {
		f.Fatal(err)
	}
	f.Add(valid, set)
	f.Add("..", []byte(`{"keys":[{"kty":"RSA","kid":"a","n":"AA","e":"AQAB"}]}`))
	f.Add("eyJhbGciOiJub25lIn0.e30.", []byte(`{"keys":[null,{},{"kty":"oct","k":"AA"}]}`))
	trusted := issuer(f)
	f.Fuzz(func(t *testing.T, token string, set []byte) {
		_, _ = TunnelID(token)
		if pod, err := trusted.Verify(token, now); err == nil && strings.TrimRight(token, "\r\n") != valid {
			// ECDSA signatures can be changed without the key; the signed part cannot.
			if token[:strings.LastIndex(token, ".")] != valid[:strings.LastIndex(valid, ".")] {
				t.Errorf("accepted for %+v", pod)
			}
		}
		found, err := ParseKeys(set)
		if err != nil {
			return
		}
		if len(found) == 0 || len(found) > MaxKeys {
			t.Errorf("%d keys", len(found))
		}
		for _, key := range found {
			if _, _, err := key.parse(); err != nil {
				t.Errorf("a key that was read cannot be used: %v", err)
			}
		}
	})
}
