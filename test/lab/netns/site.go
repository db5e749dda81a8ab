package netns

import (
	"context"
	"fmt"
	"net/netip"
	"os"
	"strconv"
)

// siteDevice is the cable of a site.
const siteDevice = "net0"

var (
	// secludedPrefix is the network behind a proxy; each has only the site and its proxy.
	secludedPrefix = netip.MustParsePrefix("10.111.7.0/24")
	// nowhere is an address of the workload network to which packets go and from which none comes.
	nowhere = netip.MustParseAddr("10.111.2.250")
)

// Site is a machine room of its own: a namespace with its own cable and its own names.
type Site struct {
	*Namespace
	Address netip.Addr
	// Proxy is the only machine that the site reaches; nil if the site is on the workload network itself.
	Proxy *Namespace
}

// AddSite makes a site on the workload network. It knows the gateways by their public name. Names of sites must be
// short and differ.
func (n *Network) AddSite(ctx context.Context, name string) (*Site, error) {
	namespace, err := n.add(ctx, name)
	if err != nil {
		return nil, err
	}
	site := &Site{Namespace: namespace, Address: n.nextSiteAddress()}
	if err := n.plugSite(ctx, site.Namespace, site.Address); err != nil {
		return nil, err
	}
	return site, site.SetHost(n.PublicName, n.PublicAddresses()...)
}

// AddSecludedSite makes a site that reaches nothing but a proxy machine, which is on the workload network and forwards
// no packets. No name is known in the site; the proxy knows the gateways.
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
	site := &Site{Namespace: inner, Address: AddressAt(secludedPrefix, 10), Proxy: proxy}
	if err := proxy.Do(func() error {
		return os.WriteFile("/proc/sys/net/ipv4/ip_forward", []byte("0"),
			0o644)
	}); err != nil {
		return nil, fmt.Errorf("making the proxy of site %s: %w", name, err)
	}
	if err := plug(ctx, cable{
		inner, siteDevice, netip.PrefixFrom(site.Address, secludedPrefix.Bits()), proxy, "inner",
		"site",
	}); err != nil {
		return nil, err
	}
	// Packets for anywhere go to the proxy, as in many such networks: it is the proxy that drops them.
	if err := inner.IP(ctx, "route", "add", "default", "via", AddressAt(secludedPrefix, 1).String()); err != nil {
		return nil, err
	}
	if err := n.plugSite(ctx, proxy, n.nextSiteAddress()); err != nil {
		return nil, err
	}
	return site, proxy.SetHost(n.PublicName, n.PublicAddresses()...)
}

// ProxyAddress is where a secluded site reaches its proxy machine.
func ProxyAddress() netip.Addr { return AddressAt(secludedPrefix, 1) }

// plugSite connects a namespace to the workload network.
func (n *Network) plugSite(ctx context.Context, namespace *Namespace, address netip.Addr) error {
	port := "site" + strconv.Itoa(int(address.As4()[3]))
	return plug(ctx, cable{
		namespace, siteDevice, netip.PrefixFrom(address, WorkloadPrefix.Bits()), n.Workload, "work",
		port,
	})
}

// nextSiteAddress is an address of the workload network for one more site.
func (n *Network) nextSiteAddress() netip.Addr {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.sites++
	return AddressAt(WorkloadPrefix, 20+n.sites)
}

// Unplug takes the site's cable away: packets are lost without an error. Plug puts it back.
func (s *Site) Unplug(ctx context.Context) error {
	return s.IP(ctx, "link", "set", siteDevice, "down")
}

// Plug puts the cable of Unplug back.
func (s *Site) Plug(ctx context.Context) error {
	return s.IP(ctx, "link", "set", siteDevice, "up")
}

// Nowhere is an address that swallows every packet that the site sends to it.
func (s *Site) Nowhere(ctx context.Context) (netip.Addr, error) {
	return nowhere, s.Lose(ctx, nowhere)
}

// AddAddress gives the site's machine one more address, which only it reaches itself.
func (s *Site) AddAddress(ctx context.Context, address netip.Addr) error {
	args := []string{"address", "add", address.String(), "dev", "lo"}
	if address.Is6() {
		args = append(args, "nodad")
	}
	return s.IP(ctx, args...)
}

// Lose makes an address swallow every packet of the site from now on, also of connections that are open.
func (s *Site) Lose(ctx context.Context, address netip.Addr) error {
	return s.IP(ctx, "neighbour", "replace", address.String(), "lladdr", "02:00:00:00:00:fe", "dev", siteDevice, "nud",
		"permanent")
}
