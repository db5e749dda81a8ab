package dial

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"reflect"
	"strings"
	"syscall"
	"time"
)

// explained is an error with an explanation before it.
type explained struct {
	meaning string
	err     error
}

// Error implements error.
func (e *explained) Error() string { return e.meaning + ": " + e.err.Error() }

// Unwrap returns the error without the explanation.
func (e *explained) Unwrap() error { return e.err }

// explainDial explains the error of a DNS lookup or of a TCP connection.
func explainDial(err error) error {
	meaning := ""
	var dns *net.DNSError
	switch {
	case errors.As(err, &dns) && dns.IsNotFound:
		meaning = "DNS has no address for this name"
	case errors.As(err, &dns) && dns.IsTimeout, dns != nil && errors.Is(err, context.DeadlineExceeded):
		meaning = "DNS does not answer"
	case dns != nil:
		meaning = "DNS gives no usable answer"
	case errors.Is(err, syscall.ECONNREFUSED):
		meaning = "nothing listens there, or a firewall rejects the connection"
	case errors.Is(err, syscall.EHOSTUNREACH), errors.Is(err, syscall.ENETUNREACH):
		meaning = "this machine has no route to it"
	case errors.Is(err, syscall.EPERM), errors.Is(err, syscall.EACCES):
		meaning = "a firewall on this machine blocks it"
	case isTimeout(err):
		meaning = "no answer: the machine is down, or a firewall drops packets"
	default:
		return err
	}
	return &explained{meaning, err}
}

func isTimeout(err error) bool {
	var timeout interface{ Timeout() bool }
	return errors.Is(err, context.DeadlineExceeded) || errors.As(err, &timeout) && timeout.Timeout()
}

// handshakeState is what is known when a handshake fails.
type handshakeState struct {
	name      string            // requested server name
	where     string            // dialled address
	now       time.Time         // by this machine's clock
	answer    []byte            // first received bytes
	leaf      *x509.Certificate // client certificate; nil: none
	completed bool              // the handshake itself was finished
}

// explain explains the error of a handshake.
func (m handshakeState) explain(err error) error {
	var verification *tls.CertificateVerificationError
	var notTLS tls.RecordHeaderError
	var remote *net.OpError
	meaning := ""
	switch {
	case errors.As(err, &verification) && len(verification.UnverifiedCertificates) > 0:
		meaning = m.explainCertificate(verification.UnverifiedCertificates[0], verification.Err)
	case strings.HasPrefix(string(m.answer), "HTTP/"):
		meaning = "the answer is HTTP instead of TLS: from a captive portal that requires a login, or from a proxy; it " +
			"begins with " +
			printable(
				firstLine(m.answer),
			)
	case errors.As(err, &notTLS):
		meaning = "the answer is not TLS; it begins with " + printable(string(m.answer))
	case errors.As(err, &remote) && remote.Op == "remote error":
		meaning = m.explainAlert(remote.Err)
	case isTimeout(err) || errors.Is(err, os.ErrDeadlineExceeded):
		meaning = "the connection is accepted, but the TLS handshake gets no answer: the server behind it is down, or a " +
			"firewall drops packets"
	case !m.completed && len(m.answer) == 0 && isCut(err):
		meaning = fmt.Sprintf(
			"the connection was closed right after the server name %s was sent: a firewall blocks this name, or the server is "+
				"not a gateway of this installation",
			m.name,
		)
	case m.completed && isCut(err):
		meaning = "the connection was closed right after the handshake"
	case isCut(err):
		meaning = "the connection was closed during the handshake"
	default:
		return fmt.Errorf("%s: %w", m.where, err)
	}
	return fmt.Errorf("%s: %w", m.where, &explained{meaning, err})
}

func isCut(err error) bool {
	return errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF) || errors.Is(err, syscall.ECONNRESET) ||
		errors.Is(err, syscall.EPIPE)
}

// explainCertificate explains why the certificate of the server is invalid.
func (m handshakeState) explainCertificate(cert *x509.Certificate, err error) string {
	var unknown x509.UnknownAuthorityError
	var name x509.HostnameError
	var invalid x509.CertificateInvalidError
	issuer := printable(cert.Issuer.String())
	switch {
	case errors.As(err, &unknown):
		return fmt.Sprintf(
			"the certificate presented for %s was issued by %s, not by this installation: a proxy inspects TLS (exempt %s "+
				"there), "+
				"or the CA in the bootstrap file belongs to another installation",
			m.name,
			issuer,
			m.where,
		)
	case errors.As(err, &name):
		return fmt.Sprintf("the certificate presented is not for %s but for %s, issued by %s: this is another server",
			m.name, printable(strings.Join(cert.DNSNames, ", ")), issuer)
	case errors.As(err, &invalid) && invalid.Reason == x509.Expired:
		return fmt.Sprintf(
			"the certificate presented for %s is valid from %s to %s, and the clock of this machine shows %s: this clock is "+
				"wrong, or that of the management cluster is, "+
				"or the xds-server has not renewed its certificate",
			m.name,
			utc(cert.NotBefore),
			utc(cert.NotAfter),
			utc(m.now),
		)
	}
	return fmt.Sprintf("the certificate presented for %s, issued by %s, is not valid", m.name, issuer)
}

// Alerts of TLS (RFC 8446, section 6.2) with which a server rejects a certificate or a server name.
const (
	alertBadCertificate   = 42
	alertUnknownCA        = 48
	alertAccessDenied     = 49
	alertRequired         = 116
	alertUnrecognizedName = 112
)

// explainAlert explains the alert with which a server ends the handshake.
func (m handshakeState) explainAlert(alert error) string {
	code := uint64(0)
	if v := reflect.ValueOf(alert); v.Kind() == reflect.Uint8 { // crypto/tls does not export the type
		code = v.Uint()
	}
	switch {
	case code == alertUnrecognizedName:
		return fmt.Sprintf("the server rejects the server name %s: it is not a gateway of this installation", m.name)
	case code < alertBadCertificate || code > alertAccessDenied && code != alertRequired:
		return "the server rejects the handshake"
	case m.leaf == nil:
		return "the server requires a certificate, which this machine does not have yet: it is not the xds-server"
	case m.now.After(m.leaf.NotAfter):
		return fmt.Sprintf(
			"the xds-server rejects this machine's certificate, which expired at %s; the clock of this machine shows %s",
			utc(m.leaf.NotAfter), utc(m.now),
		)
	case m.now.Before(m.leaf.NotBefore):
		return fmt.Sprintf(
			"the xds-server rejects this machine's certificate, which is valid from %s; the clock of this machine shows %s: "+
				"it is slow",
			utc(m.leaf.NotBefore),
			utc(m.now),
		)
	}
	return fmt.Sprintf(
		"the xds-server rejects this machine's certificate (issued by %s, valid from %s to %s): its CA was replaced, or "+
			"one of the clocks is wrong; this one shows %s",
		printable(m.leaf.Issuer.String()),
		utc(m.leaf.NotBefore),
		utc(m.leaf.NotAfter),
		utc(m.now),
	)
}

func utc(t time.Time) string { return t.UTC().Format(time.RFC3339) }
