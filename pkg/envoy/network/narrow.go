package network

import (
	"net/netip"
	"slices"
	"strings"

	rbacv3 "github.com/envoyproxy/go-control-plane/envoy/config/rbac/v3"
	routev3 "github.com/envoyproxy/go-control-plane/envoy/config/route/v3"
	dfpcachev3 "github.com/envoyproxy/go-control-plane/envoy/extensions/common/dynamic_forward_proxy/v3"
	dfpfilterv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/http/dynamic_forward_proxy/v3"
	hcmv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/network/http_connection_manager/v3"
	"google.golang.org/protobuf/types/known/anypb"

	"github.com/fairlead/fairlead/pkg/model"
)

// ownerFilter rejects the ports that the owner of the machine does not allow. Only Narrow adds it.
const ownerFilter = "owner"

// Allowed are the destinations that the owner of a machine allows.
type Allowed struct {
	CIDRs   []netip.Prefix
	Ports   []model.PortRange // of all CIDRs; empty: all
	Targets []model.Endpoint  // also allowed, wherever they are
}

// Restricts reports whether there is a restriction: the zero Allowed allows everything.
func (a Allowed) Restricts() bool { return len(a.CIDRs) > 0 || len(a.Targets) > 0 }

// Narrow returns a resource of an edge that dials nothing but what is also allowed. Apiservers reach addresses in
// Allowed.CIDRs at Allowed.Ports. A named target remains if it is in Allowed.Targets, or is such an address. Narrow
// does not change its argument, and returns a resource that resolves no destinations as it is. Instead of one that it
// cannot narrow, it returns one that no Envoy accepts.
func Narrow(resource *anypb.Any, allowed Allowed) *anypb.Any {
	narrowed, err := caches(resource, func(c *dfpcachev3.DnsCacheConfig) (bool, error) {
		if c == nil {
			return false, errUnrestricted
		}
		of, err := rangesOf(c.GetResolvedAddressFilter())
		if err != nil {
			of = nil // no policy accepts this
		}
		prefix, _, _ := strings.Cut(c.GetName(), "_")
		may, all := allowed.CIDRs, false
		if prefix == targetsFilter {
			may, all = allowed.ofTargets()
		}
		if !all {
			of = model.Without(of, model.Without(everything(), may))
		}
		c.ResolvedAddressFilter = onlyIn(of)
		named(withoutHash(c.GetName()), c)
		return true, nil
	})
	if err != nil {
		return undecodable(resource)
	}
	if narrowed == nil {
		return resource
	}
	_, err = managers(narrowed, func(m *hcmv3.HttpConnectionManager) (bool, error) { return allowed.narrow(m), nil })
	if err != nil {
		return undecodable(resource)
	}
	return narrowed
}

// undecodable returns a resource that Envoy rejects: its value ends within a number. Envoy may decode what Go does not,
// such as a string that is not UTF-8.
func undecodable(resource *anypb.Any) *anypb.Any {
	return &anypb.Any{TypeUrl: resource.GetTypeUrl(), Value: []byte{0xff}}
}

func withoutHash(name string) string {
	if i := strings.LastIndexByte(name, '_'); i >= 0 {
		return name[:i]
	}
	return name
}

// ofTargets returns the addresses of targets. all is true if one of them is a name: then the routes restrict them.
func (a Allowed) ofTargets() (may []netip.Prefix, all bool) {
	may = slices.Clone(a.CIDRs)
	for _, t := range a.Targets {
		addr, err := netip.ParseAddr(t.Host)
		if err != nil {
			return nil, true
		}
		may = append(may, netip.PrefixFrom(addr, addr.BitLen()))
	}
	return may, false
}

// narrow removes targets from an HTTP connection manager, and adds the filter for ports before its router.
func (a Allowed) narrow(m *hcmv3.HttpConnectionManager) bool {
	resolves := slices.ContainsFunc(m.GetHttpFilters(), func(f *hcmv3.HttpFilter) bool {
		return f.GetTypedConfig().MessageIs(&dfpfilterv3.FilterConfig{})
	})
	if !resolves {
		return false
	}
	hosts := m.GetRouteConfig().GetVirtualHosts()
	m.GetRouteConfig().VirtualHosts = slices.DeleteFunc(hosts, func(h *routev3.VirtualHost) bool {
		return leadsToTargets(h) && !slices.ContainsFunc(targetOf(h), a.allowsTarget)
	})
	if len(a.Ports) == 0 {
		return true
	}
	last := len(m.GetHttpFilters()) - 1
	m.HttpFilters = slices.Insert(m.GetHttpFilters(), last, rbac(ownerFilter, rbacv3.RBAC_ALLOW, anyone(), ports(a.Ports)))
	for _, h := range m.GetRouteConfig().GetVirtualHosts() {
		if leadsToTargets(h) {
			without(h, ownerFilter)
		}
	}
	return true
}

// allowsTarget reports whether a named target may be dialled.
func (a Allowed) allowsTarget(t model.Endpoint) bool {
	return slices.Contains(a.Targets, t) || a.Contains(t)
}

// Contains reports whether an endpoint is an address in a CIDR, and its port is allowed.
func (a Allowed) Contains(e model.Endpoint) bool {
	addr, err := netip.ParseAddr(e.Host)
	return err == nil && slices.ContainsFunc(a.CIDRs, func(p netip.Prefix) bool { return p.Contains(addr) }) &&
		(len(a.Ports) == 0 || slices.ContainsFunc(a.Ports, func(p model.PortRange) bool {
			return p.First <= e.Port && e.Port <= p.Last
		}))
}

// leadsToTargets reports whether every route of a virtual host leads to the Envoy cluster of targets.
func leadsToTargets(h *routev3.VirtualHost) bool {
	return !slices.ContainsFunc(h.GetRoutes(), func(r *routev3.Route) bool {
		return !strings.HasPrefix(r.GetRoute().GetCluster(), targetsFilter+"_")
	})
}

// targetOf returns the address of the target that a virtual host serves, or nothing.
func targetOf(h *routev3.VirtualHost) []model.Endpoint {
	per := &dfpfilterv3.PerRouteConfig{}
	if h.GetTypedPerFilterConfig()[targetsFilter].UnmarshalTo(per) != nil {
		return nil
	}
	at, err := model.ParseEndpoint(per.GetHostRewriteLiteral())
	if err != nil {
		return nil
	}
	return []model.Endpoint{at}
}
