package explain

import (
	"context"
	"crypto/tls"
	"errors"
	"io"
	"net"
	"syscall"
)

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
