package admission

import (
	"context"
	"crypto/x509"
	"encoding/pem"
	"errors"
	"net/netip"
	"net/url"
	"time"

	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	authv3 "github.com/envoyproxy/go-control-plane/envoy/service/auth/v3"
	ratelimitv3 "github.com/envoyproxy/go-control-plane/envoy/service/ratelimit/v3"
	statusv3 "google.golang.org/genproto/googleapis/rpc/status"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/metadata"

	"github.com/fairlead/fairlead/pkg/model"
)

var (
	errNoCertificate = errors.New("the request has no certificate of an edge")
	errNoAddress     = errors.New("the request has no address of the connection")
)

// Server answers the filters of a gateway's Envoy. All fields must be set before Register.
type Server struct {
	Control *Control
	Domain  model.TunnelDomain
	// SourceKey is the key of the descriptor entry with the source address. RelayedKey is the key of the entry that
	// marks a relayed connection.
	SourceKey, RelayedKey string
	// StreamsKey is the key in the metadata of calls about connections that are no reverse tunnels.
	StreamsKey string
	// Counts returns the live reverse tunnels of an edge, of its tunnel id, and of all edges. Live reports whether the
	// reverse tunnel on a connection is one of them.
	Counts func(model.EdgeRef) (ofEdge, ofID, ofAll int)
	Live   func(remote, local netip.AddrPort) bool
	// Denied reports whether an edge is revoked or its tunnel id has ended.
	Denied func(model.EdgeRef) bool
	// Claim records the node of a connection that is no reverse tunnel. permitted is false if the node is denied. Else
	// ofNode and ofID are the numbers of its other connections and of those of all nodes of its tunnel id. If one of them
	// is not below its maximum, nothing is recorded.
	Claim func(node model.Subject, remote, local netip.AddrPort, mostOfNode, mostOfID int) (
		ofNode, ofID int, permitted bool)
	// Tunnels returns how many reverse tunnels an edge of a tunnel id is configured to keep to this gateway.
	Tunnels func(id string) int
	// Decided is called with each decision. edge is the zero value before authentication. It must return quickly.
	Decided func(Reason, netip.Addr, model.EdgeRef)
}

// Register registers both services with the server that Envoy calls.
func (s *Server) Register(to *grpc.Server) {
	ratelimitv3.RegisterRateLimitServiceServer(to, connections{Server: s})
	authv3.RegisterAuthorizationServer(to, tunnels{Server: s})
}

// connections answers before TLS.
type connections struct {
	ratelimitv3.UnimplementedRateLimitServiceServer
	*Server
}

// ShouldRateLimit implements the service of Envoy's rate limit filter. A request without a source address counts for
// the invalid address as its source.
func (s connections) ShouldRateLimit(
	_ context.Context, request *ratelimitv3.RateLimitRequest,
) (*ratelimitv3.RateLimitResponse, error) {
	kind, from := Terminated, netip.Addr{}
	for _, descriptor := range request.GetDescriptors() {
		for _, entry := range descriptor.GetEntries() {
			switch entry.GetKey() {
			case s.SourceKey:
				from, _ = netip.ParseAddr(entry.GetValue())
			case s.RelayedKey:
				kind = Relayed
			}
		}
	}
	reason := s.Control.Connection(time.Now(), from, kind)
	s.Decided(reason, from, model.EdgeRef{})
	code := ratelimitv3.RateLimitResponse_OK
	if reason != Admitted {
		code = ratelimitv3.RateLimitResponse_OVER_LIMIT
	}
	return &ratelimitv3.RateLimitResponse{OverallCode: code}, nil
}

// tunnels answers after TLS.
type tunnels struct {
	authv3.UnimplementedAuthorizationServer
	*Server
}

