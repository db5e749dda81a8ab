package caller_test

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"errors"
	"testing"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/peer"
	"google.golang.org/grpc/status"

	"github.com/fairlead/fairlead/internal/caller"
	"github.com/fairlead/fairlead/pkg/model"
)

const domain model.TunnelDomain = "tunnels.example.com"

func first(state tls.ConnectionState) (*x509.Certificate, error) {
	if len(state.PeerCertificates) == 0 {
		return nil, errors.New("there is none")
	}
	return state.PeerCertificates[0], nil
}

func TestOf(t *testing.T) {
	edge := model.Subject{Role: model.RoleEdge, Node: "edge-1", ID: model.NewID()}
	by := func(info credentials.AuthInfo) context.Context {
		return peer.NewContext(t.Context(), &peer.Peer{AuthInfo: info})
	}
	with := func(name string, names ...string) context.Context {
		leaf := &x509.Certificate{Subject: pkix.Name{CommonName: name}, DNSNames: names}
		return by(credentials.TLSInfo{State: tls.ConnectionState{PeerCertificates: []*x509.Certificate{leaf}}})
	}
	tests := map[string]struct {
		in   context.Context
		want codes.Code
	}{
		"a call without a peer":          {t.Context(), codes.Unauthenticated},
		"a client without TLS":           {by(nil), codes.Unauthenticated},
		"a client without a certificate": {by(credentials.TLSInfo{}), codes.Unauthenticated},
		"a certificate of another kind":  {with("www", "www.example.com"), codes.PermissionDenied},
		"an edge":                        {with(edge.Node, domain.DNSNames(edge)...), codes.OK},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			leaf, subject, err := caller.Of(tc.in, domain, first)
			if status.Code(err) != tc.want {
				t.Fatalf("got %v, want %s", err, tc.want)
			}
			if err == nil && (leaf == nil || subject != edge) {
				t.Errorf("got %v and %+v", leaf, subject)
			}
		})
	}
}
