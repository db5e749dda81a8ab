package report_test

import (
	"strings"
	"testing"
	"time"

	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/timestamppb"

	"github.com/fairlead/fairlead/pkg/report"
	reportv1 "github.com/fairlead/fairlead/pkg/report/v1"
)

// TestAllTunnelsOfAGatewayFitInAMessage, with the longest addresses and names, and with as many holes and other
// connections as there may be.
func TestAllTunnelsOfAGatewayFitInAMessage(t *testing.T) {
	const (
		most   = 32 << 20 // of a message of a gateway: pkg/controlchannel
		public = 25_000   // connections of the public port that are no tunnels
	)
	address := "[ffff:ffff:ffff:ffff:ffff:ffff:ffff:ffff]:65535"
	node, id := strings.Repeat("n", 32), strings.Repeat("a", 32)
	size := report.MaxTunnels * proto.Size(&reportv1.GatewayReport{Tunnels: []*reportv1.Tunnel{{
		Key: address + ">" + address, Node: node, TunnelId: id, Worker: "worker_63",
		Since: timestamppb.New(start.Add(time.Second - time.Nanosecond)),
	}}})
	size += report.MaxTunnels / 2 * proto.Size(&reportv1.GatewayReport{
		Holes: []*reportv1.Hole{{Node: node, TunnelId: id, Workers: 64}},
	})
	size += public * proto.Size(&reportv1.GatewayReport{
		Connections: []*reportv1.Connections{{Node: node, TunnelId: id, Count: 1024}},
	})
	if size > most {
		t.Errorf("a report has %d bytes", size)
	}
}
