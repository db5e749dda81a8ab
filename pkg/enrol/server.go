// Package enrol is the control channel's own service, both ends of it: a machine that has a credential gets a certificate
// for a key that it made, and renews it by that key. The server checks the credential and leaves the signing to an Issuer;
// it holds no CA key and knows no Kubernetes.
package enrol

import (
	"context"
	"errors"
	"log/slog"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/peer"
	"google.golang.org/grpc/status"

	enrolv1 "github.com/fairlead/fairlead/pkg/enrol/v1"
	"github.com/fairlead/fairlead/pkg/model"
)

var (
	// ErrUnknownToken is what Tokens returns for a token that is not there, has expired or is used up.
	ErrUnknownToken = errors.New("the token is unknown, has expired or is used up")
	// ErrDenied is wrapped by the errors of an Issuer or Reviewer that says no; the caller is told the whole error. Any
	// other error means that it could not be asked, and the caller should try again.
	ErrDenied = errors.New("denied")
)

// Grant is what a bootstrap token entitles to: a leaf for one tunnel.
type Grant struct {
	Tunnel model.Key
	ID     string // Tunnel.spec.id
}

// Tokens knows the hashes of tokens. Where nothing is known of a hash the error is ErrUnknownToken.
type Tokens interface {
	EdgeToken(hash string) (Grant, error)
	GatewayToken(hash string) error
}

// Reviewer decides whether a Kubernetes ServiceAccount token is that of the gateway with this name.
type Reviewer interface {
	ReviewGateway(ctx context.Context, serviceAccountToken, gateway string) error
}

// IssueRequest asks for a leaf for a subject whose credential was checked.
type IssueRequest struct {
	Subject   model.Subject
	Tunnel    model.Key // only for an edge
	CSR       []byte    // PKCS #10, DER; its key is proven and of a kind that we take
	TokenHash string    // only for the first leaf of an edge
	Host      string    // what the machine calls itself
}

// Issuer has leaves signed. It returns them as PEM, leaf first.
type Issuer interface {
	Issue(ctx context.Context, request IssueRequest) (chainPEM []byte, err error)
}

// Renewals knows which tunnels there are now: a leaf of one that has ended is not renewed. Before Published is true it knows
// nothing, and that it has no tunnel does not say that the tunnel has ended.
type Renewals interface {
	Published() bool
	Tunnel(id string) (model.Key, bool)
}

const (
	// maxInFlight bounds what callers, whom anybody on the internet may be, can have us hold at a time.
	maxInFlight = 64
	// maxServing is longer than an Issuer waits for its signer, so that the caller hears the reason.
	maxServing = 20 * time.Second
)

// Config is what a Server stands on. All fields are needed; Reviewer may be nil where no gateway runs in Kubernetes.
type Config struct {
	Domain   model.TunnelDomain
	Tokens   Tokens
	Reviewer Reviewer
	Issuer   Issuer
	Renewals Renewals
	Trust    func() []byte // the trust bundle in PEM; empty: not known yet
	Log      *slog.Logger
}

// Server implements the service. It is safe for concurrent use.
type Server struct {
	enrolv1.UnimplementedEnrolmentServer
	config   Config
	inFlight chan struct{}
}

// NewServer returns a server for a gRPC server whose TLS is certs.ServerTLS.
func NewServer(config Config) *Server {
	return &Server{config: config, inFlight: make(chan struct{}, maxInFlight)}
}

// EnrolEdge implements the service.
func (s *Server) EnrolEdge(ctx context.Context, r *enrolv1.EnrolEdgeRequest) (*enrolv1.Certificate, error) {
	return s.serve(ctx, func() (IssueRequest, error) { return s.edge(r) })
}

// EnrolGateway implements the service.
func (s *Server) EnrolGateway(ctx context.Context, r *enrolv1.EnrolGatewayRequest) (*enrolv1.Certificate, error) {
	return s.serve(ctx, func() (IssueRequest, error) { return s.gateway(ctx, r) })
}

// Renew implements the service.
func (s *Server) Renew(ctx context.Context, r *enrolv1.RenewRequest) (*enrolv1.Certificate, error) {
	return s.serve(ctx, func() (IssueRequest, error) { return s.renewal(ctx, r) })
}

// serve bounds and logs what check and the Issuer do.
func (s *Server) serve(ctx context.Context, check func() (IssueRequest, error)) (*enrolv1.Certificate, error) {
	select {
	case s.inFlight <- struct{}{}:
		defer func() { <-s.inFlight }()
	default:
		return nil, status.Error(codes.ResourceExhausted, "the server has too many requests at the moment")
	}
	ctx, cancel := context.WithTimeout(ctx, maxServing)
	defer cancel()
	log := s.config.Log.With("address", remote(ctx))
	request, err := check()
	if err != nil {
		log.Warn("enrolment refused", "error", err)
		return nil, err
	}
	log = log.With("role", request.Subject.Role, "node", request.Subject.Node, "cluster", request.Tunnel.String())
	certificate, err := s.issue(ctx, request)
	if err != nil {
		log.Warn("no certificate issued", "error", err)
		return nil, outcome(err, "a signature can't be had at the moment")
	}
	log.Info("certificate issued")
	return certificate, nil
}

func (s *Server) issue(ctx context.Context, request IssueRequest) (*enrolv1.Certificate, error) {
	bundle := s.config.Trust()
	if len(bundle) == 0 {
		return nil, errors.New("the trust bundle is not known yet")
	}
	chain, err := s.config.Issuer.Issue(ctx, request)
	if err != nil {
		return nil, err
	}
	return &enrolv1.Certificate{Chain: chain, TrustBundle: bundle}, nil
}

// outcome tells the caller of a denial what it says, and of any other error nothing but to try again: the error may hold
// what is none of the caller's business.
func outcome(err error, otherwise string) error {
	switch {
	case errors.Is(err, ErrUnknownToken):
		return status.Error(codes.Unauthenticated, ErrUnknownToken.Error())
	case errors.Is(err, ErrDenied):
		return status.Error(codes.PermissionDenied, err.Error())
	}
	return status.Error(codes.Unavailable, otherwise)
}

func remote(ctx context.Context) string {
	if p, ok := peer.FromContext(ctx); ok {
		return p.Addr.String()
	}
	return ""
}
