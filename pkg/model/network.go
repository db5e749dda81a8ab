package model

import (
	"cmp"
	"fmt"
	"net/netip"
	"slices"
	"strings"
)

// Network is what the edges of a RemoteNetwork serve, and for which apiservers.
type Network struct {
	Name    string // of the RemoteNetwork
	Cluster Key    // that has the network
	// EgressID is Tunnel.spec.id of the apiservers that may use the network; empty: none may.
	EgressID string
	CIDRs    []netip.Prefix // destinations of apiservers, masked
	Suffixes []string       // DNS domains, with the names below them
	Ports    []PortRange    // of CIDRs and Suffixes; empty: all
	Narrowed int64          // how often CIDRs or Ports have lost a part
	Targets  []Target       // for clients of the gateways
	// APIServers are dialled by gateways for machines in the network; empty: APIServerID decides.
	APIServers []Endpoint
	// APIServerID is Tunnel.spec.id of the tunnel that leads to the apiservers of the Cluster; empty: none does.
	APIServerID string
}

// Target is one address in a network, and the DNS name by which clients of the gateways reach it.
type Target struct {
	Name    string
	Address Endpoint
}

// PortRange is a range of TCP ports, including both ends.
type PortRange struct{ First, Last uint16 }

// AllPorts are the ports of a network that names none.
func AllPorts() []PortRange { return []PortRange{{First: 1, Last: 65535}} }

// AllowedPorts returns the ports of CIDRs and Suffixes.
func (n Network) AllowedPorts() []PortRange {
	if len(n.Ports) == 0 {
		return AllPorts()
	}
	return n.Ports
}

// NeverDialled are the addresses that no edge dials for an apiserver, whatever its network contains: the edge's own
// machine, link-local addresses with the metadata services of clouds, multicast, and IPv4 addresses written as IPv6.
func NeverDialled() []netip.Prefix { return slices.Clone(neverDialled) }

var neverDialled = prefixes(
	"0.0.0.0/8", "127.0.0.0/8", "169.254.0.0/16", "224.0.0.0/3", // RFC 6890, RFC 5771
	"::/96", "::ffff:0:0/96", "64:ff9b::/96", "fe80::/10", "fec0::/10", "ff00::/8", // RFC 4291, RFC 6052
	// Metadata services of clouds that have no link-local address.
	"fd00:ec2::254/128",      // AWS
	"fd00:ec2::23/128",       // Pod Identity of AWS
	"fd20:ce::254/128",       // Google Cloud
	"fd00:c1::a9fe:a9fe/128", // Oracle Cloud
	"fd00:42::42/128",        // Scaleway
	"fd00:a9fe:a9fe::1/128",  // Akamai (Linode)
	"168.63.129.16/32",       // the host of a virtual machine in Azure
	"100.100.100.200/32",     // Alibaba Cloud
)

func prefixes(all ...string) (parsed []netip.Prefix) {
	for _, cidr := range all {
		parsed = append(parsed, netip.MustParsePrefix(cidr))
	}
	return parsed
}

// IsNeverDialled reports whether an address, with or without a zone, is one of NeverDialled.
func IsNeverDialled(address netip.Addr) bool {
	address = address.WithZone("")
	return slices.ContainsFunc(neverDialled, func(p netip.Prefix) bool { return p.Contains(address) })
}

// Addresses returns the hosts of endpoints that are IP addresses, each once and without a zone.
func Addresses(of ...Endpoint) (all []netip.Addr) {
	for _, e := range of {
		address, err := netip.ParseAddr(e.Host)
		if address = address.Unmap().WithZone(""); err == nil && !slices.Contains(all, address) {
			all = append(all, address)
		}
	}
	return all
}

