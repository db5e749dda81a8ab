package admission

import (
	"context"
	"fmt"
	"net/netip"
	"net/url"
	"slices"
	"testing"
	"time"

	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	authv3 "github.com/envoyproxy/go-control-plane/envoy/service/auth/v3"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/metadata"

	"github.com/fairlead/fairlead/pkg/certs"
	"github.com/fairlead/fairlead/pkg/model"
)

func TestADeniedEdgeIsRejected(t *testing.T) {
	const domain = model.TunnelDomain("tunnels.example.com")
	denied := model.EdgeRef{Node: "edge-1", ID: model.NewID()}
	s := tunnels{Server: &Server{
		Control: NewControl(0, 0), Domain: domain,
		Counts:  func(model.EdgeRef) (int, int, int) { return 0, 0, 0 },
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
		end := &authv3.AttributeContext_Peer{
			Certificate: certificateOf(t, domain, subject),
			Address:     socket(netip.MustParseAddrPort("192.0.2.1:4000")),
		}
		answer, err := s.Check(t.Context(), &authv3.CheckRequest{
			Attributes: &authv3.AttributeContext{Source: end, Destination: end},
		})
		if got := codes.Code(answer.GetStatus().GetCode()); err != nil || got != want {
			t.Errorf("%s: got %s, %v, want %s", edge.Node, got, err, want)
		}
	}
}

// TestStreamsOfDeniedNodesAreRejected calls for connections that are no reverse tunnels: of the Envoy beside an
// apiserver, which opens no reverse tunnel, and of an edge.
func TestStreamsOfDeniedNodesAreRejected(t *testing.T) {
	const domain, key = model.TunnelDomain("tunnels.example.com"), "x-streams"
	denied, remote, local := model.NewID(), netip.MustParseAddrPort("192.0.2.1:4000"),
		netip.MustParseAddrPort("192.0.2.2:443")
	var claimed []model.Subject
	s := tunnels{Server: &Server{
		Domain: domain, StreamsKey: key, Control: NewControl(0, 0), Denied: func(model.EdgeRef) bool { return false },
		Claim: func(node model.Subject, from, to netip.AddrPort, _, _ int) (int, int, bool) {
			if from != remote || to != local {
				t.Errorf("a connection from %s to %s is claimed", from, to)
			}
			claimed = append(claimed, node)
			return 0, 0, node.Node != "kas-1" || node.ID != denied
		},
	}}
	about := metadata.NewIncomingContext(t.Context(), metadata.Pairs(key, "true"))
	for name, c := range map[string]struct {
		ctx     context.Context
		subject model.Subject
		want    codes.Code
		claims  bool
	}{
		"of a denied apiserver": {
			about, model.Subject{Role: model.RoleEgress, Node: "kas-1", ID: denied}, codes.PermissionDenied, true,
		},
		"of another apiserver": {about, model.Subject{Role: model.RoleEgress, Node: "kas-2", ID: denied}, codes.OK, true},
		"of an edge": {
			about, model.Subject{Role: model.RoleEdge, Node: "kas-1", ID: model.NewID()}, codes.OK, true,
		},
		"of a gateway": {
			about, model.Subject{Role: model.RoleGateway, Node: "gateway-0"}, codes.PermissionDenied, false,
		},
		"a reverse tunnel of an apiserver": {
			t.Context(), model.Subject{Role: model.RoleEgress, Node: "kas-2", ID: denied}, codes.PermissionDenied, false,
		},
	} {
		claimed = nil
		answer, err := s.Check(c.ctx, &authv3.CheckRequest{Attributes: &authv3.AttributeContext{
			Source: &authv3.AttributeContext_Peer{
				Certificate: certificateOf(t, domain, c.subject), Address: socket(remote),
			},
			Destination: &authv3.AttributeContext_Peer{Address: socket(local)},
		}})
		if got := codes.Code(answer.GetStatus().GetCode()); err != nil || got != c.want {
			t.Errorf("a connection %s: got %s, %v, want %s", name, got, err, c.want)
		}
		if want := []model.Subject{c.subject}; c.claims != slices.Equal(claimed, want) || !c.claims && claimed != nil {
			t.Errorf("a connection %s is claimed for %v", name, claimed)
		}
	}
	answer, err := s.Check(about, &authv3.CheckRequest{Attributes: &authv3.AttributeContext{
		Source: &authv3.AttributeContext_Peer{
			Certificate: certificateOf(t, domain, model.Subject{Role: model.RoleEgress, Node: "kas-2", ID: denied}),
		},
	}})
	if got := codes.Code(answer.GetStatus().GetCode()); err != nil || got != codes.InvalidArgument {
		t.Errorf("a connection without addresses: got %s, %v", got, err)
	}
}

// TestStreamsBeyondALimitAreRejected has one leaf call often, and then many leaves of one id.
func TestStreamsBeyondALimitAreRejected(t *testing.T) {
	const domain, key = model.TunnelDomain("tunnels.example.com"), "x-streams"
	nodes, ids := map[model.Subject]int{}, map[string]int{}
	rejected := map[Reason]int{}
	s := tunnels{Server: &Server{
		Domain: domain, StreamsKey: key, Control: NewControl(0, 0),
		Claim: func(node model.Subject, _, _ netip.AddrPort, mostOfNode, mostOfID int) (ofNode, ofID int, permitted bool) {
			ofNode, ofID = nodes[node], ids[node.ID]
			if ofNode < mostOfNode && ofID < mostOfID {
				nodes[node]++
				ids[node.ID]++
			}
			return ofNode, ofID, true
		},
		Decided: func(reason Reason, _ netip.Addr, _ model.EdgeRef) { rejected[reason]++ },
	}}
	about := metadata.NewIncomingContext(t.Context(), metadata.Pairs(key, "true"))
	for _, c := range []struct {
		role         model.Role
		ofNode, ofID int
	}{{model.RoleEgress, 1024, 2048}, {model.RoleEdge, 128, 1024}} {
		id := model.NewID()
		calls := func(n int, node string) (last codes.Code) {
			end := &authv3.AttributeContext_Peer{
				Certificate: certificateOf(t, domain, model.Subject{Role: c.role, Node: node, ID: id}),
				Address:     socket(netip.MustParseAddrPort("192.0.2.1:4000")),
			}
			for range n {
				response, err := s.Check(about, &authv3.CheckRequest{
					Attributes: &authv3.AttributeContext{Source: end, Destination: end},
				})
				if err != nil {
					t.Fatal(err)
				}
				last = codes.Code(response.GetStatus().GetCode())
			}
			return last
		}
		clear(rejected)
		if calls(c.ofNode, "node-1") != codes.OK || calls(1, "node-1") != codes.ResourceExhausted || rejected[ByEdge] != 1 {
			t.Errorf("%s: of one node %d are admitted, and rejected are %v", c.role, ids[id], rejected)
		}
		for n := 2; ids[id] < c.ofID; n++ {
			if calls(c.ofNode, fmt.Sprint("node-", n)) != codes.OK {
				t.Fatalf("%s: the tunnel id has %d", c.role, ids[id])
			}
		}
		if calls(1, "node-0") != codes.ResourceExhausted || rejected[ByTunnelID] != 1 || ids[id] != c.ofID {
			t.Errorf("%s: of one tunnel id %d are admitted, and rejected are %v", c.role, ids[id], rejected)
		}
	}
	flood := model.Subject{Role: model.RoleEdge, Node: "node-flood", ID: model.NewID()}
	for range requestBurst + requestRate {
		s.Control.Request(time.Now(), model.EdgeRef{Node: flood.Node, ID: flood.ID})
	}
	if s.stream(flood, netip.AddrPort{}, netip.AddrPort{}) != codes.ResourceExhausted || rejected[ByRequests] != 1 ||
		nodes[flood] > 0 {
		t.Errorf("after too many requests %d are admitted, and rejected are %v", nodes[flood], rejected)
	}
	if counts := s.Control.Counts().Tunnels; counts[ByEdge] != 2 || counts[ByTunnelID] != 2 {
		t.Errorf("counted are %v", counts)
	}
}

func socket(at netip.AddrPort) *corev3.Address {
	return &corev3.Address{Address: &corev3.Address_SocketAddress{SocketAddress: &corev3.SocketAddress{
		Address: at.Addr().String(), PortSpecifier: &corev3.SocketAddress_PortValue{PortValue: uint32(at.Port())},
	}}}
}

// certificateOf returns a leaf of a subject, as Envoy sends it.
func certificateOf(t *testing.T, domain model.TunnelDomain, subject model.Subject) string {
	t.Helper()
	ca, err := certs.NewCA("test", time.Now(), time.Hour)
	if err != nil {
		t.Fatal(err)
	}
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
	return url.PathEscape(string(leaf))
}
