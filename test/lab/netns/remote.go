package netns

import (
	"context"
	"net/netip"
	"strconv"
)

const (
	remoteBridge = "inner"  // the switch of a remote network
	remoteDevice = "inner0" // of its machines
)

// Remote is a network of machines that no other machine reaches. Several may have the same addresses. Its machines
// reach each other, and those that AddEdgeHost has added also the workload network, into which they forward no packets.
type Remote struct {
	Prefix netip.Prefix

	network *Network
	name    string
	hub     *Namespace
}

// AddRemote adds a remote network. The first address of the prefix is reserved.
func (n *Network) AddRemote(ctx context.Context, name string, prefix netip.Prefix) (*Remote, error) {
	hub, err := n.addSwitch(ctx, name+"-hub", remoteBridge, netip.PrefixFrom(prefix.Addr().Next(), prefix.Bits()))
	if err != nil {
		return nil, err
	}
	return &Remote{Prefix: prefix, network: n, name: name, hub: hub}, nil
}

// AddMachine adds a machine with an address in the prefix. host is its number there, and unique.
func (r *Remote) AddMachine(ctx context.Context, name string, host int) (*Site, error) {
	machine, err := r.network.add(ctx, r.name+"-"+name)
	if err != nil {
		return nil, err
	}
	address := r.Address(host)
	return &Site{Namespace: machine, Address: address}, plug(ctx, cable{
		machine, remoteDevice,
		[]netip.Prefix{netip.PrefixFrom(address, r.Prefix.Bits())},
		r.hub, remoteBridge,
		"port" + strconv.Itoa(host),
	})
}

// AddEdgeHost is AddMachine for a machine that is also on the workload network, where it resolves the gateways.
func (r *Remote) AddEdgeHost(ctx context.Context, name string, host int) (*Site, error) {
	machine, err := r.AddMachine(ctx, name, host)
	if err != nil {
		return nil, err
	}
	if err := r.network.plugSite(ctx, machine.Namespace, r.network.nextSiteAddress()); err != nil {
		return nil, err
	}
	return machine, r.network.nameGateways(machine.Namespace)
}

// Address returns the address of a machine.
func (r *Remote) Address(host int) netip.Addr {
	address := r.Prefix.Addr()
	for range host {
		address = address.Next()
	}
	return address
}

// AddHosted adds a machine on both the management and the workload network, for hosted control planes: gateways reach
// it, and it reaches the public port of the gateways. host is the last byte of its address in the management network.
func (n *Network) AddHosted(ctx context.Context, name string, host int) (*Site, error) {
	machine, err := n.add(ctx, name)
	if err != nil {
		return nil, err
	}
	own := AddressAt(managementPrefix, host)
	if err := plug(ctx, cable{
		machine, gatewayInside, n.family.prefixes(netip.PrefixFrom(own, managementPrefix.Bits())), n.Management, "mgmt",
		"hosted" + strconv.Itoa(host),
	}); err != nil {
		return nil, err
	}
	if err := n.plugSite(ctx, machine, n.nextSiteAddress()); err != nil {
		return nil, err
	}
	return &Site{Namespace: machine, Address: n.family.First(own)}, n.nameGateways(machine)
}

// ManagementPrefix returns the network of hosted control planes.
func ManagementPrefix() netip.Prefix { return managementPrefix }
