package netns

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"slices"
	"strconv"
	"sync"
)

// Names and addresses. Each lab has its own namespaces, so all labs use the same values.
const (
	// GatewayName is the gateways' name in the management network.
	GatewayName = "gateway.mgmt.test"
	// peerSuffix is the suffix of the names by which gateways find each other.
	peerSuffix = ".gateway-peers.fairlead-system.svc"
	// PublicName is the gateways' name in the workload network.
	PublicName = "gateway.public.test"
	// XDSServerName is the xds-servers' name in the management and the gateway networks.
	XDSServerName = "xds.mgmt.test"

	// PublicPort, APIServerPort and ConnectPort are the ports of the gateway's three listeners.
	PublicPort    = 443
	APIServerPort = 6443
	ConnectPort   = 3128
	// XDSPort is the port of the xds-servers.
	XDSPort = 18000

	// gatewayInside is a gateway's interface in the management network, gatewayPublic its interface in the workload
	// network.
	gatewayInside = "mgmt0"
	gatewayPublic = "work0"
)

var (
	// ManagementAddress is the address of the management network's own machine, in managementPrefix.
	ManagementAddress = netip.MustParseAddr("10.111.1.10")
	managementPrefix  = netip.MustParsePrefix("10.111.1.0/24")
	// WorkloadAddress is the address of the workload network's own machine.
	WorkloadAddress = netip.MustParseAddr("10.111.2.10")
	// WorkloadPrefix contains the addresses of the workload network.
	WorkloadPrefix = netip.MustParsePrefix("10.111.2.0/24")
)

// workSwitch is the switch of the workload network.
const workSwitch = "work"

// InsideAddress returns the address of a gateway in the management network.
func InsideAddress(gateway int) netip.Addr { return AddressAt(managementPrefix, 1+gateway) }

// PublicAddress returns the address of a gateway in the workload network.
func PublicAddress(gateway int) netip.Addr { return AddressAt(WorkloadPrefix, 1+gateway) }

// AddressAt returns an address of a /24.
func AddressAt(prefix netip.Prefix, host int) netip.Addr {
	bytes := prefix.Addr().As4()
	bytes[3] = byte(host)
	return netip.AddrFrom4(bytes)
}

// Network is two networks that can't reach each other, and gateways that are connected to both and forward no packets.
// Each of the two is a switch inside of its namespace.
type Network struct {
	Management, Workload *Namespace
	Gateways             []*Namespace

	name         string
	family       Family
	PublicName   string // of the gateways in the workload network
	firstGateway int    // number of the first one there
	xdsServers   []netip.Addr
	peers        []*DNS // name server of each gateway, which resolves the other gateways
	sites        int    // number of sites created so far
	beside       []*Network

	mu  sync.Mutex
	all []*Namespace // in the order of their creation
}

// NewNetwork makes the namespaces <name>-management, <name>-workload and <name>-gateway-<i>.
func NewNetwork(ctx context.Context, name string, family Family, gateways int) (*Network, error) {
	n := &Network{name: name, family: family, PublicName: PublicName}
	if err := n.build(ctx, gateways); err != nil {
		n.Close(context.WithoutCancel(ctx))
		return nil, err
	}
	return n, nil
}

func (n *Network) build(ctx context.Context, gateways int) (err error) {
	if n.Management, err = n.addSwitch(ctx, "management", "mgmt",
		netip.PrefixFrom(ManagementAddress, managementPrefix.Bits())); err != nil {
		return err
	}
	if n.Workload == nil { // not shared with another network
		if n.Workload, err = n.addSwitch(ctx, "workload", workSwitch,
			netip.PrefixFrom(WorkloadAddress, WorkloadPrefix.Bits())); err != nil {
			return err
		}
	}
	for i := range gateways {
		gateway, err := n.add(ctx, "gateway-"+strconv.Itoa(i))
		if err != nil {
			return err
		}
		if err := n.connectGateway(ctx, i, gateway); err != nil {
			return err
		}
		if err := n.NameGateway(i); err != nil {
			return err
		}
	}
	n.namePeers()
	return nil
}

// add makes a namespace that is removed with the network.
func (n *Network) add(ctx context.Context, role string) (*Namespace, error) {
	namespace, err := newNamespace(ctx, n.name+"-"+role)
	if err != nil {
		return nil, err
	}
	n.mu.Lock()
	defer n.mu.Unlock()
	n.all = append(n.all, namespace)
	return namespace, nil
}

