package netns

import (
	"context"
	"fmt"
	"net/netip"
	"os"
	"strconv"
)

// siteDevice is the network device of a site.
const siteDevice = "net0"

var (
	// secludedPrefix is the network behind a proxy; each has only the site and its proxy.
	secludedPrefix = netip.MustParsePrefix("10.111.7.0/24")
	// nowhere is an address of the workload network that swallows all packets.
	nowhere = netip.MustParseAddr("10.111.2.250")
)

// Site is a separate location: a namespace with its own network cable and its own names.
type Site struct {
	*Namespace
	Address netip.Addr // the first one
	// Proxy is the only machine that the site reaches; nil if the site is on the workload network itself.
	Proxy *Namespace

	// at is the namespace with the switch that the site's own cable leads to, and port the cable's end there. port is
	// empty if a proxy is in between.
	at   *Namespace
	port string
}

// AddSite adds a site on the workload network. It resolves the gateways' public name. Names of sites must be short and
// unique.
func (n *Network) AddSite(ctx context.Context, name string) (*Site, error) {
	namespace, err := n.add(ctx, name)
	if err != nil {
		return nil, err
	}
	own := n.nextSiteAddress()
	site := &Site{Namespace: namespace, Address: n.family.First(own), at: n.Workload, port: sitePort(own)}
	if err := n.plugSite(ctx, site.Namespace, own); err != nil {
		return nil, err
	}
	return site, n.nameGateways(site.Namespace)
}

// AddSecludedSite adds a site that reaches only a proxy machine, which is on the workload network and forwards no
// packets. The site resolves no names; the proxy resolves the gateways.
func (n *Network) AddSecludedSite(ctx context.Context, name string) (*Site, error) {
	inner, err := n.add(ctx, name)
	if err != nil {
		return nil, err
	}
	proxy, err := n.addSwitch(ctx, name+"-proxy", "inner",
		netip.PrefixFrom(AddressAt(secludedPrefix, 1), secludedPrefix.Bits()))
	if err != nil {
		return nil, err
	}
	site := &Site{Namespace: inner, Address: n.family.First(AddressAt(secludedPrefix, 10)), Proxy: proxy}
	if err := proxy.Do(func() error {
		return os.WriteFile("/proc/sys/net/ipv4/ip_forward", []byte("0"),
			0o644)
	}); err != nil {
		return nil, fmt.Errorf("making the proxy of site %s: %w", name, err)
	}
	if err := plug(ctx, cable{
		inner, siteDevice, n.family.prefixes(netip.PrefixFrom(AddressAt(secludedPrefix, 10), secludedPrefix.Bits())), proxy,
		"inner", "site",
	}); err != nil {
		return nil, err
	}
	// All packets are routed to the proxy, as in many such networks, and the proxy drops them.
	if err := inner.IP(ctx, "route", "add", "default", "via",
		n.family.First(AddressAt(secludedPrefix, 1)).String()); err != nil {
		return nil, err
	}
	if err := n.plugSite(ctx, proxy, n.nextSiteAddress()); err != nil {
		return nil, err
	}
	return site, n.nameGateways(proxy)
}

// ProxyAddress returns the address of a secluded site's proxy machine.
func ProxyAddress() netip.Addr { return AddressAt(secludedPrefix, 1) }

// plugSite connects a namespace to the workload network. address is its address in an IPv4 network.
func (n *Network) plugSite(ctx context.Context, namespace *Namespace, address netip.Addr) error {
	return plug(ctx, cable{
		namespace, siteDevice, n.family.prefixes(netip.PrefixFrom(address, WorkloadPrefix.Bits())), n.Workload, workSwitch,
		sitePort(address),
	})
}

// sitePort returns the name of the end of a site's cable at the switch. address is the site's in an IPv4 network.
func sitePort(address netip.Addr) string { return "site" + strconv.Itoa(int(address.As4()[3])) }

// nextSiteAddress returns an address of the workload network for the next site.
func (n *Network) nextSiteAddress() netip.Addr {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.sites++
	return AddressAt(WorkloadPrefix, 20+n.sites)
}

// Unplug disconnects the site's cable: packets are lost without an error. Plug reconnects it.
func (s *Site) Unplug(ctx context.Context) error {
	return s.IP(ctx, "link", "set", siteDevice, "down")
}

// Plug reconnects the cable after Unplug.
func (s *Site) Plug(ctx context.Context) error {
	return s.IP(ctx, "link", "set", siteDevice, "up")
}

// Nowhere returns an address that swallows every packet that the site sends to it.
func (s *Site) Nowhere(ctx context.Context) (netip.Addr, error) {
	return nowhere, s.Lose(ctx, nowhere)
}

// AddAddress adds an address to the site's machine that only the machine itself reaches.
func (s *Site) AddAddress(ctx context.Context, address netip.Addr) error {
	args := []string{"address", "add", address.String(), "dev", "lo"}
	if address.Is6() {
		args = append(args, "nodad")
	}
	return s.IP(ctx, args...)
}

// Lose makes an address swallow every packet of the site from now on, including packets of open connections.
func (s *Site) Lose(ctx context.Context, address netip.Addr) error {
	return s.lose(ctx, address, siteDevice)
}

// Find ends what Lose did to an address.
func (s *Site) Find(ctx context.Context, address netip.Addr) error {
	return s.find(ctx, address, siteDevice)
}

// lose makes an address behind a device swallow every packet, and find ends this.
func (n *Namespace) lose(ctx context.Context, address netip.Addr, device string) error {
	return n.IP(ctx, "neighbour", "replace", address.String(), "lladdr", "02:00:00:00:00:fe", "dev", device, "nud",
		"permanent")
}

func (n *Namespace) find(ctx context.Context, address netip.Addr, device string) error {
	return n.IP(ctx, "neighbour", "delete", address.String(), "dev", device)
}
