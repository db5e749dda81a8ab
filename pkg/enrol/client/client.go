// Package client is the machine's end of enrolment. The input is a credential; the output is an identity: a leaf for a
// key that the client creates, and its trust bundle. The package also renews an identity by its key, and sends boot
// reports. It stores nothing on disk, and each call is one attempt.
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

// maxAttempt is longer than the server's deadline, so that the client receives the server's reason.
const maxAttempt = enrol.ServerDeadline + 5*time.Second

// ErrNotRenewable is wrapped by an error of Renew, in addition to certs.ErrRefused, if this leaf can never be renewed
// again: it expired too long ago, its CA is gone, the node is revoked, or its tunnel has ended.
var ErrNotRenewable = errors.New("not renewable")

// Client requests certificates. Each call opens its own connection, has a deadline and tries once. It creates a new
// key, except as described at Asking. It returns the new identity and its trust bundle (PEM). An error that wraps
// certs.ErrRefused means that a retry fails as well; after any other error the caller should retry, and a *LimitError
// states when.
type Client struct {
	Dialer *dial.Dialer // the gateways' public port for an edge, the xds-server for a gateway
	Domain model.TunnelDomain
	Trust  certs.TrustSource // CAs of the xds-server
	Asking *Asking           // for EnrolEdge and EnrolPod; nil: each call enrols a new edge
}

// Asking stores the request of an edge until it is answered. If the server is slow, its answer may be too late, and a
// retry with another key would be another edge and another use of the token. The zero value is ready for use. It is
// not safe for concurrent use.
type Asking struct {
	token string
	key   *ecdsa.PrivateKey
	csr   []byte
}

// request returns the key and the signing request for a token. A nil Asking stores nothing.
func (a *Asking) request(token string) (*ecdsa.PrivateKey, []byte, error) {
	if a != nil && a.key != nil && a.token == token {
		return a.key, a.csr, nil
	}
	key, csr, err := newRequest()
	if err == nil && a != nil {
		*a = Asking{token, key, csr}
	}
	return key, csr, err
}