// addSwitch adds a namespace with a switch, on which the namespace itself has an address.
func (n *Network) addSwitch(ctx context.Context, role, device string, address netip.Prefix) (*Namespace, error) {
	namespace, err := n.add(ctx, role)
	if err != nil {
		return nil, err
	}
	// Without an address of its own, a bridge takes one of its ports' and changes it with them, which all others learn
	// after seconds.
	own := address.Addr().As4()
	hardware := net.HardwareAddr(append([]byte{2, 0}, own[:]...)).String()
	if err := namespace.IP(ctx, "link", "add", device, "address", hardware, "type", "bridge"); err != nil {
		return nil, err
	}
	return namespace, namespace.addAddresses(ctx, device, n.family.prefixes(address))
}

// connectGateway gives a gateway its two interfaces and a name server, and closes its back doors.
func (n *Network) connectGateway(ctx context.Context, i int, gateway *Namespace) error {
	dns, err := gateway.serveDNS(ctx)
	if err != nil {
		return err
	}
	inside, public := InsideAddress(i), PublicAddress(n.firstGateway+i)
	if err := plug(ctx, cable{
		gateway, gatewayInside, n.family.prefixes(netip.PrefixFrom(inside, managementPrefix.Bits())), n.Management,
		"mgmt", gatewayPort(i),
	}); err != nil {
		return err
	}
	if err := plug(ctx, cable{
		gateway, gatewayPublic, n.family.prefixes(netip.PrefixFrom(public, WorkloadPrefix.Bits())), n.Workload,
		workSwitch, gatewayPort(n.firstGateway + i),
	}); err != nil {
		return err
	}
	if err := closeBackDoors(ctx, gateway, n.family); err != nil {
		return err
	}
	n.Gateways, n.peers = append(n.Gateways, gateway), append(n.peers, dns)
	return nil
}

// gatewayPort returns the name of the end of a gateway's cable at a switch.
func gatewayPort(number int) string { return "gw" + strconv.Itoa(number) }

// NameGateway adds a gateway to the common names of the gateways, so that clients and edges find it.
func (n *Network) NameGateway(i int) error {
	if err := n.Management.AddHost(GatewayName, n.family.Of(InsideAddress(i))...); err != nil {
		return err
	}
	public := n.family.Of(PublicAddress(n.firstGateway + i))
	if err := n.Workload.SetHost(ReplicaName(i, n.PublicName), public...); err != nil {
		return err
	}
	return n.Workload.AddHost(n.PublicName, public...)
}

// ReplicaName returns the name of one gateway in the workload network; {i} stands for any.
func ReplicaName[N int | string](i N, publicName string) string {
	return fmt.Sprintf("replica-%v.%s", i, publicName)
}

// namePeers makes gateways find each other by the names of their Pods. These change, so they are in DNS: Envoy rereads
// a hosts file once a minute.
func (n *Network) namePeers() {
	for _, dns := range n.peers {
		for i := range n.Gateways {
			dns.Set(GatewayReplica(i)+peerSuffix, n.family.Of(PublicAddress(n.firstGateway+i))...)
		}
	}
}

// LosePeer makes one gateway lose all packets that it sends to another one, without an error. FindPeer ends this.
func (n *Network) LosePeer(ctx context.Context, from, to int) error {
	return n.Gateways[from].lose(ctx, n.PublicAddress(to), gatewayPublic)
}

// FindPeer ends what LosePeer did.
func (n *Network) FindPeer(ctx context.Context, from, to int) error {
	return n.Gateways[from].find(ctx, n.PublicAddress(to), gatewayPublic)
}

// PublicAddress returns the first address of one of this network's gateways in the workload network.
func (n *Network) PublicAddress(gateway int) netip.Addr {
	return n.family.First(PublicAddress(n.firstGateway + gateway))
}

// InsideAddress returns the first address of a gateway in the management network.
func (n *Network) InsideAddress(gateway int) netip.Addr {
	return n.family.First(InsideAddress(gateway))
}

// ManagementAddress returns the first address of the management network's own machine.
func (n *Network) ManagementAddress() netip.Addr { return n.family.First(ManagementAddress) }

// WorkloadAddress returns the first address of the workload network's own machine.
func (n *Network) WorkloadAddress() netip.Addr { return n.family.First(WorkloadAddress) }

