package netns

import "net/netip"

// Family is which addresses the machines of a network have, besides loopback.
type Family int

// Families of networks.
const (
	IPv4 Family = iota
	IPv6
	DualStack
)

// sixthBits is the length of the IPv6 networks, in which machines choose their addresses.
const sixthBits = 64

// Of returns the addresses of a machine whose address in an IPv4 network is a: the IPv4 address first.
func (f Family) Of(a netip.Addr) []netip.Addr {
	switch f {
	case IPv6:
		return []netip.Addr{sixth(a)}
	case DualStack:
		return []netip.Addr{a, sixth(a)}
	case IPv4:
	}
	return []netip.Addr{a}
}

// First returns the first address of Of.
func (f Family) First(a netip.Addr) netip.Addr { return f.Of(a)[0] }

// prefixes is Of for an address with its network.
func (f Family) prefixes(p netip.Prefix) []netip.Prefix {
	var all []netip.Prefix
	for _, a := range f.Of(p.Addr()) {
		bits := p.Bits()
		if a.Is6() {
			bits = sixthBits
		}
		all = append(all, netip.PrefixFrom(a, bits))
	}
	return all
}

// sixth returns the IPv6 address of a machine: 10.111.2.3 is fd00:a:6f:2::3.
func sixth(a netip.Addr) netip.Addr {
	four := a.As4()
	return netip.AddrFrom16([16]byte{0: 0xfd, 3: four[0], 5: four[1], 7: four[2], 15: four[3]})
}
