package network

import (
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"net/netip"

	xdscorev3 "github.com/cncf/xds/go/xds/core/v3"
	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	dfpcachev3 "github.com/envoyproxy/go-control-plane/envoy/extensions/common/dynamic_forward_proxy/v3"
	caresv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/network/dns_resolver/cares/v3"
	matcherv3 "github.com/envoyproxy/go-control-plane/envoy/type/matcher/v3"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/anypb"
	"google.golang.org/protobuf/types/known/wrapperspb"

	"github.com/fairlead/fairlead/pkg/envoy/typed"
)

// resolver uses the resolvers of the machine. A name is resolved as it is: the search domains of the machine are not
// part of the network's suffixes.
func resolver() *corev3.TypedExtensionConfig {
	return typed.Extension("envoy.network.dns_resolver.cares", &caresv3.CaresDnsResolverConfig{
		DnsResolverOptions:  &corev3.DnsResolverOptions{NoDefaultSearchDomain: true},
		QueryTimeoutSeconds: wrapperspb.UInt64(1),
		QueryTries:          wrapperspb.UInt32(2),
	})
}

// onlyIn matches the addresses to remove: all others.
func onlyIn(dialled []netip.Prefix) *matcherv3.AddressMatcher {
	m := &matcherv3.AddressMatcher{InvertMatch: len(dialled) > 0}
	if len(dialled) == 0 {
		dialled = everything()
	}
	for _, p := range dialled {
		m.Ranges = append(m.Ranges, &xdscorev3.CidrRange{
			AddressPrefix: p.Addr().String(), PrefixLen: wrapperspb.UInt32(uint32(p.Bits())),
		})
	}
	return m
}

func everything() []netip.Prefix {
	return []netip.Prefix{netip.PrefixFrom(netip.IPv4Unspecified(), 0), netip.PrefixFrom(netip.IPv6Unspecified(), 0)}
}

// named sets the name of a DNS cache, which is different for each content: Envoy keeps a cache until it exits, and
// rejects another one with the same name.
func named(prefix string, c *dfpcachev3.DnsCacheConfig) *dfpcachev3.DnsCacheConfig {
	c.Name = ""
	encoded, err := proto.MarshalOptions{Deterministic: true}.Marshal(c)
	if err != nil {
		panic(err) // only a string that is not UTF-8 cannot be encoded
	}
	sum := sha256.Sum256(encoded)
	c.Name = prefix + "_" + hex.EncodeToString(sum[:8])
	return c
}

// Dials returns the addresses that a listener or an Envoy cluster of an edge dials for apiservers and targets: of every
// destination that it resolves. For any other resource it returns none. It returns an error for a DNS cache whose
// addresses are not restricted to a list.
func Dials(resource *anypb.Any) (dialled []netip.Prefix, err error) {
	_, err = caches(resource, func(_ string, c *dfpcachev3.DnsCacheConfig) (bool, error) {
		of, err := rangesOf(c.GetResolvedAddressFilter())
		dialled = append(dialled, of...)
		return false, err
	})
	return dialled, err
}

// rangesOf is the inverse of onlyIn.
func rangesOf(m *matcherv3.AddressMatcher) (all []netip.Prefix, err error) {
	for _, r := range m.GetRanges() {
		addr, err := netip.ParseAddr(r.GetAddressPrefix())
		if err != nil {
			return nil, fmt.Errorf("address prefix %.100q is invalid", r.GetAddressPrefix())
		}
		p := netip.PrefixFrom(addr, int(r.GetPrefixLen().GetValue()))
		if !p.IsValid() || addr.Is4In6() || addr.Zone() != "" || p != p.Masked() {
			return nil, fmt.Errorf("address prefix %.100q with %d bits is invalid", addr, r.GetPrefixLen().GetValue())
		}
		all = append(all, p)
	}
	switch {
	case m.GetInvertMatch() && len(all) > 0:
		return all, nil
	case !m.GetInvertMatch() && len(all) == len(everything()) && all[0] == everything()[0] && all[1] == everything()[1]:
		return nil, nil
	}
	return nil, errUnrestricted
}