// Without returns the addresses of networks that are in none of the excluded ones, as prefixes in order.
func Without(networks, excluded []netip.Prefix) []netip.Prefix {
	left := slices.Clone(networks)
	for _, no := range excluded {
		var next []netip.Prefix
		for _, n := range left {
			next = append(next, without(n, no)...)
		}
		left = next
	}
	return slices.SortedFunc(slices.Values(left), func(a, b netip.Prefix) int {
		return cmp.Or(a.Addr().Compare(b.Addr()), cmp.Compare(a.Bits(), b.Bits()))
	})
}

// without halves a prefix until the excluded one is one of the halves.
func without(n, no netip.Prefix) []netip.Prefix {
	var left []netip.Prefix
	for {
		switch {
		case !n.Overlaps(no):
			return append(left, n)
		case no.Bits() <= n.Bits():
			return left
		}
		low := netip.PrefixFrom(n.Addr(), n.Bits()+1)
		high := netip.PrefixFrom(upperHalf(n), n.Bits()+1)
		if low.Overlaps(no) {
			left, n = append(left, high), low
		} else {
			left, n = append(left, low), high
		}
	}
}

// upperHalf returns the first address of the upper half of a prefix.
func upperHalf(n netip.Prefix) netip.Addr {
	b := n.Addr().AsSlice()
	b[n.Bits()/8] |= 0x80 >> (n.Bits() % 8)
	addr, _ := netip.AddrFromSlice(b)
	return addr
}

// EgressID returns the name of the apiservers that enrolled with an id, in their certificates. It is not a tunnel id,
// and never dialled.
func (d TunnelDomain) EgressID(id string) string { return id + d.EgressIDSuffix() }

// EgressIDSuffix returns the suffix of every name that EgressID returns. No other name has it.
func (d TunnelDomain) EgressIDSuffix() string { return ".egress." + string(d) }

// ParseEgressID is the inverse of EgressID. It returns false if name is no such name of this domain.
func (d TunnelDomain) ParseEgressID(name string) (id string, ok bool) {
	id, ok = strings.CutSuffix(name, d.EgressIDSuffix())
	return id, ok && idPattern.MatchString(id)
}

// Egress returns the name of the gateways for apiservers, on the public port.
func (d TunnelDomain) Egress() string { return "egress." + string(d) }

// Forward returns the name of the gateways for machines of networks that reach their apiserver, on the public port.
func (d TunnelDomain) Forward() string { return "forward." + string(d) }

// TargetName returns the DNS name of a target of a network.
func (d TunnelDomain) TargetName(target, network string, cluster Key) (string, error) {
	name := target + "." + network + "." + strings.ReplaceAll(cluster.Name, ".", "--") + "." + cluster.Namespace + "." +
		string(d)
	if err := ValidateDNSName(name); err != nil {
		return "", fmt.Errorf("the name of target %s is invalid: %w", target, err)
	}
	return name, nil
}

// ValidateCIDR parses a CIDR of a network.
func ValidateCIDR(cidr string) (netip.Prefix, error) {
	p, err := netip.ParsePrefix(cidr)
	switch {
	case err != nil:
		return netip.Prefix{}, fmt.Errorf("%q is not a CIDR", cidr)
	case p != p.Masked():
		return netip.Prefix{}, fmt.Errorf("%s has bits after its prefix: %s has none", cidr, p.Masked())
	case p.Addr().Is4In6():
		return netip.Prefix{}, fmt.Errorf("%s is an IPv4 network written as IPv6", cidr)
	}
	return p, nil
}

// ValidateSuffix checks a DNS suffix of a network: a lower-case DNS domain, which may have a single label and contain
// underscores, that is neither above nor below the tunnel domain.
func (d TunnelDomain) ValidateSuffix(suffix string) error {
	if err := validateLabels(suffix, hostPattern); err != nil {
		return err
	}
	if d.Contains(suffix) || strings.HasSuffix(string(d), "."+suffix) {
		return fmt.Errorf("%q contains the tunnel domain %s or is in it", suffix, d)
	}
	return nil
}