func (a *Asking) clear() {
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

// LimitError means that the server rejected the call because of a rate limit.
type LimitError struct {
	Message string
	After   time.Duration // how long to wait; 0: unknown
}

// Error returns the server's message. It contains no times, so that repeated rejections have the same text in a log.
func (e *LimitError) Error() string {
	return "the control channel accepts no more requests at the moment: " + e.Message
}

// RetryAfter returns how long to wait before the next attempt.
func (e *LimitError) RetryAfter() time.Duration { return e.After }

// EnrolEdge enrols as an edge of the tunnel of a bootstrap token. host is the machine's own name; it is omitted if it
// is not a valid label.
func (c Client) EnrolEdge(ctx context.Context, token, host string) (certs.Identity, []byte, error) {
	identity, bundle, err := c.enrolEdge(ctx, token, host, func(r *enrolv1.EnrolEdgeRequest) { r.Token = token })
	if err != nil {
		return certs.Identity{}, nil, fmt.Errorf("enrolling edge by its bootstrap token: %w", err)
	}
	return identity, bundle, nil
}

// EnrolPod is like EnrolEdge, for an edge in a Pod of its workload cluster. The token is one of the ServiceAccount of
// the Pod, with the audience of the tunnel.
func (c Client) EnrolPod(ctx context.Context, serviceAccountToken, host string) (certs.Identity, []byte, error) {
	identity, bundle, err := c.enrolEdge(ctx, serviceAccountToken, host, func(r *enrolv1.EnrolEdgeRequest) {
		r.ServiceAccountToken = serviceAccountToken
	})
	if err != nil {
		return certs.Identity{}, nil, fmt.Errorf("enrolling edge by the ServiceAccount token of its Pod: %w", err)
	}
	return identity, bundle, nil
}

// enrolEdge enrols as an edge with a token, which credential puts into the request.
func (c Client) enrolEdge(
	ctx context.Context, token, host string, credential func(*enrolv1.EnrolEdgeRequest),
) (certs.Identity, []byte, error) {
	if !enrol.ValidHost(host) {
		host = ""
	}
	key, csr, err := c.Asking.request(token)
	if err != nil {
		return certs.Identity{}, nil, err
	}
	request := &enrolv1.EnrolEdgeRequest{Csr: csr, Host: host}
	credential(request)
	identity, bundle, err := c.exchange(
		ctx,
		nil,
		key,
		func(ctx context.Context, service enrolv1.EnrolmentClient) (*enrolv1.Certificate, error) {
			return service.EnrolEdge(ctx, request)
		},
	)
	if err == nil {
		c.Asking.clear()
	}
	return identity, bundle, err
}

// GatewayCredential is either the gateway token or a Kubernetes ServiceAccount token. The latter takes precedence.
type GatewayCredential struct{ Token, ServiceAccountToken string }

// EnrolGateway enrols as the gateway with this name.
func (c Client) EnrolGateway(
	ctx context.Context, name string, credential GatewayCredential,
) (certs.Identity, []byte, error) {
	request := &enrolv1.EnrolGatewayRequest{
		Gateway:    name,
		Credential: &enrolv1.EnrolGatewayRequest_Token{Token: credential.Token},
	}
	if credential.ServiceAccountToken != "" {
		request.Credential = &enrolv1.EnrolGatewayRequest_ServiceAccountToken{
			ServiceAccountToken: credential.ServiceAccountToken,
		}
	}
	identity, bundle, err := c.call(
		ctx,
		nil,
		func(ctx context.Context, service enrolv1.EnrolmentClient, csr []byte) (*enrolv1.Certificate, error) {
			request.Csr = csr
			return service.EnrolGateway(ctx, request)
		},
	)
	if err != nil {
		return certs.Identity{}, nil, fmt.Errorf("enrolling %s: %w", name, err)
	}
	return identity, bundle, nil
}

// Renew requests a leaf of the same subject for a new key, and rejects one of another subject. The current leaf may
// have expired; the server decides for how long it accepts that. An error that wraps ErrNotRenewable means that the
// leaf can never be renewed.
func (c Client) Renew(ctx context.Context, current certs.Identity) (certs.Identity, []byte, error) {
	identity, bundle, err := c.call(
		ctx,
		holder{current},
		func(ctx context.Context, service enrolv1.EnrolmentClient, csr []byte) (*enrolv1.Certificate, error) {
			return service.Renew(ctx, &enrolv1.RenewRequest{Csr: csr})
		},
	)
	if err == nil {
		err = c.compare(current.Leaf(), identity.Leaf())
	}
	if err != nil {
		return certs.Identity{}, nil, fmt.Errorf("renewing certificate of %s: %w", current.Leaf().Subject.CommonName, err)
	}
	return identity, bundle, nil
}

// holder is a Source of one identity.
type holder struct{ identity certs.Identity }

// Identity implements certs.Source.
func (h holder) Identity() (certs.Identity, error) { return h.identity, nil }

// call is exchange with a new key. current is nil if there is no identity yet.
func (c Client) call(ctx context.Context, current certs.Source,
	send func(context.Context, enrolv1.EnrolmentClient, []byte) (*enrolv1.Certificate, error),
) (certs.Identity, []byte, error) {
	key, csr, err := newRequest()
	if err != nil {
		return certs.Identity{}, nil, err
	}
	return c.exchange(
		ctx,
		current,
		key,
		func(ctx context.Context, service enrolv1.EnrolmentClient) (*enrolv1.Certificate, error) {
			return send(ctx, service, csr)
		},
	)
}

// exchange sends a signing request for a key, and combines the key with the returned chain.
func (c Client) exchange(ctx context.Context, current certs.Source, key *ecdsa.PrivateKey,
	send func(context.Context, enrolv1.EnrolmentClient) (*enrolv1.Certificate, error),
) (certs.Identity, []byte, error) {
	ctx, cancel := context.WithTimeout(ctx, maxAttempt)
	defer cancel()
	conn, err := dial.Conn(c.Dialer, c.Domain, c.Trust, current)
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

// verify checks that Envoy can use the new leaf, before it replaces the current one.
func (c Client) verify(leaf *x509.Certificate, bundle []byte) error {
	roots, err := certs.Bundle(bundle).Roots()
	if err != nil {
		return err
	}
	if _, err := leaf.Verify(x509.VerifyOptions{
		Roots:     roots,
		KeyUsages: []x509.ExtKeyUsage{x509.ExtKeyUsageAny},
	}); err != nil {
		return fmt.Errorf("verifying the new certificate: %w", err)
	}
	if _, err := c.Domain.ParseSubject(leaf.Subject.CommonName, leaf.DNSNames); err != nil {
		return fmt.Errorf("reading the new certificate: %w", err)
	}
	return nil
}

// compare returns an error if the next leaf has another subject than the current one. No installation changes the
// subject of a node, and one must not give a node the name of another installation's node on the same machine.
func (c Client) compare(current, next *x509.Certificate) error {
	is, err := c.Domain.ParseSubject(current.Subject.CommonName, current.DNSNames)
	if err != nil {
		return fmt.Errorf("reading the current certificate: %w", err)
	}
	to, err := c.Domain.ParseSubject(next.Subject.CommonName, next.DNSNames)
	if err != nil {
		return fmt.Errorf("reading the new certificate: %w", err)
	}
	if to != is {
		return fmt.Errorf(
			"checking the new certificate: %w: its node name, role and tunnel are %s, %s and %q, and were %s, %s and %q",
			certs.ErrRefused, to.Node, to.Role, to.ID, is.Node, is.Role, is.ID,
		)
	}
	return nil
}

// reason converts a gRPC status to a readable error. Rejections wrap certs.ErrRefused.
func reason(err error) error {
	s := status.Convert(err)
	switch s.Code() {
	case codes.InvalidArgument, codes.Unauthenticated, codes.PermissionDenied, codes.Unimplemented:
		return fmt.Errorf("%w: %s", certs.ErrRefused, s.Message())
	case enrol.NotRenewable:
		return fmt.Errorf("%w: %w: %s", certs.ErrRefused, ErrNotRenewable, s.Message())
	case codes.ResourceExhausted:
		return &LimitError{Message: s.Message(), After: retry.RequestedWait(err)}
	case codes.DeadlineExceeded, codes.Canceled:
		return fmt.Errorf("no answer from the control channel: %s", s.Message())
	}
	return fmt.Errorf("the control channel is not usable: %s", s.Message())
}
