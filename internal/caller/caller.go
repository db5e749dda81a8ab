// Package caller identifies the caller of a gRPC stream by the certificate of its connection alone. Its input is the
// context of a call. Its output is a subject, or a gRPC status that rejects the call. It does not know what the subject
// is allowed to do.
package caller

import (
	"context"
	"crypto/tls"
	"crypto/x509"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/peer"
	"google.golang.org/grpc/status"

	"github.com/fairlead/fairlead/pkg/model"
)

// Of returns the leaf and the subject of a call, or an error that is a gRPC status. TLS has verified the certificate
// already, but it accepts expired ones, which may be renewed. verify decides whether the certificate is good enough for
// this call.
func Of(
	ctx context.Context, d model.TunnelDomain, verify func(tls.ConnectionState) (*x509.Certificate, error),
) (*x509.Certificate, model.Subject, error) {
	var info credentials.TLSInfo
	if p, ok := peer.FromContext(ctx); ok {
		info, _ = p.AuthInfo.(credentials.TLSInfo) // without TLS the info is zero and has no certificate
	}
	leaf, err := verify(info.State)
	if err != nil {
		return nil, model.Subject{}, status.Error(codes.Unauthenticated, err.Error())
	}
	subject, err := d.ParseSubject(leaf.Subject.CommonName, leaf.DNSNames)
	if err != nil {
		return nil, model.Subject{}, status.Error(codes.PermissionDenied, err.Error())
	}
	return leaf, subject, nil
}