// Family returns which addresses the machines of the network have.
func (n *Network) Family() Family { return n.family }

// PublicAddresses returns the addresses of this network's gateways in the workload network, of each family.
func (n *Network) PublicAddresses() []netip.Addr {
	var all []netip.Addr
	for i := range n.Gateways {
		all = append(all, n.family.Of(PublicAddress(n.firstGateway+i))...)
	}
	return all
}

// cable connects a device of a namespace, and its future addresses, to a port of the switch in another namespace.
type cable struct {
	of        *Namespace
	device    string
	addresses []netip.Prefix
	at        *Namespace
	bridge    string
	port      string
}

func plug(ctx context.Context, c cable) error {
	if err := ip(ctx, "link", "add", "name", c.device, "netns", c.of.Name, "type", "veth", "peer", "name", c.port,
		"netns", c.at.Name); err != nil {
		return err
	}
	if err := c.at.IP(ctx, "link", "set", c.port, "master", c.bridge, "up"); err != nil {
		return err
	}
	return c.of.addAddresses(ctx, c.device, c.addresses)
}

// AddAddress adds an address to a device and enables it.
func (n *Namespace) AddAddress(ctx context.Context, device string, address netip.Prefix) error {
	args := []string{"address", "add", address.String(), "dev", device}
	if address.Addr().Is6() {
		args = append(args, "nodad") // else it is unusable for two seconds
	}
	if err := n.IP(ctx, args...); err != nil {
		return err
	}
	return n.IP(ctx, "link", "set", device, "up")
}

func (n *Namespace) addAddresses(ctx context.Context, device string, all []netip.Prefix) error {
	for _, address := range all {
		if err := n.AddAddress(ctx, device, address); err != nil {
			return err
		}
	}
	return nil
}

// closeBackDoors makes a gateway drop packets for the address of its other interface. By default Linux accepts them on
// any interface (the weak host model), so a machine that adds a route would reach the listeners of the other network.
// The rules must precede the table of local addresses, which is moved down.
func closeBackDoors(ctx context.Context, gateway *Namespace, family Family) error {
	inside, public := family.prefixes(managementPrefix), family.prefixes(WorkloadPrefix)
	for i, prefix := range inside {
		version := "-4"
		if prefix.Addr().Is6() {
			version = "-6"
		}
		for _, rule := range [][]string{
			{"add", "preference", "10", "lookup", "local"},
			{"add", "preference", "1", "iif", gatewayPublic, "to", prefix.String(), "prohibit"},
			{"add", "preference", "2", "iif", gatewayInside, "to", public[i].String(), "prohibit"},
			{"delete", "preference", "0"},
		} {
			if err := gateway.IP(ctx, append([]string{version, "rule"}, rule...)...); err != nil {
				return err
			}
		}
	}
	return nil
}

// AddXDSServer adds the addresses of an xds-server to their name, and returns the first.
func (n *Network) AddXDSServer(ctx context.Context, i int) (netip.Addr, error) {
	own := AddressAt(managementPrefix, 10+i)
	address := n.family.First(own)
	if i > 0 {
		prefixes := n.family.prefixes(netip.PrefixFrom(own, managementPrefix.Bits()))
		if err := n.Management.addAddresses(ctx, "mgmt", prefixes); err != nil {
			return address, err
		}
	}
	n.xdsServers = append(n.xdsServers, n.family.Of(own)...)
	for _, in := range append([]*Namespace{n.Management}, n.Gateways...) {
		if err := in.SetHost(XDSServerName, n.xdsServers...); err != nil {
			return address, err
		}
	}
	return address, nil
}

// AddGatewayAlias makes another name of the gateway resolve in the management network, as DNS would.
func (n *Network) AddGatewayAlias(name string) error {
	if err := n.Management.AddHost(name, n.family.Of(InsideAddress(0))...); err != nil {
		return fmt.Errorf("adding an alias of the gateway: %w", err)
	}
	return nil
}

// Close removes all namespaces of the network.
func (n *Network) Close(ctx context.Context) {
	n.mu.Lock()
	defer n.mu.Unlock()
	for _, dns := range n.peers {
		dns.Close()
	}
	for _, namespace := range slices.Backward(n.all) {
		RemoveNamespace(ctx, namespace.Name)
	}
}

