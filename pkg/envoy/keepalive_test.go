package envoy_test

import (
	"fmt"
	"os"
	"strings"
	"testing"

	"github.com/fairlead/fairlead/internal/envoytest"
)

// checkKeepalive checks the kernel's keepalive timer on both ends of the reverse tunnels to the first gateway.
func checkKeepalive(t *testing.T, in *installation) {
	t.Helper()
	envoytest.Eventually(t, "both ends of two tunnels have keepalive", func() error {
		atGateway, atEdge := 0, 0
		for _, s := range establishedWithKeepalive(t) {
			if strings.HasSuffix(s.local, fmt.Sprintf(":%04X", in.gateways[0].bind.Public.Port)) {
				atGateway++
			}
			if strings.HasSuffix(s.remote, fmt.Sprintf(":%04X", in.Public.Port)) {
				atEdge++
			}
		}
		if atGateway < 2 || atEdge < 2 {
			return fmt.Errorf("%d have it at the gateway, %d at the edge", atGateway, atEdge)
		}
		return nil
	})
}

type socket struct{ local, remote string } // hexadecimal

// establishedWithKeepalive returns the TCP connections of this machine whose only timer is a keepalive probe.
func establishedWithKeepalive(t *testing.T) []socket {
	t.Helper()
	data, err := os.ReadFile("/proc/net/tcp")
	if err != nil {
		t.Fatal(err)
	}
	var sockets []socket
	for line := range strings.Lines(string(data)) {
		// sl local_address rem_address st tx_queue:rx_queue tr:tm->when, as in the kernel's proc_net_tcp.rst.
		fields := strings.Fields(line)
		if len(fields) > 5 && fields[3] == "01" && strings.HasPrefix(fields[5], "02:") {
			sockets = append(sockets, socket{fields[1], fields[2]})
		}
	}
	return sockets
}
