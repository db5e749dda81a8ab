package explain

import (
	"context"
	"crypto/tls"
	"errors"
	"io"
	"net"
	"net/url"
	"strings"
	"syscall"

	"github.com/fairlead/fairlead/internal/redact"
)

// maxText bounds how much of an error is quoted.
const maxText = 400

// Text returns an error of another program for people, without known secrets, and without the URL of a request, which
// the caller names itself.
func Text(err error) string {
	var dns *net.DNSError
	var urlError *url.Error
	switch {
	case errors.As(err, &dns):
		return dns.Error()
	case errors.As(err, &urlError):
		err = urlError.Err
	}
	s := redact.Text(err.Error())
	if len(s) > maxText {
		s = strings.ToValidUTF8(s[:maxText], "") + "…"
	}
	return s
}

// Dial describes why a connection cannot be opened; empty: for a reason that is not known here.
func Dial(err error) string {
	switch {
	case errors.Is(err, syscall.ECONNREFUSED):
		return "refused"
	case errors.Is(err, syscall.EHOSTUNREACH), errors.Is(err, syscall.ENETUNREACH):
		return "no route"
	case IsTimeout(err):
		return "no answer"
	}
	return ""
}

// IsTimeout reports whether an error is that there was no answer in time.
func IsTimeout(err error) bool {
	var timeout interface{ Timeout() bool }
	return errors.Is(err, context.DeadlineExceeded) || errors.As(err, &timeout) && timeout.Timeout()
}

// IsCut reports whether the other end has closed a connection before its answer.
func IsCut(err error) bool {
	return errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF) || errors.Is(err, syscall.ECONNRESET) ||
		errors.Is(err, syscall.EPIPE)
}

// IsAlert reports whether the other end has ended a handshake with an alert.
func IsAlert(err error) bool {
	var alert tls.AlertError
	var remote *net.OpError
	return errors.As(err, &alert) || errors.As(err, &remote) && remote.Op == "remote error"
}
