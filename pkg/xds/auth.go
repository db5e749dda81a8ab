package xds

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"time"

	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	callers "github.com/fairlead/fairlead/internal/caller"
	"github.com/fairlead/fairlead/internal/printable"
	"github.com/fairlead/fairlead/pkg/certs"
	"github.com/fairlead/fairlead/pkg/model"
)

// caller returns the subject of the certificate with which a stream was opened. TLS has verified the certificate,
// but accepts expired ones for renewal, so caller checks the time.
func caller(ctx context.Context, d model.TunnelDomain, now time.Time) (model.Subject, error) {
	_, subject, err := callers.Of(
		ctx, d, func(state tls.ConnectionState) (*x509.Certificate, error) { return certs.VerifyNow(state, now) },
	)
	if err != nil {
		return model.Subject{}, err
	}
	if !subject.Role.Enrols() && subject.Role != model.RoleGateway {
		return model.Subject{}, status.Errorf(codes.PermissionDenied, "the role %s has no configuration", subject.Role)
	}
	return subject, nil
}

// checkNode returns an error if a request claims another node than the certificate.
func checkNode(node *corev3.Node, subject model.Subject) error {
	if node.GetId() != subject.NodeID() {
		return status.Errorf(
			codes.PermissionDenied, "node id %q does not match the certificate's, %s", printable.Text(node.GetId(), maxQuoted),
			subject.NodeID(),
		)
	}
	return nil
}
