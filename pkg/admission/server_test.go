package admission

import (
	"net/netip"
	"net/url"
	"testing"
	"time"

	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	authv3 "github.com/envoyproxy/go-control-plane/envoy/service/auth/v3"
	"google.golang.org/grpc/codes"

	"github.com/fairlead/fairlead/pkg/certs"
	"github.com/fairlead/fairlead/pkg/model"
)

func TestADeniedEdgeIsRejected(t *testing.T) {
	const domain = model.TunnelDomain("tunnels.example.com")
	ca, err := certs.NewCA("test", time.Now(), time.Hour)
	if err != nil {
		t.Fatal(err)
	}
	denied := model.EdgeRef{Node: "edge-1", ID: model.NewID()}
	s := tunnels{Server: &Server{
		Control: NewControl(0), Domain: domain,
		Counts:  func(model.EdgeRef) (int, int) { return 0, 0 },
		Live:    func(netip.AddrPort, netip.AddrPort) bool { return false },
		Denied:  func(edge model.EdgeRef) bool { return edge == denied },
		Tunnels: func(string) int { return 2 },
		Decided: func(Reason, netip.Addr, model.EdgeRef) {},
	}}
	for edge, want := range map[model.EdgeRef]codes.Code{
		denied:                              codes.PermissionDenied,
		{Node: "edge-2", ID: denied.ID}:     codes.OK,
		{Node: "edge-1", ID: model.NewID()}: codes.OK,
	} {
		subject := model.Subject{Role: model.RoleEdge, Node: edge.Node, ID: edge.ID}
		key, err := certs.NewKey()
		if err != nil {
			t.Fatal(err)
		}
		leaf, err := ca.Issue(key.Public(), certs.Leaf{
			CommonName: subject.Node, DNSNames: domain.DNSNames(subject), Client: true, NotBefore: time.Now(),
			NotAfter: time.Now().Add(time.Hour),
		})
		if err != nil {
			t.Fatal(err)
		}
		end := &authv3.AttributeContext_Peer{
			Certificate: url.PathEscape(string(leaf)),
			Address: &corev3.Address{Address: &corev3.Address_SocketAddress{SocketAddress: &corev3.SocketAddress{
				Address: "192.0.2.1", PortSpecifier: &corev3.SocketAddress_PortValue{PortValue: 4000},
			}}},
		}
		answer, err := s.Check(t.Context(), &authv3.CheckRequest{
			Attributes: &authv3.AttributeContext{Source: end, Destination: end},
		})
		if got := codes.Code(answer.GetStatus().GetCode()); err != nil || got != want {
			t.Errorf("%s: got %s, %v, want %s", edge.Node, got, err, want)
		}
	}
}
