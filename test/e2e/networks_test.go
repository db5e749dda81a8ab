package e2e

import (
	"context"
	"net"
	"strconv"
	"testing"
	"time"

	"github.com/fairlead/fairlead/test/lab/netns"
	"github.com/fairlead/fairlead/test/promise"
)

// networks proves that the lab's networks are separated. All other tests depend on that.
func (w *world) networks(t *testing.T) {
	for name, tc := range map[string]struct {
		from    *netns.Namespace
		address string
		reached bool
	}{
		"the management network cannot dial the workload apiserver": {w.Network.Management, w.SNI.Endpoint.String(), false},
		"the workload network cannot dial the management " +
			"apiserver": {w.Network.Workload, w.Management.Endpoint.String(), false},
		"the workload network can dial the gateway's public " +
			"port": {w.Network.Workload, hostPort(netns.PublicName, netns.PublicPort), true},
		"the workload network cannot dial the gateway's apiserver " +
			"port": {w.Network.Workload, hostPort(netns.PublicName, netns.APIServerPort), false},
		"the workload network cannot dial the gateway's connect " +
			"port": {w.Network.Workload, hostPort(netns.PublicName, netns.ConnectPort), false},
		"the management network can dial the gateway's apiserver " +
			"port": {w.Network.Management, hostPort(netns.GatewayName, netns.APIServerPort), true},
		"the management network can dial the gateway's connect " +
			"port": {w.Network.Management, hostPort(netns.GatewayName, netns.ConnectPort), true},
		"the gateway's public port is closed in the management " +
			"network": {w.Network.Management, hostPort(netns.GatewayName, netns.PublicPort), false},
	} {
		promise.That(t, name, func(t *testing.T) {
			ctx, cancel := context.WithTimeout(t.Context(), 2*time.Second)
			defer cancel()
			conn, err := tc.from.DialContext(ctx, "tcp", tc.address)
			if err == nil {
				_ = conn.Close()
			}
			if (err == nil) != tc.reached {
				t.Errorf("dialled: %v (%v), want %v", err == nil, err, tc.reached)
			}
		})
	}
}

func hostPort(host string, port int) string { return net.JoinHostPort(host, strconv.Itoa(port)) }
