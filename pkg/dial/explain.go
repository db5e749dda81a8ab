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
		meaning = "the DNS of this network knows no address of this name"
	case errors.As(err, &dns) && dns.IsTimeout, dns != nil && errors.Is(err, context.DeadlineExceeded):
		meaning = "the DNS of this network does not answer"
	case dns != nil:
		meaning = "the DNS of this network gives no answer that is of use"
	case errors.Is(err, syscall.ECONNREFUSED):
		meaning = "nothing listens there, or a firewall refuses"
	case errors.Is(err, syscall.EHOSTUNREACH), errors.Is(err, syscall.ENETUNREACH):
		meaning = "this machine has no way there"
	case errors.Is(err, syscall.EPERM), errors.Is(err, syscall.EACCES):
		meaning = "a firewall on this machine forbids it"
	case isTimeout(err):
		meaning = "nobody answers: the machine is down, or something on the way swallows what is sent"
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
		meaning = "something on the way answers with HTTP where TLS was to begin: a captive portal that wants a person to log in, or a proxy; it begins with " +
			printable(firstLine(m.answer))
	case errors.As(err, &notTLS):
		meaning = "what answers is no TLS; it begins with " + printable(string(m.answer))
	case errors.As(err, &remote) && remote.Op == "remote error":
		meaning = m.explainAlert(remote.Err)
	case isTimeout(err) || errors.Is(err, os.ErrDeadlineExceeded):
		meaning = "the connection is taken, but nobody goes on with TLS: what is behind it is down, or something on the way swallows what is sent"
	case !m.completed && len(m.answer) == 0 && isCut(err):
		meaning = fmt.Sprintf("the connection was cut as soon as %s was asked for: a firewall on the way forbids this name, or whoever listens there is no gateway of this installation", m.name)
	case m.completed && isCut(err):
		meaning = "the connection was cut right after the handshake"
	case isCut(err):
		meaning = "the connection was cut within the handshake"
	default:
		return fmt.Errorf("%s: %w", m.where, err)
	}
	return fmt.Errorf("%s: %w", m.where, &explained{meaning, err})
}

func isCut(err error) bool {
	return errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF) || errors.Is(err, syscall.ECONNRESET) || errors.Is(err, syscall.EPIPE)
}

// explainCertificate explains why the certificate of the server is invalid.
func (m handshakeState) explainCertificate(cert *x509.Certificate, err error) string {
	var unknown x509.UnknownAuthorityError
	var name x509.HostnameError
	var invalid x509.CertificateInvalidError
	issuer := printable(cert.Issuer.String())
	switch {
	case errors.As(err, &unknown):
		return fmt.Sprintf("the certificate that answered for %s was issued by %s, not by this installation: something on the way inspects TLS (exempt %s there), "+
			"or the CA in the bootstrap file is another installation's", m.name, issuer, m.where)
	case errors.As(err, &name):
		return fmt.Sprintf("the certificate that answered is not for %s but for %s, issued by %s: whoever listens there is something else",
			m.name, printable(strings.Join(cert.DNSNames, ", ")), issuer)
	case errors.As(err, &invalid) && invalid.Reason == x509.Expired:
		return fmt.Sprintf("the certificate that answered for %s is valid from %s to %s, and the clock of this machine says %s: this clock is wrong, or that of the management cluster, "+
			"or the xds-server has not renewed its certificate", m.name, utc(cert.NotBefore), utc(cert.NotAfter), utc(m.now))
	}
	return fmt.Sprintf("the certificate that answered for %s, issued by %s, is not good", m.name, issuer)
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
		return fmt.Sprintf("whoever listens there does not know %s: it is no gateway of this installation", m.name)
	case code < alertBadCertificate || code > alertAccessDenied && code != alertRequired:
		return "whoever listens there refuses the handshake"
	case m.leaf == nil:
		return "whoever listens there wants a certificate, which this machine does not have yet: it is not the xds-server"
	case m.now.After(m.leaf.NotAfter):
		return fmt.Sprintf("the xds-server does not take this machine's certificate, which ended at %s; the clock of this machine says %s", utc(m.leaf.NotAfter), utc(m.now))
	case m.now.Before(m.leaf.NotBefore):
		return fmt.Sprintf("the xds-server does not take this machine's certificate, which begins at %s; the clock of this machine says %s: it is late", utc(m.leaf.NotBefore), utc(m.now))
	}
	return fmt.Sprintf("the xds-server does not take this machine's certificate (issued by %s, valid from %s to %s): its CA was replaced, or one of the clocks is wrong; this one says %s",
		printable(m.leaf.Issuer.String()), utc(m.leaf.NotBefore), utc(m.leaf.NotAfter), utc(m.now))
}

func utc(t time.Time) string { return t.UTC().Format(time.RFC3339) }
