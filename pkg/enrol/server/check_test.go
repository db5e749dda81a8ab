package server_test

import (
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/status"

	"github.com/fairlead/fairlead/pkg/certs"
	enrolclient "github.com/fairlead/fairlead/pkg/enrol/client"
	enrolserver "github.com/fairlead/fairlead/pkg/enrol/server"
	enrolv1 "github.com/fairlead/fairlead/pkg/enrol/v1"
	"github.com/fairlead/fairlead/pkg/model"
)

func TestRequestsThatAreRejected(t *testing.T) {
	m := newManagement(t)
	client := m.serve()
	edge := m.identity("edge-a", domain.TunnelID(id))
	tests := map[string]struct {
		ask     func() error
		refused bool
		ended   bool // permanently, so that a retry of the renewal fails too
		wantErr string
	}{
		"an edge with an unknown token": {
			ask:     func() error { return enrolEdge(t, client, "fl1.unknown") },
			refused: true,
			wantErr: "unknown, has expired or is used up",
		},
		"an edge with the gateways' token": {
			ask:     func() error { return enrolEdge(t, client, m.gate) },
			refused: true,
			wantErr: "unknown",
		},
		"an edge with a token that is too long": {
			ask:     func() error { return enrolEdge(t, client, "fl1."+strings.Repeat("a", 200)) },
			refused: true,
			wantErr: "not a Fairlead token",
		},
		"an edge with no token": {
			ask:     func() error { return enrolEdge(t, client, "") },
			refused: true,
			wantErr: "not a Fairlead token",
		},
		"a gateway with an edge's token": {ask: func() error {
			return enrolGateway(t, client, "gateway-0", enrolclient.GatewayCredential{Token: m.edge})
		}, refused: true, wantErr: "unknown"},
		"a gateway with a name of another form": {
			ask:     func() error { return enrolGateway(t, client, "control", enrolclient.GatewayCredential{Token: m.gate}) },
			refused: true,
			wantErr: "gateway-<number>",
		},
		"a gateway with another Pod's ServiceAccount token": {ask: func() error {
			return enrolGateway(
				t, client, "gateway-1", enrolclient.GatewayCredential{ServiceAccountToken: "service.account.token-of-gateway-0"},
			)
		}, refused: true, wantErr: "denied"},
		"a gateway that does not belong to the installation": {ask: func() error {
			m.set(func() { m.admit = status.Error(codes.Unavailable, "it is none of the gateways") })
			defer m.set(func() { m.admit = nil })
			return enrolGateway(t, client, "gateway-9", enrolclient.GatewayCredential{Token: m.gate})
		}, wantErr: "none of the gateways"},
		"an unknown client, without a list of the gateways": {ask: func() error {
			m.set(func() { m.admit = status.Error(codes.Unavailable, "it is none of the gateways") })
			defer m.set(func() { m.admit = nil })
			return enrolGateway(t, client, "gateway-9", enrolclient.GatewayCredential{Token: "fl1.unknown"})
		}, refused: true, wantErr: "unknown"},
		"a renewal without a certificate": {
			ask:     func() error { return renewWithout(t, m, client) },
			wantErr: "presented no certificate",
		},
		"a renewal of the xds-server's certificate": {
			ask:     func() error { return renew(t, client, m.identity("control", domain.Control())) },
			refused: true,
			wantErr: "are not accepted here",
		},
		"a renewal of a certificate without a profile": {
			ask:     func() error { return renew(t, client, m.identity("edge-a", domain.TunnelID(id), domain.Gateway())) },
			refused: true,
			wantErr: "no profile",
		},
		"an edge of an unknown tunnel": {
			ask:     func() error { return renew(t, client, m.identity("edge-a", domain.TunnelID(model.NewID()))) },
			wantErr: "no tunnel has this id",
		},
		"a revoked edge": {ask: func() error {
			m.set(func() { m.admit = status.Error(codes.FailedPrecondition, "it is revoked") })
			defer m.set(func() { m.admit = nil })
			return renew(t, client, edge)
		}, refused: true, ended: true, wantErr: "it is revoked"},
		"an edge, before the tunnels are known": {ask: func() error {
			m.set(func() { m.admit = status.Error(codes.Unavailable, "not yet") })
			defer m.set(func() { m.admit = nil })
			return renew(t, client, edge)
		}, wantErr: "not yet"},
		"a ServiceAccount token that is not a JWT": {ask: func() error {
			return enrolGateway(t, client, "gateway-0", enrolclient.GatewayCredential{ServiceAccountToken: "x"})
		}, refused: true, wantErr: "not a JWT"},
		"an edge whose leaf expired longer ago than the grace time": {
			ask:     func() error { return renew(t, client, m.aged(-72*time.Hour, time.Hour)) },
			refused: true,
			ended:   true,
			wantErr: "can no longer be renewed",
		},
		"an edge whose leaf is of another installation": {
			ask:     func() error { return renew(t, client, newManagement(t).identity("edge-a", domain.TunnelID(id))) },
			refused: true,
			ended:   true,
			wantErr: "CA of the certificate",
		},
		"an edge whose leaf has not begun": {
			ask:     func() error { return renew(t, client, m.aged(time.Hour, time.Hour)) },
			wantErr: "is a clock wrong?",
		},
		"a request that the signer denies, with the reason": {ask: func() error {
			m.set(func() { m.err = fmt.Errorf("%w: the token has no uses left", enrolserver.ErrDenied) })
			defer m.set(func() { m.err = nil })
			return renew(t, client, edge)
		}, refused: true, wantErr: "no uses left"},
		"a request that the signer cannot answer, without details": {ask: func() error {
			m.set(func() { m.err = errors.New("secret detail") })
			defer m.set(func() { m.err = nil })
			return renew(t, client, edge)
		}, wantErr: "cannot sign certificates at the moment"},
		"any client, before the trust bundle is read": {ask: func() error {
			m.set(func() { m.trust = nil })
			defer m.set(func() { m.trust = m.ca.CertPEM() })
			return renew(t, client, edge)
		}, wantErr: "cannot sign certificates at the moment"},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			err := tc.ask()
			if err == nil || !strings.Contains(err.Error(), tc.wantErr) {
				t.Fatalf("got %v, want an error with %q", err, tc.wantErr)
			}
			if errors.Is(err, certs.ErrRefused) != tc.refused {
				t.Errorf("the error is %v; is it a refusal: want %v", err, tc.refused)
			}
			if errors.Is(err, enrolclient.ErrNotRenewable) != tc.ended {
				t.Errorf("the error is %v; is it for good: want %v", err, tc.ended)
			}
			if strings.Contains(err.Error(), "secret detail") {
				t.Error("the caller heard what is none of its business")
			}
		})
	}
}

