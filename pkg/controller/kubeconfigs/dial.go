package kubeconfigs

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"net/url"
	"slices"
	"strings"
	"syscall"

	"github.com/fairlead/fairlead/pkg/controller/config"
	"github.com/fairlead/fairlead/pkg/controller/objects"
	"github.com/fairlead/fairlead/pkg/kubeconfig"
)

// errNotAllowed is wrapped by the error for an address that the controller does not dial.
var errNotAllowed = errors.New("the controller must not dial this address")

// dialRule says which addresses that users name the controller may dial. It stands in the management network, where
// its users may not be: so without the installation's leave it dials none that a Tunnel names. The zero value allows
// nothing.
type dialRule struct {
	networks        []netip.Prefix // that the installation allows, by --dial-networks
	apiserver, port string         // host and port of the management cluster's apiserver, which is never dialled
	never           func(netip.Addr) bool
}

func newDialRule(config config.Config, apiserver string) dialRule {
	rule := dialRule{networks: config.DialNetworks, never: config.NeverDial}
	if u, err := url.Parse(apiserver); err == nil && u.Hostname() != "" {
		rule.apiserver, rule.port = u.Hostname(), portOf(u)
	}
	if rule.never == nil {
		rule.never = neverDialled
	}
	return rule
}

// neverDialled says whether an address leads to this machine or its neighbours, such as the metadata service of a
// cloud.
func neverDialled(a netip.Addr) bool {
	return !a.IsValid() || a.IsUnspecified() || a.IsLoopback() || a.IsLinkLocalUnicast() || a.IsLinkLocalMulticast() ||
		a.IsInterfaceLocalMulticast() || a.IsMulticast()
}

// may says whether an address may be dialled at all, as far as it can be known without looking up its name.
func (d dialRule) may(address string) bool {
	host, _, err := net.SplitHostPort(address)
	if err != nil {
		return false
	}
	if a, err := netip.ParseAddr(host); err == nil {
		return d.allowed(a.Unmap())
	}
	return len(d.networks) > 0
}

func (d dialRule) allowed(a netip.Addr) bool {
	return slices.ContainsFunc(d.networks, func(p netip.Prefix) bool { return p.Contains(a) })
}

// dialer is a dialer for an address. It looks at the address that is dialled in the end, so a name can't change
// meanwhile. known: the address is one that Cluster API dials anyway, the endpoint of a Cluster, or a gateway.
func (d dialRule) dialer(ctx context.Context, known bool) *net.Dialer {
	var own []netip.Addr
	if addresses, err := net.DefaultResolver.LookupNetIP(ctx, "ip", d.apiserver); err == nil {
		own = addresses
	}
	return &net.Dialer{Control: func(_, address string, _ syscall.RawConn) error {
		to, err := netip.ParseAddrPort(address)
		if err != nil {
			return fmt.Errorf("%w: %w", errNotAllowed, err)
		}
		a := to.Addr().Unmap()
		isOwn := fmt.Sprint(to.Port()) == d.port &&
			slices.ContainsFunc(own, func(o netip.Addr) bool { return o.Unmap() == a })
		if d.never == nil || d.never(a) || isOwn || (!known && !d.allowed(a)) {
			return errNotAllowed
		}
		return nil
	}}
}

// expected says whether a server of a kubeconfig is one that no Tunnel has named: the endpoint of its Cluster, which
// Cluster API dials too, or a gateway.
func expected(server string, o objects.Group, gateways kubeconfig.Gateways) bool {
	u, err := url.Parse(server)
	if err != nil {
		return false
	}
	if endpoint := endpointOf(o); endpoint != "" && strings.EqualFold(server, endpoint) {
		return true
	}
	host := kubeconfig.Host(server)
	return portOf(u) == fmt.Sprint(gateways.APIServer.Port) && host != "" &&
		(host == gateways.APIServer.Host || host == o.Tunnel.Status.Hostname)
}
