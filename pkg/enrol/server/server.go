// Package server is the xds-server's end of enrolment. In goes a request with a credential: a token, a ServiceAccount token or
// a certificate of ours. Out comes a leaf for the key of the request, or a gRPC status that says why not. It checks and bounds
// requests. It leaves the signing to an Issuer, holds no CA key, and knows no Kubernetes.
package server

import (
	"context"
	"errors"
	"log/slog"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/peer"
	"google.golang.org/grpc/status"

	"github.com/fairlead/fairlead/internal/caller"
	"github.com/fairlead/fairlead/internal/limit"
	"github.com/fairlead/fairlead/internal/retry"
	"github.com/fairlead/fairlead/pkg/certs"
	"github.com/fairlead/fairlead/pkg/enrol"
	enrolv1 "github.com/fairlead/fairlead/pkg/enrol/v1"
	"github.com/fairlead/fairlead/pkg/model"
)

// ErrDenied is wrapped by the errors of an Issuer or Reviewer that says no; the caller is told the whole error. Any
// other error means that it could not be asked, and the caller should try again.
var ErrDenied = errors.New("denied")

// Tokens knows the hashes of tokens. Where nothing is known of a hash the error is ErrUnknownToken.
type Tokens interface {
	EdgeToken(hash string) (enrol.Grant, error)
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

// Renewals decides whose leaf is renewed, and which gateways get a first one.
type Renewals interface {
	// Admit returns nil, or a gRPC status for the caller: codes.FailedPrecondition where it will never be let in again,
	// codes.Unavailable where that is not known.
	Admit(subject model.Subject) error
	// Tunnel returns whose tunnel has an id, false if nobody's.
	Tunnel(id string) (model.Key, bool)
}

// Config is what a Server stands on. All fields are needed but Boot; Reviewer may be nil where no gateway runs in Kubernetes.
type Config struct {
	Domain   model.TunnelDomain
	Tokens   Tokens
	Reviewer Reviewer
	Issuer   Issuer
	Renewals Renewals
	Trust    func() []byte // the trust bundle in PEM; empty: not known yet
	Log      *slog.Logger
	Boot     *BootConfig // nil: boot reports are not taken
	// Refused is told of a caller whose credential is of no use, and why; nil: nobody is. It must not block.
	Refused func(address string, why error)
}

// Server implements the service. It is safe for concurrent use.
type Server struct {
	enrolv1.UnimplementedEnrolmentServer
	config Config
	limits *limits
}

// New returns a server for a gRPC server whose TLS is certs.ServerTLS.
func New(config Config) *Server {
	return &Server{config: config, limits: newLimits()}
}

// EnrolEdge implements the service.
func (s *Server) EnrolEdge(ctx context.Context, r *enrolv1.EnrolEdgeRequest) (*enrolv1.Certificate, error) {
	return s.serve(ctx, address(ctx), func(context.Context) (attempt, error) { return s.edge(r) })
}

// EnrolGateway implements the service.
func (s *Server) EnrolGateway(ctx context.Context, r *enrolv1.EnrolGatewayRequest) (*enrolv1.Certificate, error) {
	return s.serve(ctx, address(ctx), func(ctx context.Context) (attempt, error) { return s.gateway(ctx, r) })
}

// Renew implements the service.
func (s *Server) Renew(ctx context.Context, r *enrolv1.RenewRequest) (*enrolv1.Certificate, error) {
	leaf, subject, err := caller.Of(ctx, s.config.Domain, certs.Peer)
	if err != nil {
		return s.serve(ctx, address(ctx), func(context.Context) (attempt, error) { return attempt{}, err })
	}
	// Of one whom TLS has verified the name counts, not the address, which it may share with many.
	return s.serve(ctx, subject.NodeID()+" "+subject.ID, func(context.Context) (attempt, error) { return s.renewal(r, leaf, subject) })
}

// attempt is a request whose credential was checked.
type attempt struct {
	IssueRequest
	key  string // what its rate is counted by: a token's hash or a node id
	rate limit.Rate
}

// serve bounds and logs what check and the Issuer do for a caller.
func (s *Server) serve(ctx context.Context, caller string, check func(context.Context) (attempt, error)) (*enrolv1.Certificate, error) {
	done := s.limits.inFlight.Take(caller)
	if done == nil {
		return nil, retry.Later("the server has too many requests at the moment", busyTime)
	}
	defer done()
	ctx, cancel := context.WithTimeout(ctx, enrol.ServerDeadline)
	defer cancel()
	log := s.config.Log.With("address", remote(ctx))
	request, err := check(ctx)
	if err != nil {
		return nil, s.refuse(log, caller, err)
	}
	if wait := s.limits.attempts.Take(request.key, request.rate); wait > 0 {
		return nil, retry.Later("too many certificates for one token or node", wait)
	}
	release, err := s.limits.ofTunnel(request)
	if err != nil {
		return nil, err
	}
	defer release()
	log = log.With("role", request.Subject.Role, "node", request.Subject.Node, "cluster", request.Tunnel.String())
	certificate, err := s.issue(ctx, request.IssueRequest)
	if err != nil {
		if s.limits.said.Take(request.key, sayRate) == 0 {
			log.Warn("no certificate issued", "error", err)
		}
		return nil, outcome(err, "a signature can't be had at the moment")
	}
	log.Info("certificate issued")
	return certificate, nil
}

// refuse counts and logs a refusal, and returns what the caller hears of it. Whoever is refused again and again hears only
// that, and fills no log. It keeps nobody away who has the right credential: that is looked at first.
func (s *Server) refuse(log *slog.Logger, caller string, err error) error {
	if code := status.Code(err); s.config.Refused != nil && (code == codes.Unauthenticated || code == codes.PermissionDenied) {
		s.config.Refused(caller, err)
	}
	switch status.Code(err) {
	case codes.ResourceExhausted:
		return err
	case codes.Unavailable: // whoever waits for a tunnel asks often
		if s.limits.said.Take(caller, sayRate) > 0 {
			return err
		}
	default:
		if wait := s.limits.refusals.Take(caller, refusalRate); wait > 0 {
			return retry.Later("too many attempts were refused", wait)
		}
	}
	log.Warn("enrolment refused", "error", err)
	return err
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
	case errors.Is(err, enrol.ErrUnknownToken):
		return status.Error(codes.Unauthenticated, enrol.ErrUnknownToken.Error())
	case errors.Is(err, ErrDenied):
		return status.Error(codes.PermissionDenied, err.Error())
	}
	return status.Error(codes.Unavailable, otherwise)
}

// remote is the caller's address for people, address that by which it is counted.
func remote(ctx context.Context) string {
	if p, ok := peer.FromContext(ctx); ok {
		return p.Addr.String()
	}
	return ""
}

func address(ctx context.Context) string {
	if p, ok := peer.FromContext(ctx); ok {
		return limit.Address(p.Addr)
	}
	return ""
}