// TestTheServerDoesNotRelyOnTheClientsChecks sends requests that the client would not send.
func TestTheServerDoesNotRelyOnTheClientsChecks(t *testing.T) {
	m := newManagement(t)
	client := m.serve()
	service := enrolv1.NewEnrolmentClient(connect(t, m, client))
	key, err := certs.NewKey()
	if err != nil {
		t.Fatal(err)
	}
	csr, err := certs.NewCSR(key)
	if err != nil {
		t.Fatal(err)
	}
	tests := map[string]struct {
		request *enrolv1.EnrolEdgeRequest
		want    codes.Code
	}{
		"a good request": {
			request: &enrolv1.EnrolEdgeRequest{Token: m.edge, Csr: csr, Host: "h"},
			want:    codes.OK,
		},
		"a signing request of 9 KiB": {
			request: &enrolv1.EnrolEdgeRequest{Token: m.edge, Csr: make([]byte, 9<<10)},
			want:    codes.InvalidArgument,
		},
		"no signing request": {request: &enrolv1.EnrolEdgeRequest{Token: m.edge}, want: codes.InvalidArgument},
		"a host of 254 bytes": {
			request: &enrolv1.EnrolEdgeRequest{Token: m.edge, Csr: csr, Host: strings.Repeat("h", 254)},
			want:    codes.InvalidArgument,
		},
		"a host with a line feed": {
			request: &enrolv1.EnrolEdgeRequest{Token: m.edge, Csr: csr, Host: "h\nlevel=INFO"},
			want:    codes.InvalidArgument,
		},
		"a host that is not in ASCII": {
			request: &enrolv1.EnrolEdgeRequest{Token: m.edge, Csr: csr, Host: "hôte"},
			want:    codes.InvalidArgument,
		},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			_, err := service.EnrolEdge(t.Context(), tc.request)
			if got := status.Code(err); got != tc.want {
				t.Errorf("got %v, want %v", err, tc.want)
			}
		})
	}
}

// TestSigningRequestsAreVerifiedWithinTheRateOfTheirToken: a verification costs far more than the lookup of a token.
func TestSigningRequestsAreVerifiedWithinTheRateOfTheirToken(t *testing.T) {
	m := newManagement(t)
	service := enrolv1.NewEnrolmentClient(connect(t, m, m.serve()))
	for range 200 {
		_, err := service.EnrolEdge(t.Context(), &enrolv1.EnrolEdgeRequest{Token: m.edge, Csr: []byte("garbage")})
		if strings.Contains(status.Convert(err).Message(), "too many certificates for one token") {
			return
		}
	}
	t.Error("signing requests with one token are verified without a limit")
}

func renewWithout(t *testing.T, m *management, client enrolclient.Client) error {
	t.Helper()
	key, err := certs.NewKey()
	if err != nil {
		return err
	}
	csr, err := certs.NewCSR(key)
	if err != nil {
		return err
	}
	_, err = enrolv1.NewEnrolmentClient(connect(t, m, client)).Renew(t.Context(), &enrolv1.RenewRequest{Csr: csr})
	return err
}

// connect dials the server without a certificate.
func connect(t testing.TB, m *management, client enrolclient.Client) *grpc.ClientConn {
	t.Helper()
	roots, err := certs.Bundle(m.ca.CertPEM()).Roots()
	if err != nil {
		t.Fatal(err)
	}
	conn, err := grpc.NewClient(
		client.Dialer.Addresses[0].String(),
		grpc.WithTransportCredentials(credentials.NewClientTLSFromCert(roots, domain.Control())),
	)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = conn.Close() })
	return conn
}
