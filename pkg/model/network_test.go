package model

import (
	"math/rand/v2"
	"net/netip"
	"testing"
)

// TestWithoutLeavesExactlyTheOthers compares prefixes with single addresses, which are chosen next to their ends.
func TestWithoutLeavesExactlyTheOthers(t *testing.T) {
	random := rand.New(rand.NewPCG(1, 2))
	prefixes := func(n int) (all []netip.Prefix) {
		for range n {
			addr := netip.AddrFrom4([4]byte{10, byte(random.IntN(4)), byte(random.IntN(256)), byte(random.IntN(256))})
			all = append(all, netip.PrefixFrom(addr, 6+random.IntN(27)).Masked())
		}
		return all
	}
	in := func(all []netip.Prefix, addr netip.Addr) bool {
		for _, p := range all {
			if p.Contains(addr) {
				return true
			}
		}
		return false
	}
	for range 2000 {
		networks, excluded := prefixes(1+random.IntN(3)), prefixes(random.IntN(4))
		left := Without(networks, excluded)
		for _, p := range append(append(prefixes(8), networks...), excluded...) {
			for _, addr := range []netip.Addr{p.Addr(), p.Addr().Prev(), lastOf(p), lastOf(p).Next()} {
				if !addr.IsValid() {
					continue
				}
				if want := in(networks, addr) && !in(excluded, addr); in(left, addr) != want {
					t.Fatalf("%v without %v is %v: %s is in it: %t", networks, excluded, left, addr, !want)
				}
			}
		}
	}
}

func lastOf(p netip.Prefix) netip.Addr {
	b := p.Addr().AsSlice()
	for i := p.Bits(); i < p.Addr().BitLen(); i++ {
		b[i/8] |= 0x80 >> (i % 8)
	}
	addr, _ := netip.AddrFromSlice(b)
	return addr
}

// TestNoEdgeDialsAMetadataService: it returns the credentials of the machine.
func TestNoEdgeDialsAMetadataService(t *testing.T) {
	for name, address := range map[string]string{
		"all clouds": "169.254.169.254", "AWS": "fd00:ec2::254", "Pod Identity of AWS": "fd00:ec2::23",
		"Google Cloud": "fd20:ce::254", "Oracle Cloud": "fd00:c1::a9fe:a9fe", "Scaleway": "fd00:42::42",
		"Akamai": "fd00:a9fe:a9fe::1", "Azure": "168.63.129.16", "Alibaba Cloud": "100.100.100.200",
	} {
		if addr := netip.MustParseAddr(address); !IsNeverDialled(addr) {
			t.Errorf("%s: %s may be dialled", name, addr)
		}
	}
	if addr := netip.MustParseAddr("fd00:42::43"); IsNeverDialled(addr) {
		t.Errorf("%s is no metadata service, and must be dialled", addr)
	}
}

func TestNothingOfTheWholeInternetIsDialledThatNoEdgeMayDial(t *testing.T) {
	for _, family := range []string{"0.0.0.0/0", "::/0"} {
		for _, p := range Without([]netip.Prefix{netip.MustParsePrefix(family)}, NeverDialled()) {
			for _, never := range NeverDialled() {
				if p.Overlaps(never) {
					t.Errorf("%s overlaps %s", p, never)
				}
			}
		}
	}
}

func TestNamesOfAnEgressBelongToNoOtherRole(t *testing.T) {
	const d = TunnelDomain("tunnels.example.com")
	id := NewID()
	for _, s := range []Subject{
		{Role: RoleEgress, Node: NewNodeName(), ID: id}, {Role: RoleEdge, Node: NewNodeName(), ID: id},
	} {
		got, err := d.ParseSubject(s.Node, d.DNSNames(s))
		if err != nil || got != s {
			t.Errorf("%+v is read as %+v: %v", s, got, err)
		}
	}
	if _, err := d.ParseSubject("gateway-0", []string{d.EgressID(id)}); err == nil {
		t.Error("an egress with the node name of a gateway is accepted")
	}
	if _, err := d.ParseSubject("edge-a", []string{d.EgressID(id), d.TunnelID(id)}); err == nil {
		t.Error("one certificate has two roles")
	}
}
