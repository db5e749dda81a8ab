package probe

import (
	"context"
	"crypto/tls"
	"errors"
	"io"
	"net"
	"os"
	"syscall"
)

// explain describes why cannot open a TLS connection.
func explain(err error) string {
	var notTLS tls.RecordHeaderError
	var dns *net.DNSError
	meaning := ""
	switch {
	case errors.As(err, &dns) && dns.IsNotFound:
		meaning = "DNS has no address for this name"
	case dns != nil:
		meaning = "DNS does not answer"
	case errors.Is(err, syscall.ECONNREFUSED):
		meaning = "nothing listens there"
	case errors.Is(err, syscall.EHOSTUNREACH), errors.Is(err, syscall.ENETUNREACH):
		meaning = "this machine has no route to it"
	case errors.As(err, &notTLS):
		meaning = "the answer is not TLS"
	case isTimeout(err):
		meaning = "no answer in time"
	case errors.Is(err, io.EOF), errors.Is(err, syscall.ECONNRESET):
		meaning = "the connection was closed during the TLS handshake"
	default:
		meaning = "cannot open a TLS connection"
	}
	return meaning + ": " + printable(err.Error(), maxText)
}

// reason returns the text of an HTTP error.
func reason(err error) string {
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
