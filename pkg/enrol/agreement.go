package enrol

import (
	"strings"
	"time"

	"google.golang.org/grpc/codes"
)

const (
	// ServerDeadline is how long the server takes at most. It is longer than an Issuer waits for its signer, so that the client
	// hears the reason.
	ServerDeadline = 20 * time.Second
	// NotRenewable is what the control channel says of an identity that is over for good, and of nothing else: an agent then
	// enrols anew, as another node, and so cuts its tunnels and uses up its token. After any other code it goes on asking.
	NotRenewable = codes.FailedPrecondition
	// MaxHost is the longest DNS name.
	MaxHost = 253
)

// ValidHost says whether a label from a machine can go into an object and a log as it is.
func ValidHost(s string) bool {
	return len(s) <= MaxHost && !strings.ContainsFunc(s, func(r rune) bool { return r < ' ' || r > '~' })
}
