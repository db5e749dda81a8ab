package netns

import (
	"context"
	"fmt"
	"io"
	"net"
	"net/netip"
	"os"
	"testing"
	"time"
)

// needRoot skips a test that creates network namespaces, or fails it if all tests must run.
func needRoot(t *testing.T) {
	t.Helper()
	switch {
	case os.Geteuid() == 0:
	case os.Getenv("E2E_REQUIRED") != "":
		t.Fatal("this test must run as root")
	default:
		t.Skip("making network namespaces needs root")
	}
}

func testNetwork(t *testing.T, family Family) *Network {
	t.Helper()
	needRoot(t)
	name, err := NewLabName()
	if err != nil {
		t.Fatal(err)
	}
	network, err := NewNetwork(t.Context(), name, family, 1)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { network.Close(context.Background()) })
	return network
}

// greet listens in a namespace and sends one word to each client.
func greet(t *testing.T, namespace *Namespace, address string) {
	t.Helper()
	listener, err := namespace.Listen(t.Context(), address)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = listener.Close() })
	go func() {
		for {
			conn, err := listener.Accept()
			if err != nil {
				return
			}
			_, _ = io.WriteString(conn, "hello")
			_ = conn.Close()
		}
	}()
}

// dial returns nil if the greeting came.
func dial(t *testing.T, from *Namespace, address string, within time.Duration) error {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), within)
	defer cancel()
	conn, err := from.DialContext(ctx, "tcp", address)
	if err != nil {
		return err
	}
	defer func() { _ = conn.Close() }()
	_ = conn.SetReadDeadline(time.Now().Add(within))
	word, err := io.ReadAll(conn)
	if err == nil && string(word) != "hello" {
		err = fmt.Errorf("read %q", word)
	}
	return err
}

func TestOnlyTheGatewayIsReachableFromBothNetworks(t *testing.T) {
	for name, family := range map[string]Family{"IPv4": IPv4, "IPv6": IPv6} {
		t.Run(name, func(t *testing.T) { onlyTheGateway(t, testNetwork(t, family)) })
	}
}

func onlyTheGateway(t *testing.T, n *Network) {
	inside, public := net.JoinHostPort(n.InsideAddress(0).String(), "6443"), net.JoinHostPort(
		n.PublicAddress(0).String(), "443")
	management, workload := net.JoinHostPort(n.ManagementAddress().String(),
		"6443"), net.JoinHostPort(n.WorkloadAddress().String(), "6443")
	greet(t, n.Gateways[0], inside)
	greet(t, n.Gateways[0], public)
	greet(t, n.Management, management)
	greet(t, n.Workload, workload)

	for _, routed := range []bool{false, true} {
		if routed { // an attacker on a machine there can add a route
			if err := n.Workload.IP(t.Context(), "route", "add", networkOf(n, managementPrefix), "via",
				n.PublicAddress(0).String()); err != nil {
				t.Fatal(err)
			}
			if err := n.Management.IP(t.Context(), "route", "add", networkOf(n, WorkloadPrefix), "via",
				n.InsideAddress(0).String()); err != nil {
				t.Fatal(err)
			}
		}
		tests := map[string]struct {
			from    *Namespace
			address string
			reached bool
		}{
			"from the workload network the gateway's public leg":       {n.Workload, public, true},
			"from the workload network the gateway by its name":        {n.Workload, net.JoinHostPort(PublicName, "443"), true},
			"from the management network the gateway's management leg": {n.Management, inside, true},
			"from the management network the gateway by its name": {
				n.Management, net.JoinHostPort(GatewayName, "6443"),
				true,
			},
			"from the workload network the gateway's management leg": {n.Workload, inside, false},
			"from the management network the gateway's public leg":   {n.Management, public, false},
			"from the workload network the management network":       {n.Workload, management, false},
			"from the management network the workload network":       {n.Management, workload, false},
			"from the gateway the workload network":                  {n.Gateways[0], workload, true},
			"from the gateway the management network":                {n.Gateways[0], management, true},
		}
		for name, tc := range tests {
			t.Run(fmt.Sprintf("routes %v, %s", routed, name), func(t *testing.T) {
				within := time.Second
				if tc.reached { // the kernel repeats a lost question for a neighbour after a second
					within = 10 * time.Second
				}
				if err := dial(t, tc.from, tc.address, within); (err == nil) != tc.reached {
					t.Errorf("reached: %v, want %v (%v)", err == nil, tc.reached, err)
				}
			})
		}
	}
}

// networkOf returns the first network of a network's machines.
func networkOf(n *Network, prefix netip.Prefix) string {
	return n.family.prefixes(prefix)[0].Masked().String()
}

func TestADualStackNetworkHasBothFamilies(t *testing.T) {
	n := testNetwork(t, DualStack)
	for _, address := range n.PublicAddresses() {
		at := net.JoinHostPort(address.String(), "443")
		greet(t, n.Gateways[0], at)
		if err := dial(t, n.Workload, at, 10*time.Second); err != nil {
			t.Error(err)
		}
	}
	if all := n.Workload.Addresses(PublicName); len(all) != 2 || !all[0].Is4() || !all[1].Is6() {
		t.Errorf("the gateway has the addresses %s, want one of each family", all)
	}
}

func TestProgramsSeeTheHostsOfTheirNetwork(t *testing.T) {
	n := testNetwork(t, IPv4)
	cmd := n.Management.Command(t.Context(), "sh", "-c", "read go; getent hosts late.test "+GatewayName)
	stdin, err := cmd.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := n.Management.AddHost("late.test",
		netip.MustParseAddr("10.9.9.9")); err != nil { // also while the program runs
		t.Fatal(err)
	}
	go func() { _, _ = io.WriteString(stdin, "go\n") }()
	out, err := cmd.Output()
	if err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	if want := "10.9.9.9        late.test\n10.111.1.1      gateway.mgmt.test\n"; string(out) != want {
		t.Errorf("got %q, want %q", out, want)
	}
	if out, err := n.Workload.Command(t.Context(), "getent", "hosts", GatewayName).Output(); err == nil {
		t.Errorf("the workload network resolves the management network's name: %s", out)
	}
}
