package enrol

import (
	"context"
	"strings"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/peer"
	"google.golang.org/grpc/status"

	"github.com/fairlead/fairlead/pkg/certs"
	enrolv1 "github.com/fairlead/fairlead/pkg/enrol/v1"
	"github.com/fairlead/fairlead/pkg/model"
)

const (
	// maxHost is the longest DNS name.
	maxHost = 253
	// maxServiceAccountToken is room for a JWT with many claims. Usual ones have about 1 KiB.
	maxServiceAccountToken = 16 << 10
	// notRenewable is what Renew says of a leaf that will never be renewed again, and of nothing else: an agent then enrols
	// anew, as another node, and so cuts its tunnels and uses up its token. After any other code it goes on asking.
	notRenewable = codes.FailedPrecondition
)

// edge checks the request of a new edge. Its token decides the tunnel, the server the node name.
func (s *Server) edge(r *enrolv1.EnrolEdgeRequest) (IssueRequest, error) {
	if err := checkCSR(r.GetCsr()); err != nil {
		return IssueRequest{}, err
	}
	if err := checkToken(r.GetToken()); err != nil {
		return IssueRequest{}, err
	}
	if !printable(r.GetHost()) {
		return IssueRequest{}, status.Errorf(codes.InvalidArgument, "the host name is longer than %d bytes or holds something else than printable ASCII", maxHost)
	}
	hash := HashToken(r.GetToken())
	grant, err := s.config.Tokens.EdgeToken(hash)
	if err != nil {
		return IssueRequest{}, outcome(err, "tokens can't be checked at the moment")
	}
	return IssueRequest{
		Subject:   model.Subject{Role: model.RoleEdge, Node: model.NewNodeName(), ID: grant.ID},
		Tunnel:    grant.Tunnel,
		CSR:       r.GetCsr(),
		TokenHash: hash,
		Host:      r.GetHost(),
	}, nil
}

// gateway checks the request of a gateway, with either of its credentials.
func (s *Server) gateway(ctx context.Context, r *enrolv1.EnrolGatewayRequest) (IssueRequest, error) {
	if err := checkCSR(r.GetCsr()); err != nil {
		return IssueRequest{}, err
	}
	if err := model.ValidateGatewayName(r.GetGateway()); err != nil {
		return IssueRequest{}, status.Error(codes.InvalidArgument, err.Error())
	}
	if err := s.gatewayCredential(ctx, r); err != nil {
		return IssueRequest{}, err
	}
	return IssueRequest{Subject: model.Subject{Role: model.RoleGateway, Node: r.GetGateway()}, CSR: r.GetCsr()}, nil
}

func (s *Server) gatewayCredential(ctx context.Context, r *enrolv1.EnrolGatewayRequest) error {
	if token := r.GetServiceAccountToken(); token != "" {
		if s.config.Reviewer == nil {
			return status.Error(codes.Unauthenticated, "this server takes no ServiceAccount tokens")
		}
		if len(token) > maxServiceAccountToken {
			return status.Errorf(codes.InvalidArgument, "the ServiceAccount token is longer than %d bytes", maxServiceAccountToken)
		}
		if err := s.config.Reviewer.ReviewGateway(ctx, token, r.GetGateway()); err != nil {
			return outcome(err, "ServiceAccount tokens can't be checked at the moment")
		}
		return nil
	}
	if err := checkToken(r.GetToken()); err != nil {
		return err
	}
	if err := s.config.Tokens.GatewayToken(HashToken(r.GetToken())); err != nil {
		return outcome(err, "tokens can't be checked at the moment")
	}
	return nil
}

// renewal checks who renews: the holder of the connection's certificate, which TLS has verified. It may have expired.
func (s *Server) renewal(ctx context.Context, r *enrolv1.RenewRequest) (IssueRequest, error) {
	if err := checkCSR(r.GetCsr()); err != nil {
		return IssueRequest{}, err
	}
	subject, err := s.caller(ctx)
	if err != nil {
		return IssueRequest{}, err
	}
	request := IssueRequest{Subject: subject, CSR: r.GetCsr()}
	switch subject.Role {
	case model.RoleGateway:
		return request, nil
	case model.RoleEdge:
		if !s.config.Renewals.Published() { // asked first: it may become true between the two questions
			return IssueRequest{}, status.Error(codes.Unavailable, "the server does not know the tunnels yet")
		}
		var ok bool
		if request.Tunnel, ok = s.config.Renewals.Tunnel(subject.ID); ok {
			return request, nil
		}
		return IssueRequest{}, status.Errorf(notRenewable, "the tunnel %s has ended", subject.ID)
	}
	return IssueRequest{}, status.Errorf(codes.PermissionDenied, "a certificate of the role %s is not renewed here", subject.Role)
}

func (s *Server) caller(ctx context.Context) (model.Subject, error) {
	p, ok := peer.FromContext(ctx)
	if !ok {
		return model.Subject{}, status.Error(codes.Unauthenticated, certs.ErrNoPeer.Error())
	}
	info, ok := p.AuthInfo.(credentials.TLSInfo)
	if !ok {
		return model.Subject{}, status.Error(codes.Unauthenticated, certs.ErrNoPeer.Error())
	}
	leaf, err := certs.Peer(info.State)
	if err != nil {
		return model.Subject{}, status.Error(codes.Unauthenticated, err.Error())
	}
	subject, err := s.config.Domain.ParseSubject(leaf.Subject.CommonName, leaf.DNSNames)
	if err != nil {
		return model.Subject{}, status.Error(codes.PermissionDenied, err.Error())
	}
	return subject, nil
}

func checkCSR(der []byte) error {
	if _, err := certs.ParseCSR(der); err != nil {
		return status.Error(codes.InvalidArgument, err.Error())
	}
	return nil
}

func checkToken(token string) error {
	if len(token) > maxToken || !strings.HasPrefix(token, tokenPrefix) {
		return status.Error(codes.Unauthenticated, "the token is not one of Fairlead's")
	}
	return nil
}

// printable says whether a label from a machine can go into an object and a log as it is.
func printable(s string) bool {
	return len(s) <= maxHost && !strings.ContainsFunc(s, func(r rune) bool { return r < ' ' || r > '~' })
}
