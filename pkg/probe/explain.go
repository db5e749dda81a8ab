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

// explain describes why there is no TLS connection.
func explain(err error) string {
	var notTLS tls.RecordHeaderError
	var dns *net.DNSError
	meaning := ""
	switch {
	case errors.As(err, &dns) && dns.IsNotFound:
		meaning = "the DNS of this network knows no address of this name"
	case dns != nil:
		meaning = "the DNS of this network gives no answer"
	case errors.Is(err, syscall.ECONNREFUSED):
		meaning = "nothing listens there"
	case errors.Is(err, syscall.EHOSTUNREACH), errors.Is(err, syscall.ENETUNREACH):
		meaning = "this machine has no way there"
	case errors.As(err, &notTLS):
		meaning = "what answers there is no TLS"
	case isTimeout(err):
		meaning = "nobody answers in time"
	case errors.Is(err, io.EOF), errors.Is(err, syscall.ECONNRESET):
		meaning = "the connection was cut within the TLS handshake"
	default:
		meaning = "there is no TLS connection"
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
	return errors.Is(err, context.DeadlineExceeded) || errors.Is(err, os.ErrDeadlineExceeded) || errors.As(err, &timeout) && timeout.Timeout()
}
