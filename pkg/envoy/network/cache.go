package network

import (
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"net/netip"
	"slices"

	xdscorev3 "github.com/cncf/xds/go/xds/core/v3"
	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	dfpcachev3 "github.com/envoyproxy/go-control-plane/envoy/extensions/common/dynamic_forward_proxy/v3"
	caresv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/network/dns_resolver/cares/v3"
	matcherv3 "github.com/envoyproxy/go-control-plane/envoy/type/matcher/v3"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/anypb"
	"google.golang.org/protobuf/types/known/wrapperspb"

	"github.com/fairlead/fairlead/pkg/envoy/typed"
	"github.com/fairlead/fairlead/pkg/model"
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

// maxRemoved bounds a list of addresses to remove, because an agent computes all others from it.
const maxRemoved = 256

// destinations are the addresses that an edge dials: those in its networks that are not excluded.
type destinations struct{ networks, excluded []netip.Prefix }

func (d destinations) prefixes() []netip.Prefix { return model.Without(d.networks, d.excluded) }

func (d destinations) none() bool { return len(d.prefixes()) == 0 }

// filter matches the addresses to remove, by the shorter one of two lists: of those that remain, or of those to remove.
// A wide network has long lists of the first kind, because an address that is excluded splits it.
func (d destinations) filter() *matcherv3.AddressMatcher {
	dialled, removed := d.prefixes(), model.Without(everything(), d.networks)
	for _, no := range d.excluded {
		if slices.ContainsFunc(d.networks, no.Overlaps) {
			removed = append(removed, no)
		}
	}
	removed = slices.Compact(slices.SortedFunc(slices.Values(removed), netip.Prefix.Compare))
	if len(removed) >= len(dialled) || len(removed) > maxRemoved {
		return onlyIn(dialled)
	}
	return &matcherv3.AddressMatcher{Ranges: ranges(removed)}
}

// onlyIn matches the addresses to remove: all others.
func onlyIn(dialled []netip.Prefix) *matcherv3.AddressMatcher {
	if len(dialled) == 0 {
		return &matcherv3.AddressMatcher{Ranges: ranges(everything())}
	}
	return &matcherv3.AddressMatcher{InvertMatch: true, Ranges: ranges(dialled)}
}

func ranges(in []netip.Prefix) (all []*xdscorev3.CidrRange) {
	for _, p := range in {
		all = append(all, &xdscorev3.CidrRange{
			AddressPrefix: p.Addr().String(), PrefixLen: wrapperspb.UInt32(uint32(p.Bits())),
		})
	}
	return all
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

// rangesOf is the inverse of onlyIn and of destinations.filter.
func rangesOf(m *matcherv3.AddressMatcher) (all []netip.Prefix, err error) {
	for _, r := range m.GetRanges() {
		addr, err := netip.ParseAddr(r.GetAddressPrefix())
		if err != nil {
			return nil, fmt.Errorf("address prefix %.100q is invalid", r.GetAddressPrefix())
		}
		p := netip.PrefixFrom(addr, int(r.GetPrefixLen().GetValue()))
		if !p.IsValid() || addr.Is4In6() && m.GetInvertMatch() || addr.Zone() != "" || p != p.Masked() {
			return nil, fmt.Errorf("address prefix %.100q with %d bits is invalid", addr, r.GetPrefixLen().GetValue())
		}
		all = append(all, p)
	}
	switch {
	case m.GetInvertMatch() && len(all) > 0:
		return all, nil
	case !m.GetInvertMatch() && len(all) > 0 && len(all) <= maxRemoved:
		return model.Without(everything(), all), nil
	}
	return nil, errUnrestricted
}