// Check implements the service of Envoy's external authorization filter. TLS has verified the certificate; Check
// rejects a certificate that does not name a node of the filter chain, and a denied node: an Envoy that has just
// started may have a deny list from before the denial, and filter chains with streams have none. So these admit no node
// while it is not known what is denied.
func (s tunnels) Check(ctx context.Context, request *authv3.CheckRequest) (*authv3.CheckResponse, error) {
	streams := len(metadata.ValueFromIncomingContext(ctx, s.StreamsKey)) > 0
	node, err := s.nodeOf(request.GetAttributes().GetSource().GetCertificate(), streams)
	edge := model.EdgeRef{Node: node.Node, ID: node.ID}
	if err != nil || !streams && s.Denied(edge) {
		return answer(codes.PermissionDenied), nil //nolint:nilerr // the response carries the error
	}
	remote, errRemote := addressOf(request.GetAttributes().GetSource().GetAddress())
	local, errLocal := addressOf(request.GetAttributes().GetDestination().GetAddress())
	if err := errors.Join(errRemote, errLocal); err != nil {
		return answer(codes.InvalidArgument), nil //nolint:nilerr // the response carries the error
	}
	if streams {
		return answer(s.stream(node, remote, local)), nil
	}
	ofEdge, ofID, ofAll := s.Counts(edge)
	reason := s.Control.Tunnel(time.Now(), Attempt{
		Edge: edge, Remote: remote, Local: local, Tunnels: s.Tunnels(edge.ID), LiveOfEdge: ofEdge, LiveOfID: ofID,
		LiveOfAll: ofAll, Live: s.Live,
	})
	s.Decided(reason, remote.Addr(), edge)
	if reason != Admitted {
		return answer(codes.ResourceExhausted), nil
	}
	return answer(codes.OK), nil
}

// stream decides about a connection that is no reverse tunnel.
func (s tunnels) stream(node model.Subject, remote, local netip.AddrPort) codes.Code {
	most, edge := s.Control.StreamLimits(node.Role), model.EdgeRef{Node: node.Node, ID: node.ID}
	reason := s.Control.stream(time.Now(), edge)
	if reason != Admitted {
		s.Decided(reason, remote.Addr(), edge)
		return codes.ResourceExhausted
	}
	ofNode, ofID, permitted := s.Claim(node, remote, local, most.Node, most.ID)
	switch {
	case !permitted:
		return codes.PermissionDenied
	case ofNode >= most.Node:
		reason = ByEdge
	case ofID >= most.ID:
		reason = ByTunnelID
	default:
		return codes.OK
	}
	s.Control.reject(reason)
	s.Decided(reason, remote.Addr(), edge)
	return codes.ResourceExhausted
}

func answer(code codes.Code) *authv3.CheckResponse {
	return &authv3.CheckResponse{Status: &statusv3.Status{Code: int32(code)}}
}

// nodeOf returns the edge that a certificate names or, with streams, the edge or the Envoy beside an apiserver. Envoy
// sends the certificate as URL-encoded PEM.
func (s tunnels) nodeOf(certificate string, streams bool) (model.Subject, error) {
	text, err := url.PathUnescape(certificate)
	if err != nil {
		return model.Subject{}, errNoCertificate
	}
	block, _ := pem.Decode([]byte(text))
	if block == nil {
		return model.Subject{}, errNoCertificate
	}
	leaf, err := x509.ParseCertificate(block.Bytes)
	if err != nil {
		return model.Subject{}, errNoCertificate
	}
	subject, err := s.Domain.ParseSubject(leaf.Subject.CommonName, leaf.DNSNames)
	if err != nil || subject.Role != model.RoleEdge && (!streams || subject.Role != model.RoleEgress) {
		return model.Subject{}, errNoCertificate
	}
	return subject, nil
}

func addressOf(a *corev3.Address) (netip.AddrPort, error) {
	ip, err := netip.ParseAddr(a.GetSocketAddress().GetAddress())
	if err != nil {
		return netip.AddrPort{}, errNoAddress
	}
	return netip.AddrPortFrom(ip.Unmap().WithZone(""), uint16(a.GetSocketAddress().GetPortValue())), nil
}
