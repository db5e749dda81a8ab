// Package enrol is the protocol that both ends of enrolment share, in addition to the messages of enrol/v1: the tokens
// with which a machine enrols and reports, and the meaning of status codes. The ends are enrol/client, which runs on a
// machine, and enrol/server, which runs in an xds-server; enrol/csr gets certificates signed. The package knows
// neither the network nor Kubernetes.
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

// tokenPrefix lets people and secret scanners recognise a token.
const tokenPrefix = "fl1."

// reportPrefix begins tokens for boot reports. It differs from that of bootstrap tokens, so that a token of one kind
// is never looked up among tokens of the other.
const reportPrefix = "flr1."

// maxToken is the maximum size of an accepted token in bytes. Ours have 56.
const maxToken = 128

// ErrUnknownToken is the error for a token that does not exist, has expired or is used up.
var ErrUnknownToken = errors.New("the token is unknown, has expired or is used up: use the newest one")

// ErrDeniedToken is wrapped by the errors about a ServiceAccount token that does not enrol. The whole text is for the
// caller.
var ErrDeniedToken = errors.New("the ServiceAccount token is rejected")

// Grant is what a token authorises: a leaf for one tunnel, or boot reports about machines of its Cluster.
type Grant struct {
	Tunnel model.Key
	ID     string // Tunnel.spec.id
	Egress bool   // the Tunnel has spec.egressOf, so the leaf has model.RoleEgress
}

// Role returns the role of the leaf.
func (g Grant) Role() model.Role {
	if g.Egress {
		return model.RoleEgress
	}
	return model.RoleEdge
}

// PodGrant is what a ServiceAccount token of a workload cluster authorises: a leaf for one tunnel and one node name.
type PodGrant struct {
	Grant
	Node string // node name of the edge, which follows from the Pod
}

// RandomToken returns a new bootstrap token: 256 random bits in base32.
func RandomToken() (string, error) { return randomToken(tokenPrefix) }

// RandomReportToken returns a new token for boot reports, with the same randomness as RandomToken.
func RandomReportToken() (string, error) { return randomToken(reportPrefix) }

// IsToken reports whether a text has the form of a bootstrap token, so that looking it up is worthwhile.
func IsToken(token string) bool {
	return len(token) <= maxToken && strings.HasPrefix(token, tokenPrefix)
}

// IsReportToken reports whether a text has the form of a token for boot reports.
func IsReportToken(token string) bool {
	return len(token) <= maxToken && strings.HasPrefix(token, reportPrefix)
}

func randomToken(prefix string) (string, error) {
	b := make([]byte, 32)
	if _, err := rand.Read(b); err != nil {
		return "", fmt.Errorf("creating token: %w", err)
	}
	return prefix + strings.ToLower(base32.StdEncoding.WithPadding(base32.NoPadding).EncodeToString(b)), nil
}

// HashToken returns the stored form of a token: its SHA-256 in hexadecimal. A token is random, so no slow hash is
// needed, and the hash cannot be used to enrol.
func HashToken(token string) string {
	sum := sha256.Sum256([]byte(token))
	return hex.EncodeToString(sum[:])
}
