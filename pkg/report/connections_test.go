package report_test

import (
	"path/filepath"
	"testing"

	"github.com/fairlead/fairlead/internal/reporttest"
	"github.com/fairlead/fairlead/pkg/model"
	reportv1 "github.com/fairlead/fairlead/pkg/report/v1"
)

// TestConnectionsOfNodesAreReported has an apiserver with connections to networks, and an edge that forwards.
func TestConnectionsOfNodesAreReported(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	p := w.place(t)
	v := w.view(t, p.Address)
	s := gatewayOf("gateway-0")
	g := &gatewayAgent{
		path: filepath.Join(t.TempDir(), "tunnels.log"), conn: w.Dial(t, &s, p.Address), log: w.Log, workers: 1,
	}
	egress, network := domain.EgressID(idA), domain.TunnelID(idB)
	g.connection(t, "egress", "DownstreamStart", 1, "kas-1", egress)
	g.connection(t, "egress", "DownstreamStart", 2, "kas-1", egress)
	g.start(t)
	v.shows(t, idA, "known gateway-0; kas-1 gateway-0:2")
	g.connection(t, "egress", "DownstreamStart", 3, "kas-2", egress)
	v.shows(t, idA, "known gateway-0; kas-1 gateway-0:2; kas-2 gateway-0:1")
	g.opens(t, 4, "edge-1", idB)
	g.connection(t, "forward", "TcpConnectionStart", 5, "edge-1", network)
	v.shows(t, idB, "known gateway-0; edge-1 gateway-0=1 gateway-0:1")
	g.closes(t, 4, "edge-1", idB)
	v.shows(t, idB, "known gateway-0; edge-1 gateway-0:1")
	g.connection(t, "forward", "TcpConnectionEnd", 5, "edge-1", network)
	v.shows(t, idB, "known gateway-0")
	g.connection(t, "egress", "TcpConnectionEnd", 2, "kas-1", egress)
	v.shows(t, idA, "known gateway-0; kas-1 gateway-0:1; kas-2 gateway-0:1")

	// What ended while no agent ran is not in the snapshot of the next one.
	g.stop()
	g.connection(t, "egress", "TcpConnectionEnd", 3, "kas-2", egress)
	g.start(t)
	v.shows(t, idA, "known gateway-0; kas-1 gateway-0:1")

	// Other gateways do not wait for tunnels of apiservers, which choose a gateway.
	other := gatewayOf("gateway-1")
	answer, err := reportv1.NewReportClient(w.Dial(t, &other, p.Address)).Peers(t.Context(), &reportv1.PeersRequest{})
	if err != nil {
		t.Fatal(err)
	}
	for _, peer := range answer.GetPeers() {
		if len(peer.GetEdges()) > 0 {
			t.Errorf("%s announces %v", peer.GetGateway(), peer.GetEdges())
		}
	}
}

// TestTheAgentBesideAnApiserverReportsLikeAnEdge: and it makes no other call.
func TestTheAgentBesideAnApiserverReportsLikeAnEdge(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	p := w.place(t)
	v := w.view(t, p.Address)
	s := model.Subject{Role: model.RoleEgress, Node: "kas-1", ID: idA}
	client := reportv1.NewReportClient(w.Dial(t, &s, p.Address))
	stream, err := client.Edge(t.Context())
	if err == nil {
		err = stream.Send(&reportv1.EdgeReport{})
	}
	if err != nil {
		t.Fatal(err)
	}
	v.shows(t, idA, "known ; kas-1+")
	gateway, err := client.Gateway(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if got := reporttest.Code(t, gateway.Recv); got.String() != "PermissionDenied" {
		t.Errorf("a report of a gateway ends with %s", got)
	}
}
