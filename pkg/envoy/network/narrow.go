package network

import (
	"errors"
	"net/netip"
	"slices"
	"strings"

	clusterv3 "github.com/envoyproxy/go-control-plane/envoy/config/cluster/v3"
	rbacv3 "github.com/envoyproxy/go-control-plane/envoy/config/rbac/v3"
	routev3 "github.com/envoyproxy/go-control-plane/envoy/config/route/v3"
	dfpcachev3 "github.com/envoyproxy/go-control-plane/envoy/extensions/common/dynamic_forward_proxy/v3"
	dfpfilterv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/http/dynamic_forward_proxy/v3"
	hcmv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/network/http_connection_manager/v3"
	upstreamhttpv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/upstreams/http/v3"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/anypb"

	"github.com/fairlead/fairlead/pkg/envoy/typed"
	"github.com/fairlead/fairlead/pkg/model"
)

// ownerFilter rejects the ports that the owner of the machine does not allow. Only Narrow adds it.
const ownerFilter = "owner"

var errNoFilters = errors.New("it has no filters to which another one could be added")

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
// does not change its argument, and returns a resource that leads to no destination in a network as it is. Instead of
// one that it cannot narrow, it returns one that no Envoy accepts.
func Narrow(resource *anypb.Any, allowed Allowed) *anypb.Any {
	narrowed, err := caches(resource, func(user string, c *dfpcachev3.DnsCacheConfig) (bool, error) {
		if c == nil {
			return false, errUnrestricted
		}
		of, err := rangesOf(c.GetResolvedAddressFilter())
		if err != nil {
			of = nil // no policy accepts this
		}
		may, all := allowed.CIDRs, false
		if forTargets(user) {
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
	resolves := narrowed != nil
	if !resolves {
		narrowed = proto.CloneOf(resource)
	}
	removed, err := managers(narrowed, allowed.narrow)
	if err == nil && resolves {
		_, err = inside(narrowed, &clusterv3.Cluster{}, allowed.narrowPorts)
	}
	switch {
	case err != nil:
		return undecodable(resource)
	case !resolves && !removed:
		return resource
	}
	return narrowed
}

// forTargets reports whether a filter or an Envoy cluster resolves targets.
func forTargets(name string) bool {
	kind, _, _ := strings.Cut(name, "_")
	return kind == targetsFilter
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

// narrow removes targets from an HTTP connection manager. Without the filter that replaces the destination by the
// target, its Envoy cluster would dial what the request contains.
func (a Allowed) narrow(m *hcmv3.HttpConnectionManager) (removed bool, err error) {
	replaces := slices.ContainsFunc(m.GetHttpFilters(), func(f *hcmv3.HttpFilter) bool {
		return f.GetName() == targetsFilter && f.GetTypedConfig().MessageIs(&dfpfilterv3.FilterConfig{})
	})
	hosts := m.GetRouteConfig().GetVirtualHosts()
	left := slices.DeleteFunc(slices.Clone(hosts), func(h *routev3.VirtualHost) bool {
		return leadsToTargets(h) && (!replaces || !slices.ContainsFunc(targetOf(h), a.allowsTarget))
	})
	if len(left) == len(hosts) {
		return false, nil
	}
	m.GetRouteConfig().VirtualHosts = left
	return true, nil
}

// narrowPorts adds the filter for ports before the others of an Envoy cluster that dials for apiservers.
func (a Allowed) narrowPorts(c *clusterv3.Cluster) (changed bool, err error) {
	if len(a.Ports) == 0 || forTargets(c.GetName()) {
		return false, nil
	}
	packed := c.GetTypedExtensionProtocolOptions()[typed.HTTPProtocols]
	changed, err = inside(packed, &upstreamhttpv3.HttpProtocolOptions{},
		func(o *upstreamhttpv3.HttpProtocolOptions) (bool, error) {
			own := rbac(ownerFilter, rbacv3.RBAC_ALLOW, anyone(), ports(a.Ports))
			o.HttpFilters = slices.Insert(o.GetHttpFilters(), 0, own)
			return len(o.GetHttpFilters()) > 1, nil
		})
	if err == nil && !changed {
		err = errNoFilters
	}
	return changed, err
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

// leadsToTargets reports whether a route of a virtual host leads to the Envoy cluster of targets.
func leadsToTargets(h *routev3.VirtualHost) bool {
	return slices.ContainsFunc(h.GetRoutes(), func(r *routev3.Route) bool {
		return forTargets(r.GetRoute().GetCluster())
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
