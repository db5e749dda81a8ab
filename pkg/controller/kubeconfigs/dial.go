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
	"github.com/fairlead/fairlead/pkg/model"
)

// errNotAllowed wraps the error for an address that the controller must not dial.
var errNotAllowed = errors.New("the controller must not dial this address")

// dialRule decides which user-supplied addresses the controller may dial. The controller runs in the management
// network, which its users may not be able to reach, so by default it dials no address that a Tunnel names. The zero
// value allows nothing.
type dialRule struct {
	networks        []netip.Prefix // allowed by the installation with --dial-networks
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

// neverDialled reports whether an address belongs to this machine or its neighbours, such as the metadata service of a
// cloud: the same addresses that no edge dials. In an IPv6 network the address behind NAT64 decides.
func neverDialled(a netip.Addr) bool {
	if nat64.Contains(a) {
		b := a.As16()
		a = netip.AddrFrom4([4]byte(b[12:]))
	}
	return !a.IsValid() || model.IsNeverDialled(a)
}

// nat64 has IPv4 addresses in their last four bytes (RFC 6052).
var nat64 = netip.MustParsePrefix("64:ff9b::/96")

// may reports whether an address may be dialled, without resolving its name.
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

// dialer returns a dialer for an address. It checks the resolved address at dial time, so a name cannot change in
// between. known means that Cluster API dials the address anyway: the endpoint of a Cluster, or a gateway.
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

// expected reports whether no Tunnel has named a server of a kubeconfig: it is a gateway, or the endpoint of the
// Cluster, which Cluster API dials too.
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
