// Package client is the machine's end of enrolment. In goes a credential, out comes an identity: a leaf for a key that was made
// here, and the trust bundle to use with it. It also renews an identity by its key, and sends boot reports. It keeps nothing
// on disk, and each call is one attempt.
package client

import (
	"context"
	"crypto/ecdsa"
	"crypto/x509"
	"errors"
	"fmt"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/fairlead/fairlead/internal/retry"
	"github.com/fairlead/fairlead/pkg/certs"
	"github.com/fairlead/fairlead/pkg/dial"
	"github.com/fairlead/fairlead/pkg/enrol"
	enrolv1 "github.com/fairlead/fairlead/pkg/enrol/v1"
	"github.com/fairlead/fairlead/pkg/model"
)

// maxAttempt is longer than the server takes at most, so that its reason arrives.
const maxAttempt = enrol.ServerDeadline + 5*time.Second

// ErrNotRenewable is wrapped by an error of Renew, beside certs.ErrRefused, when the server says that this leaf will never be
// renewed again: it expired too long ago, its CA is gone, the node is revoked, or its tunnel has ended.
var ErrNotRenewable = errors.New("not renewable")

// Client asks for certificates. Each call makes a new key, but see Asking, and a connection of its own, has a deadline, and tries once. It
// returns the new identity and the trust bundle (PEM) to use with it. An error that wraps certs.ErrRefused is the
// server's last word; after any other it is worth trying again, and a *LimitError says how soon.
type Client struct {
	Way    *dial.Way // the gateways' public port for an edge, the xds-server for a gateway
	Domain model.TunnelDomain
	Trust  certs.TrustSource // whom to take for the xds-server
	Asking *Asking           // for EnrolEdge; nil: each call is an edge of its own
}

// Asking keeps what an edge asks with until there is an answer. While the server is slow an answer may come too late, and whoever
// then asked with another key would be another edge, and another use of the token. The zero value is ready for use; it is not for
// concurrent use.
type Asking struct {
	token string
	key   *ecdsa.PrivateKey
	csr   []byte
}

// with returns the key and the signing request for a token. A nil Asking keeps nothing.
func (a *Asking) with(token string) (*ecdsa.PrivateKey, []byte, error) {
	if a != nil && a.key != nil && a.token == token {
		return a.key, a.csr, nil
	}
	key, csr, err := newRequest()
	if err == nil && a != nil {
		*a = Asking{token, key, csr}
	}
	return key, csr, err
}

func (a *Asking) answered() {
	if a != nil {
		*a = Asking{}
	}
}

func newRequest() (*ecdsa.PrivateKey, []byte, error) {
	key, err := certs.NewKey()
	if err != nil {
		return nil, nil, err
	}
	csr, err := certs.NewCSR(key)
	return key, csr, err
}

// LimitError says that the server has had too many attempts of one kind.
type LimitError struct {
	Message string
	After   time.Duration // when to try again; 0: the server does not say
}

// Error is what the server says. It holds no times, so that an attempt that is limited again is nothing new in a log.
func (e *LimitError) Error() string {
	return "the control channel takes no more at the moment: " + e.Message
}

// RetryAfter is for how long it is of no use to try again.
func (e *LimitError) RetryAfter() time.Duration { return e.After }

// EnrolEdge enrols as an edge of the tunnel that the bootstrap token is for. The host is what the machine calls itself;
// one that can't be a label is left out.
func (c Client) EnrolEdge(ctx context.Context, token, host string) (certs.Identity, []byte, error) {
	if !enrol.ValidHost(host) {
		host = ""
	}
	key, csr, err := c.Asking.with(token)
	if err != nil {
		return certs.Identity{}, nil, err
	}
	identity, bundle, err := c.ask(ctx, nil, key, func(ctx context.Context, service enrolv1.EnrolmentClient) (*enrolv1.Certificate, error) {
		return service.EnrolEdge(ctx, &enrolv1.EnrolEdgeRequest{Token: token, Csr: csr, Host: host})
	})
	if err != nil {
		return certs.Identity{}, nil, fmt.Errorf("enrolling edge by its bootstrap token: %w", err)
	}
	c.Asking.answered()
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
// choice. Its errors tell besides whether it is of use to ask again: see ErrNotRenewable.
func (c Client) Renew(ctx context.Context, current certs.Identity) (certs.Identity, []byte, error) {
	identity, bundle, err := c.call(ctx, holder{current}, func(ctx context.Context, service enrolv1.EnrolmentClient, csr []byte) (*enrolv1.Certificate, error) {
		return service.Renew(ctx, &enrolv1.RenewRequest{Csr: csr})
	})
	if err != nil {
		return certs.Identity{}, nil, fmt.Errorf("renewing certificate of %s: %w", current.Leaf().Subject.CommonName, err)
	}
	return identity, bundle, nil
}

// holder is a Source of one identity.
type holder struct{ identity certs.Identity }

// Identity implements certs.Source.
func (h holder) Identity() (certs.Identity, error) { return h.identity, nil }

// call is ask with a new key. No current identity: nil.
func (c Client) call(ctx context.Context, current certs.Source,
	send func(context.Context, enrolv1.EnrolmentClient, []byte) (*enrolv1.Certificate, error),
) (certs.Identity, []byte, error) {
	key, csr, err := newRequest()
	if err != nil {
		return certs.Identity{}, nil, err
	}
	return c.ask(ctx, current, key, func(ctx context.Context, service enrolv1.EnrolmentClient) (*enrolv1.Certificate, error) {
		return send(ctx, service, csr)
	})
}

// ask sends a signing request for a key, and joins the key with the answer.
func (c Client) ask(ctx context.Context, current certs.Source, key *ecdsa.PrivateKey,
	send func(context.Context, enrolv1.EnrolmentClient) (*enrolv1.Certificate, error),
) (certs.Identity, []byte, error) {
	ctx, cancel := context.WithTimeout(ctx, maxAttempt)
	defer cancel()
	conn, err := dial.Conn(c.Way, c.Domain, c.Trust, current)
	if err != nil {
		return certs.Identity{}, nil, err
	}
	defer conn.Close()
	answer, err := send(ctx, enrolv1.NewEnrolmentClient(conn))
	if err != nil {
		return certs.Identity{}, nil, reason(err)
	}
	identity, err := certs.NewIdentity(answer.GetChain(), key)
	if err != nil {
		return certs.Identity{}, nil, err
	}
	return identity, answer.GetTrustBundle(), c.verify(identity.Leaf(), answer.GetTrustBundle())
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
	case enrol.NotRenewable:
		return fmt.Errorf("%w: %w: %s", certs.ErrRefused, ErrNotRenewable, s.Message())
	case codes.ResourceExhausted:
		return &LimitError{Message: s.Message(), After: retry.Asked(err)}
	case codes.DeadlineExceeded, codes.Canceled:
		return fmt.Errorf("no answer from the control channel: %s", s.Message())
	}
	return fmt.Errorf("the control channel is not usable: %s", s.Message())
}
