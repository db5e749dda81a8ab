package e2e

import (
	"context"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
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
		"the workload network cannot dial the management apiserver": {
			w.Network.Workload, w.Management.Endpoint.String(), false,
		},
		"the workload network can dial the gateway's public port": {
			w.Network.Workload, hostPort(netns.PublicName, netns.PublicPort), true,
		},
		"the workload network cannot dial the gateway's apiserver port": {
			w.Network.Workload, hostPort(netns.PublicName, netns.APIServerPort), false,
		},
		"the workload network cannot dial the gateway's connect port": {
			w.Network.Workload, hostPort(netns.PublicName, netns.ConnectPort), false,
		},
		"the management network can dial the gateway's apiserver port": {
			w.Network.Management, hostPort(netns.GatewayName, netns.APIServerPort), true,
		},
		"the management network can dial the gateway's connect port": {
			w.Network.Management, hostPort(netns.GatewayName, netns.ConnectPort), true,
		},
		"the gateway's public port is closed in the management network": {
			w.Network.Management, hostPort(netns.GatewayName, netns.PublicPort), false,
		},
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

// outsideCommand matches the command in docs/install.md by which users check the public address from another network.
var outsideCommand = regexp.MustCompile("(?m)^openssl s_client -connect gateway\\.tunnels\\.example\\.com:443 .*\n.*$")

// outside proves that the documented command shows the certificate of an installation from a workload network, and
// nothing through an address where no gateway is.
func (w *world) outside(t *testing.T) {
	promise.That(t, "the documented check from outside finds the gateways", func(t *testing.T) {
		page, err := os.ReadFile(filepath.Join(w.Root(), "docs/install.md"))
		must(t, err)
		command := outsideCommand.FindString(string(page))
		if command == "" {
			t.Fatal("docs/install.md has no such command")
		}
		run := func(address string) string {
			filled := strings.Replace(command, "gateway.tunnels.example.com:443", address, 1)
			filled = strings.ReplaceAll(filled, "tunnels.example.com", string(domain))
			ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
			defer cancel()
			out, _ := w.Network.Workload.Command(ctx, "sh", "-c", filled).CombinedOutput()
			return string(out)
		}
		eventually(t, func(context.Context) error {
			got := run(hostPort(netns.PublicName, netns.PublicPort))
			if want := "DNS:" + domain.Control(); !strings.Contains(got, want) {
				return fmt.Errorf("the answer has no %q: %s", want, got)
			}
			return nil
		})
		if got := run(hostPort(netns.PublicName, netns.APIServerPort)); strings.Contains(got, "DNS:") {
			t.Errorf("there is an answer where no gateway is: %s", got)
		}
	})
}

func hostPort(host string, port int) string { return net.JoinHostPort(host, strconv.Itoa(port)) }
