package dial_test

import (
	"crypto/tls"
	"crypto/x509"
	"fmt"
	"net"
	"strings"
	"testing"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/fairlead/fairlead/internal/eventually"
	"github.com/fairlead/fairlead/pkg/certs"
	"github.com/fairlead/fairlead/pkg/model"
)

type emptyPool struct{}

func (emptyPool) Roots() (*x509.CertPool, error) { return x509.NewCertPool(), nil }

// tlsMiddlebox is a middlebox that terminates TLS with a certificate for the control channel, of the given CA and
// validity.
func tlsMiddlebox(t *testing.T, ca *certs.CA, s model.Subject, begin, life time.Duration) func(net.Conn) {
	t.Helper()
	certificate := issue(t, ca, s, begin, life).TLSCertificate()
	return func(conn net.Conn) {
		server := tls.Server(conn, &tls.Config{Certificates: []tls.Certificate{certificate}, NextProtos: []string{"h2"}})
		_ = server.Handshake()
		hold(server)
	}
}

// middlebox is a device between client and server, and what the error reports about it.
type middlebox struct {
	answer func(net.Conn)
	want   []string
}

func middleboxes(t *testing.T, a *authority) map[string]middlebox {
	t.Helper()
	interceptor, err := certs.NewCA("Corporate Web Inspection", time.Now().Add(-time.Hour), 2*time.Hour)
	if err != nil {
		t.Fatal(err)
	}
	return map[string]middlebox{
		"a middlebox inspects TLS": {
			tlsMiddlebox(t, interceptor, model.ControlSubject(), -time.Minute, time.Hour),
			[]string{
				"the certificate presented for control.tunnels.example.com was issued by \"CN=Corporate Web Inspection\", not by " +
					"this installation",
				"exempt 127.0.0.1:",
			},
		},
		"a captive portal redirects": {
			func(conn net.Conn) {
				_, _ = conn.Write([]byte("HTTP/1.1 302 Found\r\nLocation: http://login.example/\r\n\r\n"))
				hold(conn)
			},
			[]string{"captive portal", "\"HTTP/1.1 302 Found\""},
		},
		"something else answers": {
			func(conn net.Conn) { _, _ = conn.Write([]byte("SSH-2.0-OpenSSH_9.9\r\n")); hold(conn) },
			[]string{"the answer is not TLS; it begins with \"SSH-2.0-OpenSSH_9.9"},
		},
		"a firewall resets connections for their SNI": {
			func(conn net.Conn) { readOnce(conn); _ = conn.(*net.TCPConn).SetLinger(0) },
			[]string{"the connection was closed right after the server name control.tunnels.example.com was sent"},
		},
		"a firewall ends connections for their SNI": {
			readOnce,
			[]string{"the connection was closed right after the server name control.tunnels.example.com was sent"},
		},
		"no answer": {
			func(conn net.Conn) { hold(conn) },
			[]string{"the connection is accepted, but the TLS handshake gets no answer"},
		},
		"another service of the installation": {
			tlsMiddlebox(t, a.ca, model.Subject{Role: model.RoleGateway, Node: "gateway-0"}, -time.Minute, time.Hour),
			[]string{
				"the certificate presented is not for control.tunnels.example.com but for \"gateway-0.tunnels.example.com, " +
					"gateway.tunnels.example.com\"",
			},
		},
		"a certificate that ended": {
			tlsMiddlebox(t, a.ca, model.ControlSubject(), -2*time.Hour, time.Hour),
			[]string{"is valid from ", "and the clock of this machine shows "},
		},
		"a certificate that is not yet valid": {
			tlsMiddlebox(t, a.ca, model.ControlSubject(), time.Hour, time.Hour),
			[]string{"is valid from ", "this clock is wrong"},
		},
		"a server without TLS 1.3": {
			func(conn net.Conn) { _ = tls.Server(conn, old(t, a)).Handshake() },
			[]string{"rejects the handshake"},
		},
		"a server that rejects the name": {
			func(conn net.Conn) { readOnce(conn); _, _ = conn.Write([]byte{21, 3, 3, 0, 2, 2, 112}); hold(conn) },
			[]string{"the server rejects the server name control.tunnels.example.com"},
		},
	}
}

// TestErrorsOfConnExplainTheCause uses real client and server code, and devices of bad networks between them.
func TestErrorsOfConnExplainTheCause(t *testing.T) {
	t.Parallel()
	a := newAuthority(t)
	for name, test := range middleboxes(t, a) {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			address := answering(t, "127.0.0.1:0", test.answer)
			err := call(t.Context(), connect(t, a, address))
			if status.Code(err) != codes.Unavailable {
				t.Fatalf("error %v, want Unavailable", err)
			}
			for _, want := range append(test.want, address.String()+": ") {
				if !strings.Contains(err.Error(), want) {
					t.Errorf("the error is\n%v\nwhich does not say %q", err, want)
				}
			}
			if _, clock, has := strings.Cut(err.Error(), "the clock of this machine shows "); has {
				clock, _, _ = strings.Cut(clock, ": ")
				shown, err := time.Parse(time.RFC3339, clock)
				if off := time.Since(shown).Abs(); err != nil || off > time.Hour {
					t.Errorf("the error shows the time %q, %s off (%v)", clock, off, err)
				}
			}
		})
	}
}

// readOnce reads once and discards the data.
func readOnce(conn net.Conn) { _, _ = conn.Read(make([]byte, 4096)) }

func old(t *testing.T, a *authority) *tls.Config {
	t.Helper()
	certificate := issue(t, a.ca, model.ControlSubject(), -time.Minute, time.Hour).TLSCertificate()
	return &tls.Config{MaxVersion: tls.VersionTLS12, Certificates: []tls.Certificate{certificate}}
}

// TestARejectedCertificateIsExplained has a server that accepts no expired certificates.
func TestARejectedCertificateIsExplained(t *testing.T) {
	a := newAuthority(t)
	server := xdsServer(t, a, "127.0.0.1:0")
	for name, test := range map[string]struct {
		identity certs.Identity
		want     string
	}{
		"it ended": {issue(t, a.ca, edge(), -2*time.Hour, time.Hour), "the xds-server rejects this " +
			"machine's certificate, which expired at "},
		"it has not begun": {issue(t, a.ca, edge(), time.Hour, time.Hour), "the xds-server rejects this machine's " +
			"certificate, which is valid from "},
		"its CA is another's": {issue(t, newCA(t), edge(), -time.Hour, 2*time.Hour), "its CA was replaced, or one of " +
			"the clocks is wrong"},
		"nothing is wrong with it": {a.identity, ""},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			conn := connect(t, &authority{bundle: a.ca.CertPEM(), identity: test.identity}, server.address)
			eventually.True(t, patience, "the call's error contains the cause", func() error {
				err := call(t.Context(), conn)
				if test.want == "" {
					return err
				}
				if err == nil || !strings.Contains(err.Error(), test.want) {
					return fmt.Errorf("the error is %w", err)
				}
				return nil
			})
		})
	}
}
