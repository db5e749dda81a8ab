package lab

import (
	"context"
	"fmt"
	"net/netip"
)

// Names and addresses. Each lab has its own namespaces, so all labs use the same ones.
const (
	// GatewayName is the gateway's name in the management network.
	GatewayName = "gateway.mgmt.test"
	// PublicName is the gateway's name in the workload network.
	PublicName = "gateway.public.test"
	// xdsServerName is the xds-server's name in the management and the gateway network.
	xdsServerName = "xds.mgmt.test"

	// PublicPort, APIServerPort and ConnectPort are those of the gateway's three listeners.
	PublicPort    = 443
	APIServerPort = 6443
	ConnectPort   = 3128
	xdsPort       = 18000
)

var (
	managementAddress = netip.MustParseAddr("10.111.1.10")
	gatewayInside     = netip.MustParseAddr("10.111.1.1") // the gateway's leg in the management network
	gatewayPublic     = netip.MustParseAddr("10.111.2.1") // the gateway's leg in the workload network
	workloadAddress   = netip.MustParseAddr("10.111.2.10")
	managementPrefix  = netip.MustParsePrefix("10.111.1.0/24")
	workloadPrefix    = netip.MustParsePrefix("10.111.2.0/24")
)

// Network is two networks that can't reach each other, and a gateway with a leg in each that forwards nothing.
type Network struct {
	Management, Gateway, Workload *Namespace
}

// newNetwork makes the namespaces <name>-management, <name>-gateway and <name>-workload.
func newNetwork(ctx context.Context, name string) (*Network, error) {
	n := &Network{}
	for role, target := range map[string]**Namespace{"management": &n.Management, "gateway": &n.Gateway, "workload": &n.Workload} {
		namespace, err := newNamespace(ctx, name+"-"+role)
		if err != nil {
			n.close(context.WithoutCancel(ctx))
			return nil, err
		}
		*target = namespace
	}
	if err := n.connect(ctx); err != nil {
		n.close(context.WithoutCancel(ctx))
		return nil, err
	}
	return n, nil
}

// connect lays the two cables, gives out addresses and names, and shuts the gateway's back door.
func (n *Network) connect(ctx context.Context) error {
	legs := []struct {
		outer     *Namespace
		leg       string // the interface on both sides
		addresses [2]netip.Addr
		bits      int
	}{
		{n.Management, "mgmt0", [2]netip.Addr{managementAddress, gatewayInside}, managementPrefix.Bits()},
		{n.Workload, "work0", [2]netip.Addr{workloadAddress, gatewayPublic}, workloadPrefix.Bits()},
	}
	for _, l := range legs {
		if err := ip(ctx, "link", "add", "name", l.leg, "netns", l.outer.Name, "type", "veth", "peer", "name", l.leg, "netns", n.Gateway.Name); err != nil {
			return err
		}
		for i, namespace := range []*Namespace{l.outer, n.Gateway} {
			address := netip.PrefixFrom(l.addresses[i], l.bits).String()
			if err := namespace.ip(ctx, "address", "add", address, "dev", l.leg); err != nil {
				return err
			}
			if err := namespace.ip(ctx, "link", "set", l.leg, "up"); err != nil {
				return err
			}
		}
	}
	if err := n.closeBackDoors(ctx); err != nil {
		return err
	}
	return n.addHosts()
}

// closeBackDoors makes the gateway refuse packets for the address of its other leg. Linux accepts them by default on
// any interface (the weak host model), so a machine that adds a route would reach the listeners of the other network.
// The rules must stand before the table of local addresses, which is moved down for it.
func (n *Network) closeBackDoors(ctx context.Context) error {
	rules := [][]string{
		{"add", "preference", "10", "lookup", "local"},
		{"add", "preference", "1", "iif", "work0", "to", managementPrefix.String(), "prohibit"},
		{"add", "preference", "2", "iif", "mgmt0", "to", workloadPrefix.String(), "prohibit"},
		{"delete", "preference", "0"},
	}
	for _, rule := range rules {
		if err := n.Gateway.ip(ctx, append([]string{"rule"}, rule...)...); err != nil {
			return err
		}
	}
	return nil
}

func (n *Network) addHosts() error {
	hosts := []struct {
		in      *Namespace
		name    string
		address netip.Addr
	}{
		{n.Management, GatewayName, gatewayInside},
		{n.Management, xdsServerName, managementAddress},
		{n.Gateway, xdsServerName, managementAddress},
		{n.Workload, PublicName, gatewayPublic},
	}
	for _, h := range hosts {
		if err := h.in.AddHost(h.name, h.address); err != nil {
			return err
		}
	}
	return nil
}

// AddGatewayAlias makes a further name of the gateway resolve in the management network, as DNS would.
func (n *Network) AddGatewayAlias(name string) error {
	if err := n.Management.AddHost(name, gatewayInside); err != nil {
		return fmt.Errorf("adding an alias of the gateway: %w", err)
	}
	return nil
}

func (n *Network) close(ctx context.Context) {
	for _, namespace := range []*Namespace{n.Workload, n.Gateway, n.Management} {
		if namespace != nil {
			removeNamespace(ctx, namespace.Name)
		}
	}
}
