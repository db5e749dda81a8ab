// Package server is the xds-server's end of enrolment. The input is a request with a credential: a token, a
// ServiceAccount token or a certificate that Fairlead issued. The output is a leaf for the key of the request, or a
// gRPC status with the reason. The package checks and limits requests. It leaves the signing to an Issuer, holds no CA
// key, and does not know Kubernetes.
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

// ErrDenied is wrapped by the errors of an Issuer or Reviewer that denies a request; the caller receives the whole
// error. Any other error means that there was no answer, and the caller should retry.
var ErrDenied = errors.New("denied")

// Tokens looks up the hashes of tokens. For an unknown hash the error is enrol.ErrUnknownToken.
type Tokens interface {
	// EdgeToken returns what the token with this hash grants to a node that enrols.
	EdgeToken(hash, node string) (enrol.Grant, error)
	GatewayToken(hash string) error
}

// Reviewer decides whether a Kubernetes ServiceAccount token belongs to the gateway with this name.
type Reviewer interface {
	ReviewGateway(ctx context.Context, serviceAccountToken, gateway string) error
}

// PodTokens verifies the ServiceAccount tokens of Pods of workload clusters. An error that wraps enrol.ErrDeniedToken
// is for the caller.
type PodTokens interface {
	PodToken(serviceAccountToken string) (enrol.PodGrant, error)
}

// IssueRequest requests a leaf for a subject whose credential was checked.
type IssueRequest struct {
	Subject   model.Subject
	Tunnel    model.Key // only for a role that enrols with a Tunnel
	CSR       []byte    // PKCS #10, DER; its key is proven and of an accepted kind
	TokenHash string    // only for the first leaf of an edge with a bootstrap token
	PodToken  string    // only for a leaf of an edge with a ServiceAccount token; the signer verifies it again
	Host      string    // the machine's own name
}

// Issuer gets leaves signed. It returns them as PEM, leaf first.
type Issuer interface {
	Issue(ctx context.Context, request IssueRequest) (chainPEM []byte, err error)
}

// Renewals decides which leaves are renewed, and which gateways get a first one.
type Renewals interface {
	// Admit returns nil, or a gRPC status for the caller: enrol.NotRenewable if the subject is rejected forever,
	// codes.Unavailable if this is currently unknown.
	Admit(subject model.Subject) error
	// Tunnel returns the Tunnel with an id, and false if there is none.
	Tunnel(id string) (model.Key, bool)
}

// Config are the dependencies of a Server. All fields are required except Boot, Reviewer, Pods and Refused. Without a
// Reviewer, ServiceAccount tokens of gateways are rejected; without Pods, those of edges.
type Config struct {
	Domain   model.TunnelDomain
	Tokens   Tokens
	Reviewer Reviewer
	Pods     PodTokens
	Issuer   Issuer
	Renewals Renewals
	Trust    func() []byte // the trust bundle in PEM; empty: not known yet
	Log      *slog.Logger
	Boot     *BootConfig // nil: boot reports are rejected
	// Refused is called with the address of a caller whose credential was rejected, and the reason. It must not block.
	// It may be nil.
	Refused func(address string, why error)
}

// Server implements the service. It is safe for concurrent use.
type Server struct {
	enrolv1.UnimplementedEnrolmentServer
	config Config
	limits *limits
}

// New returns a Server for a gRPC server whose TLS configuration is certs.ServerTLS.
func New(config Config) *Server {
	return &Server{config: config, limits: newLimits()}
}

// EnrolEdge implements the service.
func (s *Server) EnrolEdge(ctx context.Context, r *enrolv1.EnrolEdgeRequest) (*enrolv1.Certificate, error) {
	return s.serve(ctx, address(ctx), func(ctx context.Context) (attempt, error) { return s.edge(ctx, r) })
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
	// A verified client is identified by its name and not by its address, which it may share with many.
	return s.serve(
		ctx, subject.NodeID()+" "+subject.ID, func(context.Context) (attempt, error) { return s.renewal(r, leaf, subject) },
	)
}

// attempt is a request whose credential was checked, but not its CSR.
type attempt struct {
	IssueRequest
	key  string // the key of its rate: a token's hash or a node id
	rate limit.Rate
}

// serve runs check and the Issuer for a caller, within the limits, and logs the result.
func (s *Server) serve(
	ctx context.Context, caller string, check func(context.Context) (attempt, error),
) (*enrolv1.Certificate, error) {
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
		return nil, s.reject(log, caller, err)
	}
	if wait := s.limits.attempts.Take(request.key, request.rate); wait > 0 {
		return nil, retry.Later("too many certificates for one token or node", wait)
	}
	if err := checkCSR(request.CSR); err != nil {
		return nil, s.reject(log, caller, err)
	}
	release, err := s.limits.ofTunnel(request)
	if err != nil {
		return nil, err
	}
	defer release()
	log = log.With("role", request.Subject.Role, "node", request.Subject.Node, "cluster", request.Tunnel.String())
	certificate, err := s.issue(ctx, request.IssueRequest)
	if err != nil {
		if s.limits.logged.Take(request.key, logRate) == 0 {
			log.Warn("cannot issue certificate", "error", err)
		}
		return nil, outcome(err, "cannot sign certificates at the moment")
	}
	log.Info("certificate issued")
	return certificate, nil
}

// reject counts and logs a rejection, and returns the status for the caller. A caller that is rejected repeatedly only
// gets a rate limit error, and does not fill the log. This keeps out no caller with a valid credential, because
// credentials are checked first.
func (s *Server) reject(log *slog.Logger, caller string, err error) error {
	if code := status.Code(err); s.config.Refused != nil &&
		(code == codes.Unauthenticated || code == codes.PermissionDenied) {
		s.config.Refused(caller, err)
	}
	switch status.Code(err) {
	case codes.ResourceExhausted:
		return err
	case codes.Unavailable: // callers that wait for a tunnel retry often
		if s.limits.logged.Take(caller, logRate) > 0 {
			return err
		}
	default:
		if wait := s.limits.rejections.Take(caller, rejectionRate); wait > 0 {
			return retry.Later("too many rejected attempts", wait)
		}
	}
	log.Warn("enrolment rejected", "error", err)
	return err
}

func (s *Server) issue(ctx context.Context, request IssueRequest) (*enrolv1.Certificate, error) {
	bundle := s.config.Trust()
	if len(bundle) == 0 {
		return nil, errors.New("the trust bundle is not available yet")
	}
	chain, err := s.config.Issuer.Issue(ctx, request)
	if err != nil {
		return nil, err
	}
	return &enrolv1.Certificate{Chain: chain, TrustBundle: bundle}, nil
}

// outcome returns the status for an error. The caller receives the text of a denial. For any other error it receives
// only otherwise, because the error may contain internal information.
func outcome(err error, otherwise string) error {
	switch {
	case errors.Is(err, enrol.ErrUnknownToken):
		return status.Error(codes.Unauthenticated, enrol.ErrUnknownToken.Error())
	case errors.Is(err, ErrDenied), errors.Is(err, enrol.ErrDeniedToken):
		return status.Error(codes.PermissionDenied, err.Error())
	}
	return status.Error(codes.Unavailable, otherwise)
}

// remote returns the caller's address for logs, address the one for rate limits.
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