// AddGateway creates the network of another gateway, which only other gateways find.
func (n *Network) AddGateway(ctx context.Context, i int) error {
	gateway, err := n.add(ctx, GatewayReplica(i))
	if err != nil {
		return err
	}
	if err := n.connectGateway(ctx, i, gateway); err != nil {
		return err
	}
	if err := gateway.SetHost(XDSServerName, n.xdsServers...); err != nil {
		return err
	}
	n.namePeers()
	return nil
}

// RemoveGateway removes the network of the last gateway.
func (n *Network) RemoveGateway(ctx context.Context) {
	i := len(n.Gateways) - 1
	last := n.Gateways[i]
	n.peers[i].Close()
	n.Gateways, n.peers = n.Gateways[:i], n.peers[:i]
	for _, dns := range n.peers {
		dns.Set(GatewayReplica(i) + peerSuffix)
	}
	// The next gateway has the same addresses and another MAC address, for which the others would wait up to 10 s. A
	// Pod has new addresses.
	own := append(n.family.Of(InsideAddress(i)), n.family.Of(PublicAddress(n.firstGateway+i))...)
	for _, at := range append([]*Namespace{n.Management, n.Workload}, n.Gateways...) {
		for _, address := range own {
			_ = at.IP(ctx, "neighbour", "flush", "to", address.String())
		}
	}
	// The kernel removes a namespace some time after its last process, and its cables with it. The next gateway's have
	// the same names.
	_ = n.Management.IP(ctx, "link", "delete", gatewayPort(i))
	_ = n.Workload.IP(ctx, "link", "delete", gatewayPort(n.firstGateway+i))
	RemoveNamespace(ctx, last.Name)
	n.mu.Lock()
	defer n.mu.Unlock()
	n.all = slices.DeleteFunc(n.all, func(other *Namespace) bool { return other == last })
}

// UnnameGateway removes a gateway from the common names of the gateways.
func (n *Network) UnnameGateway(i int) error {
	var inside, public []netip.Addr
	for j := range n.Gateways {
		if j != i {
			inside = append(inside, n.family.Of(InsideAddress(j))...)
			public = append(public, n.family.Of(PublicAddress(n.firstGateway+j))...)
		}
	}
	return errors.Join(n.Management.SetHost(GatewayName, inside...), n.Workload.SetHost(n.PublicName, public...))
}

// GatewayReplica returns the name of one gateway, of its Pod, its log and its folder.
func GatewayReplica(i int) string { return "gateway-" + strconv.Itoa(i) }

// NewBeside creates the networks of a second installation. It shares the workload network of the first one, where its
// gateways have another name and other addresses.
func (n *Network) NewBeside(ctx context.Context, name, publicName string, firstGateway, gateways int) (*Network,
	error,
) {
	second := &Network{
		name: name, family: n.family, Workload: n.Workload, PublicName: publicName, firstGateway: firstGateway,
	}
	if err := second.build(ctx, gateways); err != nil {
		second.Close(context.WithoutCancel(ctx))
		return nil, err
	}
	n.beside = append(n.beside, second)
	return second, nil
}

// nameGateways makes a new machine resolve the names of the gateways, also of the networks beside. Envoy would not see
// a name that is added later for a minute: it reads /etc/hosts again after that time.
func (n *Network) nameGateways(machine *Namespace) error {
	errs := []error{machine.SetHost(n.PublicName, n.PublicAddresses()...)}
	for _, other := range n.beside {
		errs = append(errs, machine.SetHost(other.PublicName, other.PublicAddresses()...))
	}
	return errors.Join(errs...)
}

// directDevice is the management network's interface in the workload network, directAddress its address there.
const directDevice = "direct0"

var directAddress = AddressAt(WorkloadPrefix, 9)

// ConnectDirectly connects the management network to the workload network, as a VPN would. Clusters that are to move
// to tunnels are reached like that before.
func (n *Network) ConnectDirectly(ctx context.Context) error {
	return plug(ctx, cable{
		n.Management, directDevice, n.family.prefixes(netip.PrefixFrom(directAddress, WorkloadPrefix.Bits())), n.Workload,
		workSwitch, "direct",
	})
}

// CutDirect makes that connection lose every packet without an error.
func (n *Network) CutDirect(ctx context.Context) error {
	return n.Management.IP(ctx, "link", "set", directDevice, "down")
}

// HostPort joins a host and a port.
func HostPort(name string, port int) string { return name + ":" + strconv.Itoa(port) }
