package envoy

import (
	"encoding/json"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"

	bootstrapv3 "github.com/envoyproxy/go-control-plane/envoy/config/bootstrap/v3"
	clusterv3 "github.com/envoyproxy/go-control-plane/envoy/config/cluster/v3"
	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	listenerv3 "github.com/envoyproxy/go-control-plane/envoy/config/listener/v3"
	"google.golang.org/protobuf/encoding/protojson"

	"github.com/fairlead/fairlead/internal/envoytest"
	"github.com/fairlead/fairlead/internal/freeport"
	"github.com/fairlead/fairlead/pkg/envoy/record"
	"github.com/fairlead/fairlead/pkg/model"
)

// TestEnvoyRecordsTheOwnerOfRelayedConnections makes a real Envoy write both records of a connection, also if there is
// no server.
func TestEnvoyRecordsTheOwnerOfRelayedConnections(t *testing.T) {
	dir, port := envoytest.Dir(t), freeport.TCP(t)
	l := listening(publicListener, model.Endpoint{Host: "127.0.0.1", Port: uint16(port)}, tunnelKeepalive())
	l.FilterChains = []*listenerv3.FilterChain{
		{Filters: []*listenerv3.Filter{
			tcpProxyFilter(record.Connections(record.OwnerControl, tcpProxy("control", controlCluster))),
		}},
	}
	server, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer server.Close()
	to := model.Endpoint{Host: "127.0.0.1", Port: uint16(server.Addr().(*net.TCPAddr).Port)}
	config, err := protojson.Marshal(&bootstrapv3.Bootstrap{
		Admin: &bootstrapv3.Admin{
			Address: &corev3.Address{Address: &corev3.Address_Pipe{Pipe: &corev3.Pipe{Path: AdminSocket}}},
		},
		StaticResources: &bootstrapv3.Bootstrap_StaticResources{
			Listeners: []*listenerv3.Listener{l},
			Clusters:  []*clusterv3.Cluster{dialledCluster(controlCluster, to, clientKeepalive())},
		},
	})
	if err != nil {
		t.Fatal(err)
	}
	envoytest.Start(t, dir, config, "--file-flush-interval-msec", "50")
	for i := range 2 { // the second one has no server
		client, err := net.Dial("tcp", l.GetAddress().GetSocketAddress().GetAddress()+fmt.Sprintf(":%d", port))
		if err != nil {
			t.Fatal(err)
		}
		start := recordsOf(t, dir, client, 1+i)
		if start[0].Event != record.EventStart || start[0].Owner != record.OwnerControl ||
			start[0].Local != client.RemoteAddr().String() ||
			len(start[0].Connection) == 0 {
			t.Errorf("at its start: %+v", start)
		}
		_ = client.(*net.TCPConn).SetLinger(0) // a reset ends both directions
		_ = client.Close()
		all := recordsOf(t, dir, client, 2)
		if all[1].Event != record.EventEnd || string(all[1].Connection) != string(all[0].Connection) ||
			string(all[0].Connection) == "null" {
			t.Errorf("at its end: %+v", all)
		}
		_ = server.Close()
	}
}

type ownerRecord struct {
	Owner, Event, Peer, Local string
	Connection                json.RawMessage
}

// recordsOf waits for some records of a connection.
func recordsOf(t *testing.T, dir string, client net.Conn, atLeast int) (found []ownerRecord) {
	t.Helper()
	envoytest.Eventually(t, "it is recorded", func() error {
		data, err := os.ReadFile(filepath.Join(dir, record.TunnelLog))
		if err != nil {
			return err
		}
		found = nil
		for line := range strings.Lines(string(data)) {
			var r ownerRecord
			if err := json.Unmarshal([]byte(line), &r); err != nil || len(line) > record.MaxSize {
				return fmt.Errorf("%w: %s", err, line)
			}
			if r.Peer == client.LocalAddr().String() {
				found = append(found, r)
			}
		}
		if len(found) < atLeast {
			return fmt.Errorf("there are %d records: %s", len(found), data)
		}
		return nil
	})
	return found
}
