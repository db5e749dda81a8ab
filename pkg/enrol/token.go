// Package enrol is what both ends of enrolment agree on: the tokens that a machine enrols and reports with, and what the two
// say to each other beside the messages of enrol/v1. The ends are enrol/client, which a machine runs, and enrol/server, which
// an xds-server runs; enrol/csr has the certificates signed. It knows neither the network nor Kubernetes.
package enrol

import (
	"crypto/rand"
	"crypto/sha256"
	"encoding/base32"
	"encoding/hex"
	"errors"
	"fmt"
	"strings"

	"github.com/fairlead/fairlead/pkg/model"
)

// tokenPrefix tells people and secret scanners what a token is for.
const tokenPrefix = "fl1."

// reportPrefix begins tokens for boot reports. It is another one than that of bootstrap tokens, so that neither is ever looked up
// among the others.
const reportPrefix = "flr1."

// maxToken is the size in bytes up to which a token is looked at. Ours have 56.
const maxToken = 128

// ErrUnknownToken is the error for a token that is not there, has expired or is used up.
var ErrUnknownToken = errors.New("the token is unknown, has expired or is used up: take the newest one")

// Grant is what a token entitles to: a leaf for one tunnel, or reports about machines of its Cluster.
type Grant struct {
	Tunnel model.Key
	ID     string // Tunnel.spec.id
}

// RandomToken returns a new bootstrap token: 256 random bits in base32.
func RandomToken() (string, error) { return randomToken(tokenPrefix) }

// RandomReportToken returns a new token for boot reports, as random.
func RandomReportToken() (string, error) { return randomToken(reportPrefix) }

// IsToken says whether a text may be a bootstrap token, so that it is worth looking up.
func IsToken(token string) bool {
	return len(token) <= maxToken && strings.HasPrefix(token, tokenPrefix)
}

// IsReportToken says whether a text may be a token for boot reports.
func IsReportToken(token string) bool {
	return len(token) <= maxToken && strings.HasPrefix(token, reportPrefix)
}

func randomToken(prefix string) (string, error) {
	b := make([]byte, 32)
	if _, err := rand.Read(b); err != nil {
		return "", fmt.Errorf("making token: %w", err)
	}
	return prefix + strings.ToLower(base32.StdEncoding.WithPadding(base32.NoPadding).EncodeToString(b)), nil
}

// HashToken is what is kept of a token: its SHA-256 in hexadecimal. A token is random, so no slow hash is needed; and
// whoever knows the hash can't enrol with it.
func HashToken(token string) string {
	sum := sha256.Sum256([]byte(token))
	return hex.EncodeToString(sum[:])
}
