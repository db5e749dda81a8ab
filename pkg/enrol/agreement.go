package enrol

import (
	"strings"
	"time"

	"google.golang.org/grpc/codes"
)

const (
	// ServerDeadline bounds how long the server takes. It is longer than an Issuer waits for its signer, so that the
	// client receives the reason.
	ServerDeadline = 20 * time.Second
	// NotRenewable is the status code for an identity that can never be renewed again. The control channel uses it for
	// nothing else: an agent then enrols as a new node, which closes its reverse tunnels and uses up its token. After
	// any other code it retries the renewal.
	NotRenewable = codes.FailedPrecondition
	// MaxHost is the maximum length of a host name: that of a DNS name.
	MaxHost = 253
)

// ValidHost reports whether a host name from a machine can be written unchanged into an object and a log.
func ValidHost(s string) bool {
	return len(s) <= MaxHost && !strings.ContainsFunc(s, func(r rune) bool { return r < ' ' || r > '~' })
}
