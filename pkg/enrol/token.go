package enrol

import (
	"crypto/rand"
	"crypto/sha256"
	"encoding/base32"
	"encoding/hex"
	"fmt"
	"strings"
)

// tokenPrefix tells people and secret scanners what a token is for.
const tokenPrefix = "fl1."

// maxToken is the size in bytes up to which a token is looked at. Ours have 56.
const maxToken = 128

// RandomToken returns a new bootstrap token: 256 random bits in base32.
func RandomToken() (string, error) { return randomToken(tokenPrefix) }

// RandomReportToken returns a new token for boot reports, as random.
func RandomReportToken() (string, error) { return randomToken(reportPrefix) }

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
