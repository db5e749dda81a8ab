// Package podtoken verifies the ServiceAccount token with which a Pod of a workload cluster enrols as an edge. The
// input is a token, and the issuer of the workload cluster with its public keys; the output is the Pod, or the reason
// why the token is rejected. It also reads the keys from a JWK set. It knows neither the network nor the objects of
// Kubernetes, and does not decide whose tokens a tunnel accepts.
package podtoken

import (
	"errors"
	"fmt"
	"strings"
	"time"

	jose "github.com/go-jose/go-jose/v4"
	"github.com/go-jose/go-jose/v4/jwt"
	"github.com/google/uuid"

	"github.com/fairlead/fairlead/pkg/model"
)

const (
	// MaxToken is the maximum size of a token in bytes. Kubernetes issues tokens of about 1 KiB.
	MaxToken = 8 << 10
	// maxLifetime bounds the validity of a token, because a token cannot be revoked before it expires. The kubelet
	// requests 10 minutes for the Pods of our manifests; an hour is its default.
	maxLifetime = time.Hour + 10*time.Second
	// skew is by how much the clocks of the workload cluster and of the management cluster may differ. It is as much as
	// for certificates.
	skew = 10 * time.Minute
	// audiencePrefix begins the audience of every token for a tunnel.
	audiencePrefix = "fairlead.dev/"
	// maxPodName is the maximum length of the name of a Pod.
	maxPodName = 253
)

// ErrInvalid is wrapped by every error about a token. The text contains nothing of the token.
var ErrInvalid = errors.New("the ServiceAccount token is not valid for this tunnel")

// Audience returns the audience of tokens for the tunnel with this id. A token for another audience, such as the
// apiserver or another tunnel, is rejected.
func Audience(id string) string { return audiencePrefix + id }

// Issuer is the issuer of the tokens for a tunnel, and which of them the tunnel accepts.
type Issuer struct {
	URL            string // claim iss
	Keys           []Key
	TunnelID       string
	Namespace      string // of the ServiceAccount
	ServiceAccount string
}

// Pod is the Pod that a token is bound to.
type Pod struct {
	Name, UID string
	IssuedAt  time.Time // of the token, in whole seconds
}

// claims are the claims that Kubernetes adds to those of RFC 7519.
type claims struct {
	jwt.Claims
	Kubernetes struct {
		Namespace      string `json:"namespace"`
		ServiceAccount named  `json:"serviceaccount"`
		Pod            *named `json:"pod"`
	} `json:"kubernetes.io"`
}

type named struct {
	Name string `json:"name"`
	UID  string `json:"uid"`
}

// algorithms are the accepted signature algorithms, all of them asymmetric: those with which Kubernetes signs.
var algorithms = []jose.SignatureAlgorithm{jose.RS256, jose.ES256, jose.ES384, jose.ES512}

// TunnelID returns the id of the tunnel that a token is for. It verifies nothing: the id is a claim, and serves to find
// the issuer that verifies the token. The error wraps ErrInvalid.
func TunnelID(token string) (string, error) {
	parsed, err := parse(token)
	if err != nil {
		return "", err
	}
	var c claims
	if err := parsed.UnsafeClaimsWithoutVerification(&c); err != nil {
		return "", invalid("its claims cannot be parsed")
	}
	id, ours := strings.CutPrefix(strings.Join(c.Audience, " "), audiencePrefix)
	if !ours || model.ValidateID(id) != nil {
		return "", invalid("its audience is not that of one tunnel")
	}
	return id, nil
}

// Verify returns the Pod of a token that this issuer signed for this tunnel, and that is valid now. The error wraps
// ErrInvalid.
func (i Issuer) Verify(token string, now time.Time) (Pod, error) {
	parsed, err := parse(token)
	if err != nil {
		return Pod{}, err
	}
	key, err := i.key(parsed.Headers)
	if err != nil {
		return Pod{}, err
	}
	var c claims
	if err := parsed.Claims(key, &c); err != nil {
		return Pod{}, invalid("its signature does not verify, or its claims cannot be parsed")
	}
	if err := i.checkClaims(c); err != nil {
		return Pod{}, err
	}
	if err := checkTimes(c.Claims, now); err != nil {
		return Pod{}, err
	}
	pod := c.Kubernetes.Pod
	id, err := uuid.Parse(pod.UID)
	if err != nil || id.String() != pod.UID || pod.Name == "" || len(pod.Name) > maxPodName ||
		strings.ContainsFunc(pod.Name, func(r rune) bool { return r <= ' ' || r > '~' }) {
		return Pod{}, invalid("its Pod has no valid name and UID")
	}
	return Pod{Name: pod.Name, UID: pod.UID, IssuedAt: c.IssuedAt.Time()}, nil
}

// parse parses the compact form, and accepts no other algorithms.
func parse(token string) (*jwt.JSONWebToken, error) {
	if len(token) > MaxToken {
		return nil, invalid("it is longer than %d bytes", MaxToken)
	}
	parsed, err := jwt.ParseSigned(token, algorithms)
	if err != nil || len(parsed.Headers) != 1 {
		return nil, invalid("it is not a JWT with an accepted signature algorithm")
	}
	return parsed, nil
}

// key returns the key that the header names. Each key verifies one algorithm only.
func (i Issuer) key(headers []jose.Header) (any, error) {
	for _, k := range i.Keys {
		if k.ID == "" || k.ID != headers[0].KeyID {
			continue
		}
		key, algorithm, err := k.parse()
		if err != nil {
			return nil, err
		}
		if headers[0].Algorithm != string(algorithm) {
			return nil, invalid("its signature algorithm is not that of its key")
		}
		return key, nil
	}
	return nil, invalid("no key on record has its key id")
}

// checkClaims checks everything but the times.
func (i Issuer) checkClaims(c claims) error {
	account := c.Kubernetes.ServiceAccount
	switch {
	case i.URL == "" || c.Issuer != i.URL:
		return invalid("it has another issuer")
	// A token with a second audience is also in the hands of that audience.
	case len(c.Audience) != 1 || c.Audience[0] != Audience(i.TunnelID):
		return invalid("its audience is not %s alone", Audience(i.TunnelID))
	case i.Namespace == "" || i.ServiceAccount == "" ||
		c.Subject != "system:serviceaccount:"+i.Namespace+":"+i.ServiceAccount,
		c.Kubernetes.Namespace != i.Namespace, account.Name != i.ServiceAccount:
		return invalid("it is not a token of the ServiceAccount %s/%s", i.Namespace, i.ServiceAccount)
	case c.Kubernetes.Pod == nil:
		return invalid("it is not bound to a Pod")
	}
	return nil
}

// checkTimes requires all three times, because a token without end could be used forever.
func checkTimes(c jwt.Claims, now time.Time) error {
	if c.IssuedAt == nil || c.NotBefore == nil || c.Expiry == nil {
		return invalid("it has no time of issue, beginning or end")
	}
	issued, end := c.IssuedAt.Time(), c.Expiry.Time()
	switch {
	case c.ValidateWithLeeway(jwt.Expected{Time: now}, skew) != nil:
		return invalid("it has expired, or is not valid yet")
	case end.Sub(issued) > maxLifetime || !end.After(issued):
		return invalid("it is valid for longer than an hour: set expirationSeconds of its volume to 600")
	}
	return nil
}

func invalid(format string, args ...any) error {
	return fmt.Errorf("%w: %s", ErrInvalid, fmt.Sprintf(format, args...))
}
