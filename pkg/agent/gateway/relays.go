package gateway

import (
	"context"
	"errors"
	"net"
	"net/netip"
	"slices"
	"time"

	"google.golang.org/protobuf/types/known/anypb"

	"github.com/fairlead/fairlead/internal/retry"
	"github.com/fairlead/fairlead/pkg/envoy"
)

const (
	// relaysInterval is the interval at which the addresses of the other gateways are resolved: as often as Envoy does.
	relaysInterval = 5 * time.Second
	// relaysTime bounds one resolution of all of them.
	relaysTime = 3 * time.Second
	// maxRelayAddresses bounds the addresses of one gateway that a wrong DNS answer can cause.
	maxRelayAddresses = 16
)

// proxyProtocol returns the settings of the PROXY protocol, with the present addresses of the other gateways.
func (a *admissions) proxyProtocol() envoy.ProxyProtocol {
	p := a.config.ProxyProtocol
	if p.Enabled() && len(p.Gateways) == 0 {
		a.mu.Lock()
		defer a.mu.Unlock()
		p.Gateways = a.relays
	}
	return p
}

// followRelays keeps the public listener up to date with the addresses of the other gateways until ctx ends. It does
// nothing if these are configured, or without PROXY protocol.
func (a *admissions) followRelays(ctx context.Context) {
	if !a.config.ProxyProtocol.Enabled() || len(a.config.ProxyProtocol.Gateways) > 0 {
		return
	}
	known := map[string][]netip.Prefix{}
	for ctx.Err() == nil {
		var hosts []string
		a.deps.XDS.Clusters(func(name, _ string, resource *anypb.Any) {
			if gateway, ok := envoy.PeerOf(name); ok && gateway != a.config.Name {
				hosts = append(hosts, envoy.PeerAddresses(resource)...)
			}
		})
		known = resolveRelays(ctx, hosts, known, net.DefaultResolver.LookupNetIP)
		if a.setRelays(known) {
			a.deps.XDS.ReapplyListener(envoy.PublicListener)
		}
		_ = retry.Sleep(ctx, relaysInterval)
	}
}

// setRelays records the addresses of the other gateways and reports whether they have changed.
func (a *admissions) setRelays(known map[string][]netip.Prefix) bool {
	var relays []netip.Prefix
	for _, addresses := range known {
		relays = append(relays, addresses...)
	}
	slices.SortFunc(relays, netip.Prefix.Compare)
	relays = slices.Compact(relays)
	a.mu.Lock()
	defer a.mu.Unlock()
	if slices.Equal(relays, a.relays) {
		return false
	}
	a.relays = relays
	return true
}

// resolveRelays returns the addresses of each host. A host that cannot be resolved now keeps its addresses, unless DNS
// answers that it does not exist.
func resolveRelays(
	ctx context.Context, hosts []string, known map[string][]netip.Prefix,
	lookup func(ctx context.Context, network, host string) ([]netip.Addr, error),
) map[string][]netip.Prefix {
	ctx, cancel := context.WithTimeout(ctx, relaysTime)
	defer cancel()
	resolved := make(map[string][]netip.Prefix, len(hosts))
	for _, host := range hosts {
		addresses, err := lookup(ctx, "ip", host)
		if err != nil {
			if dns := (*net.DNSError)(nil); !errors.As(err, &dns) || !dns.IsNotFound {
				resolved[host] = known[host]
			}
			continue
		}
		for _, address := range addresses[:min(len(addresses), maxRelayAddresses)] {
			address = address.Unmap().WithZone("")
			resolved[host] = append(resolved[host], netip.PrefixFrom(address, address.BitLen()))
		}
	}
	return resolved
}
