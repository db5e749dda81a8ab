// Package caller says who opened a gRPC stream, by the certificate of its connection alone. In goes the context of a call, out comes a
// subject, or the gRPC status that refuses it. It knows nothing of what that subject may do.
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

// Of returns the leaf and the subject of a call, or a gRPC status. TLS has verified the certificate by then; verify says whether it
// is good enough: TLS lets expired ones in, for renewal.
func Of(ctx context.Context, d model.TunnelDomain, verify func(tls.ConnectionState) (*x509.Certificate, error)) (*x509.Certificate, model.Subject, error) {
	var info credentials.TLSInfo
	if p, ok := peer.FromContext(ctx); ok {
		info, _ = p.AuthInfo.(credentials.TLSInfo) // without TLS there is no certificate either
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
