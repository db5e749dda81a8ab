package enrol

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/peer"
	"google.golang.org/grpc/status"

	"github.com/fairlead/fairlead/pkg/certs"
	enrolv1 "github.com/fairlead/fairlead/pkg/enrol/v1"
	"github.com/fairlead/fairlead/pkg/model"
)

// maxAttempt is longer than the server takes at most, so that its reason arrives.
const maxAttempt = maxServing + 5*time.Second

var (
	// ErrNotRenewable is wrapped by an error of Renew, beside certs.ErrRefused, when the server says that this leaf will
	// never be renewed again.
	ErrNotRenewable = errors.New("not renewable")
	// ErrNoAnswer is wrapped by an error of Renew when there was no connection by which the server could have answered:
	// there is no way to it, or one end did not take the other's certificate. The server takes none that expired too long
	// ago, or whose CA is gone.
	ErrNoAnswer = errors.New("no connection")
)

// Client asks for certificates. Each call makes a new key and a connection of its own, has a deadline, and tries once. It
// returns the new identity and the trust bundle (PEM) to use with it. An error that wraps certs.ErrRefused is the
// server's last word; after any other it is worth trying again.
type Client struct {
	Address model.Endpoint // the gateways' public port for an edge, the xds-server for a gateway
	Domain  model.TunnelDomain
	Trust   certs.TrustSource // whom to take for the xds-server
}

// EnrolEdge enrols as an edge of the tunnel that the bootstrap token is for. The host is what the machine calls itself;
// one that can't be a label is left out.
func (c Client) EnrolEdge(ctx context.Context, token, host string) (certs.Identity, []byte, error) {
	if !printable(host) {
		host = ""
	}
	identity, bundle, err := c.call(ctx, nil, func(ctx context.Context, service enrolv1.EnrolmentClient, csr []byte) (*enrolv1.Certificate, error) {
		return service.EnrolEdge(ctx, &enrolv1.EnrolEdgeRequest{Token: token, Csr: csr, Host: host})
	})
	if err != nil {
		return certs.Identity{}, nil, fmt.Errorf("enrolling edge by its bootstrap token: %w", err)
	}
	return identity, bundle, nil
}

// GatewayCredential is one of the two: the gateway token, or a Kubernetes ServiceAccount token.
type GatewayCredential struct{ Token, ServiceAccountToken string }

// EnrolGateway enrols as the gateway with this name.
func (c Client) EnrolGateway(ctx context.Context, name string, credential GatewayCredential) (certs.Identity, []byte, error) {
	request := &enrolv1.EnrolGatewayRequest{Gateway: name, Credential: &enrolv1.EnrolGatewayRequest_Token{Token: credential.Token}}
	if credential.ServiceAccountToken != "" {
		request.Credential = &enrolv1.EnrolGatewayRequest_ServiceAccountToken{ServiceAccountToken: credential.ServiceAccountToken}
	}
	identity, bundle, err := c.call(ctx, nil, func(ctx context.Context, service enrolv1.EnrolmentClient, csr []byte) (*enrolv1.Certificate, error) {
		request.Csr = csr
		return service.EnrolGateway(ctx, request)
	})
	if err != nil {
		return certs.Identity{}, nil, fmt.Errorf("enrolling %s: %w", name, err)
	}
	return identity, bundle, nil
}

// Renew gets a leaf with the same names for a new key. The current leaf may have expired: how long ago is the server's
// choice. Its errors tell besides whether it is of use to ask again: see ErrNotRenewable and ErrNoAnswer.
func (c Client) Renew(ctx context.Context, current certs.Identity) (certs.Identity, []byte, error) {
	certificate := current.TLSCertificate()
	var server peer.Peer
	identity, bundle, err := c.call(ctx, &certificate, func(ctx context.Context, service enrolv1.EnrolmentClient, csr []byte) (*enrolv1.Certificate, error) {
		return service.Renew(ctx, &enrolv1.RenewRequest{Csr: csr}, grpc.Peer(&server))
	})
	if err != nil && server.Addr == nil {
		err = fmt.Errorf("%w: %w", ErrNoAnswer, err)
	}
	if err != nil {
		return certs.Identity{}, nil, fmt.Errorf("renewing certificate of %s: %w", current.Leaf().Subject.CommonName, err)
	}
	return identity, bundle, nil
}

