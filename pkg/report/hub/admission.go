package hub

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	callers "github.com/fairlead/fairlead/internal/caller"
	"github.com/fairlead/fairlead/pkg/certs"
	"github.com/fairlead/fairlead/pkg/model"
)

// Admission decides which agents may report, and which edges gateways deny.
type Admission interface {
	// Admit returns nil, or a gRPC status: codes.FailedPrecondition for an edge that is revoked or whose tunnel has ended,
	// codes.Unavailable while that is not known, or for a tunnel that is not known.
	Admit(subject model.Subject) error
	// Denied returns the denied edges and tunnels, and a channel that is closed when they change.
	Denied() (model.Denied, <-chan struct{})
	// Gateways returns the names of all known gateways of the installation.
	Gateways() []string
}

// caller returns the subject of the certificate that opened a stream. It must have the role. The agents beside
// apiservers may make the calls of edges.
func caller(ctx context.Context, d model.TunnelDomain, role model.Role, now time.Time) (model.Subject, error) {
	verify := func(state tls.ConnectionState) (*x509.Certificate, error) { return certs.VerifyNow(state, now) }
	_, subject, err := callers.Of(ctx, d, verify)
	if err != nil {
		return model.Subject{}, err
	}
	if subject.Role != role && (role != model.RoleEdge || subject.Role != model.RoleEgress) {
		return model.Subject{}, status.Errorf(codes.PermissionDenied, "this call is for the role %s, not for %s", role,
			subject.Role)
	}
	return subject, nil
}
