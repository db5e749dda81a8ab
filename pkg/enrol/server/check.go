package server

import (
	"context"
	"crypto/x509"
	"strings"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/fairlead/fairlead/pkg/certs"
	"github.com/fairlead/fairlead/pkg/enrol"
	"github.com/fairlead/fairlead/pkg/enrol/podtoken"
	enrolv1 "github.com/fairlead/fairlead/pkg/enrol/v1"
	"github.com/fairlead/fairlead/pkg/model"
)

// maxServiceAccountToken leaves room for a JWT with many claims. Usual ones have about 1 KiB.
const maxServiceAccountToken = 16 << 10

// edge checks the request of a new edge, or of the Envoy beside an apiserver. Its token decides the tunnel, and the
// Tunnel the role; the request has no field for either. The server decides the node name: a repeated
// request has the same name, so that it is neither another edge nor another use of the token. Looking up a token is
// cheap, verifying a signing request is not: serve does it last.
func (s *Server) edge(ctx context.Context, r *enrolv1.EnrolEdgeRequest) (attempt, error) {
	if r.GetServiceAccountToken() != "" {
		return s.pod(ctx, r)
	}
	if err := checkToken(r.GetToken()); err != nil {
		return attempt{}, err
	}
	hash := enrol.HashToken(r.GetToken())
	node := model.NodeNameFor(hash, r.GetCsr())
	grant, err := s.config.Tokens.EdgeToken(hash, node)
	if err != nil {
		return attempt{}, outcome(err, "cannot check tokens at the moment")
	}
	if err := checkMachine(r); err != nil {
		return attempt{}, err
	}
	return attempt{IssueRequest{
		Subject:   model.Subject{Role: grant.Role(), Node: node, ID: grant.ID},
		Tunnel:    grant.Tunnel,
		CSR:       r.GetCsr(),
		TokenHash: hash,
		Host:      r.GetHost(),
	}, hash, tokenRate}, nil
}

// pod checks the request of an edge in a Pod of its workload cluster. Its ServiceAccount token decides the tunnel, and
// its Pod the node name: a Pod has one name, whatever its key. Attempts are limited before the signature is verified.
func (s *Server) pod(ctx context.Context, r *enrolv1.EnrolEdgeRequest) (attempt, error) {
	token := r.GetServiceAccountToken()
	if s.config.Pods == nil || r.GetToken() != "" || len(token) > podtoken.MaxToken || strings.Count(token, ".") != 2 {
		return attempt{}, status.Error(
			codes.Unauthenticated, "the ServiceAccount token is not accepted here, too long, or not the only credential",
		)
	}
	if err := s.limits.podToken(address(ctx)); err != nil {
		return attempt{}, err
	}
	grant, err := s.config.Pods.PodToken(token)
	if err != nil {
		return attempt{}, outcome(err, "cannot check ServiceAccount tokens at the moment")
	}
	if err := checkMachine(r); err != nil {
		return attempt{}, err
	}
	return attempt{IssueRequest{
		Subject:  model.Subject{Role: grant.Role(), Node: grant.Node, ID: grant.ID},
		Tunnel:   grant.Tunnel,
		CSR:      r.GetCsr(),
		PodToken: token,
		Host:     r.GetHost(),
	}, "pod " + grant.Node + " " + grant.ID, podRate}, nil
}

// checkMachine checks what the machine of an edge sends beside its credential.
func checkMachine(r *enrolv1.EnrolEdgeRequest) error {
	if !enrol.ValidHost(r.GetHost()) {
		return status.Errorf(
			codes.InvalidArgument, "the host name is longer than %d bytes, or is not printable ASCII", enrol.MaxHost,
		)
	}
	return nil
}

// gateway checks the request of a gateway, with either of its credentials.
func (s *Server) gateway(ctx context.Context, r *enrolv1.EnrolGatewayRequest) (attempt, error) {
	if err := model.ValidateGatewayName(r.GetGateway()); err != nil {
		return attempt{}, status.Error(codes.InvalidArgument, err.Error())
	}
	if err := s.gatewayCredential(ctx, r); err != nil {
		return attempt{}, err
	}
	subject := model.Subject{Role: model.RoleGateway, Node: r.GetGateway()}
	// Only after the credential was accepted, because the answer reveals which gateways exist.
	if err := s.config.Renewals.Admit(subject); err != nil {
		return attempt{}, err
	}
	return attempt{IssueRequest{Subject: subject, CSR: r.GetCsr()}, "first " + subject.NodeID(), gatewayRate}, nil
}

func (s *Server) gatewayCredential(ctx context.Context, r *enrolv1.EnrolGatewayRequest) error {
	if token := r.GetServiceAccountToken(); token != "" {
		return s.serviceAccount(ctx, token, r.GetGateway())
	}
	if err := checkToken(r.GetToken()); err != nil {
		return err
	}
	if err := s.config.Tokens.GatewayToken(enrol.HashToken(r.GetToken())); err != nil {
		return outcome(err, "cannot check tokens at the moment")
	}
	return nil
}

func (s *Server) serviceAccount(ctx context.Context, token, gateway string) error {
	if s.config.Reviewer == nil {
		return status.Error(codes.Unauthenticated, "this server does not accept ServiceAccount tokens")
	}
	// Every JWT contains two dots. Anything else is rejected without a request to the apiserver.
	if len(token) > maxServiceAccountToken || strings.Count(token, ".") != 2 {
		return status.Errorf(
			codes.InvalidArgument, "the ServiceAccount token is longer than %d bytes, or is not a JWT", maxServiceAccountToken,
		)
	}
	if err := s.limits.review(address(ctx)); err != nil {
		return err
	}
	if err := s.config.Reviewer.ReviewGateway(ctx, token, gateway); err != nil {
		return outcome(err, "cannot check ServiceAccount tokens at the moment")
	}
	return nil
}

// renewal checks a renewal with a certificate that TLS has verified. The certificate may have expired.
func (s *Server) renewal(r *enrolv1.RenewRequest, leaf *x509.Certificate, subject model.Subject) (attempt, error) {
	a := attempt{IssueRequest{Subject: subject, CSR: r.GetCsr()}, subject.NodeID() + " " + subject.ID, renewalRate(leaf)}
	if subject.Role != model.RoleGateway && !subject.Role.Enrols() {
		return attempt{}, status.Errorf(
			codes.PermissionDenied, "certificates of the role %s are not renewed here", subject.Role,
		)
	}
	if err := s.config.Renewals.Admit(subject); err != nil {
		return attempt{}, err
	}
	if subject.Role.Enrols() {
		var ok bool
		if a.Tunnel, ok = s.config.Renewals.Tunnel(subject.ID); !ok {
			return attempt{}, status.Errorf(codes.Unavailable, "the tunnel %s no longer exists", subject.ID)
		}
	}
	return a, nil
}

// checkCSR verifies a signing request, which costs an ECDSA verification.
func checkCSR(der []byte) error {
	if _, err := certs.ParseCSR(der); err != nil {
		return status.Error(codes.InvalidArgument, err.Error())
	}
	return nil
}

func checkToken(token string) error {
	if !enrol.IsToken(token) {
		return status.Error(codes.Unauthenticated, "the token is not a Fairlead token")
	}
	return nil
}