// call makes a key, sends its signing request, and joins the key with the answer. No current certificate: nil.
func (c Client) call(ctx context.Context, current *tls.Certificate,
	send func(context.Context, enrolv1.EnrolmentClient, []byte) (*enrolv1.Certificate, error),
) (certs.Identity, []byte, error) {
	ctx, cancel := context.WithTimeout(ctx, maxAttempt)
	defer cancel()
	conn, err := c.dial(current)
	if err != nil {
		return certs.Identity{}, nil, err
	}
	defer conn.Close()
	key, err := certs.NewKey()
	if err != nil {
		return certs.Identity{}, nil, err
	}
	csr, err := certs.NewCSR(key)
	if err != nil {
		return certs.Identity{}, nil, err
	}
	answer, err := send(ctx, enrolv1.NewEnrolmentClient(conn), csr)
	if err != nil {
		return certs.Identity{}, nil, reason(err)
	}
	identity, err := certs.NewIdentity(answer.GetChain(), key)
	if err != nil {
		return certs.Identity{}, nil, err
	}
	return identity, answer.GetTrustBundle(), c.verify(identity.Leaf(), answer.GetTrustBundle())
}

func (c Client) dial(current *tls.Certificate) (*grpc.ClientConn, error) {
	roots, err := c.Trust.Roots()
	if err != nil {
		return nil, err
	}
	config := &tls.Config{MinVersion: tls.VersionTLS13, ServerName: c.Domain.Control(), RootCAs: roots}
	if current != nil {
		// Not Certificates: crypto/tls would hold back one that the server's list of CAs seems not to fit.
		config.GetClientCertificate = func(*tls.CertificateRequestInfo) (*tls.Certificate, error) { return current, nil }
	}
	// passthrough: the name is looked up by the dial itself, at each attempt. No proxy of the environment: Envoy, which
	// takes the same way, knows none.
	conn, err := grpc.NewClient("passthrough:///"+c.Address.String(), grpc.WithNoProxy(), grpc.WithTransportCredentials(credentials.NewTLS(config)))
	if err != nil {
		return nil, fmt.Errorf("dialling the control channel at %s: %w", c.Address, err)
	}
	return conn, nil
}

// verify makes sure that Envoy will be able to use what came, before it replaces what it has.
func (c Client) verify(leaf *x509.Certificate, bundle []byte) error {
	roots, err := certs.Bundle(bundle).Roots()
	if err != nil {
		return err
	}
	if _, err := leaf.Verify(x509.VerifyOptions{Roots: roots, KeyUsages: []x509.ExtKeyUsage{x509.ExtKeyUsageAny}}); err != nil {
		return fmt.Errorf("verifying the new certificate: %w", err)
	}
	if _, err := c.Domain.ParseSubject(leaf.Subject.CommonName, leaf.DNSNames); err != nil {
		return fmt.Errorf("reading the new certificate: %w", err)
	}
	return nil
}

// reason turns a gRPC status into an error that a person understands, and marks a refusal.
func reason(err error) error {
	s := status.Convert(err)
	switch s.Code() {
	case codes.InvalidArgument, codes.Unauthenticated, codes.PermissionDenied, codes.Unimplemented:
		return fmt.Errorf("%w: %s", certs.ErrRefused, s.Message())
	case notRenewable:
		return fmt.Errorf("%w: %w: %s", certs.ErrRefused, ErrNotRenewable, s.Message())
	case codes.DeadlineExceeded, codes.Canceled:
		return fmt.Errorf("no answer from the control channel: %s", s.Message())
	}
	return fmt.Errorf("the control channel is not usable: %s", s.Message())
}
