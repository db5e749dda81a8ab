package probe

import (
	"context"
	"crypto/tls"
	"errors"
	"io"
	"net"
	"os"
	"syscall"

	"github.com/fairlead/fairlead/internal/printable"
	"github.com/fairlead/fairlead/pkg/model"
)

// explain returns why a TLS connection cannot be opened.
func explain(err error) (model.APIServerReason, string) {
	reason, meaning := model.APIServerConnectionFailed, "cannot open a TLS connection"
	var notTLS tls.RecordHeaderError
	var dns *net.DNSError
	var op *net.OpError
	switch {
	case errors.As(err, &dns) && dns.IsNotFound:
		reason, meaning = model.APIServerNameNotResolved, "DNS has no address for this name"
	case dns != nil:
		reason, meaning = model.APIServerNameNotResolved, "DNS does not answer"
	case errors.Is(err, syscall.ECONNREFUSED):
		reason, meaning = model.APIServerConnectionRefused, "nothing listens there"
	case errors.Is(err, syscall.EHOSTUNREACH), errors.Is(err, syscall.ENETUNREACH):
		reason, meaning = model.APIServerNoRoute, "this machine has no route to it"
	case errors.As(err, &notTLS):
		reason, meaning = model.APIServerNotAPIServer, "the answer is not TLS"
	case isTimeout(err) && errors.As(err, &op) && op.Op == "dial":
		reason, meaning = model.APIServerConnectionTimeout, "no answer in time"
	case isTimeout(err):
		reason, meaning = model.APIServerNoAnswer, "it accepts connections, but does not answer in time"
	case errors.Is(err, io.EOF), errors.Is(err, syscall.ECONNRESET):
		meaning = "the connection was closed during the TLS handshake"
	}
	return reason, meaning + ": " + printable.Text(err.Error(), maxText)
}

// textOf returns the text of an HTTP error.
func textOf(err error) string {
	if isTimeout(err) {
		return "no answer in time"
	}
	return err.Error()
}

func isTimeout(err error) bool {
	var timeout interface{ Timeout() bool }
	return errors.Is(err, context.DeadlineExceeded) || errors.Is(err, os.ErrDeadlineExceeded) ||
		errors.As(err, &timeout) && timeout.Timeout()
}
