package check

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"net/url"
	"os"
	"strings"
	"syscall"

	"github.com/fairlead/fairlead/pkg/diagnose/addresses"
	"github.com/fairlead/fairlead/pkg/diagnose/explain"
	"github.com/fairlead/fairlead/pkg/kubeconfig"
)

// maxAddresses bounds how many addresses of a name are dialled.
const maxAddresses = 16

// checkName resolves, on this machine, the host that clients of the kubeconfig dial.
func checkName(ctx context.Context, v *visit) finding {
	if v.Via != "" {
		host, port, err := net.SplitHostPort(v.Via)
		if err != nil {
			return broken("--via "+v.Via+" is not host:port", "--via has the wrong form", "give it as host:port")
		}
		v.host, v.port = host, port
	}
	switch {
	case v.host == "" && v.cluster == nil:
		return skipped("the Cluster was not read")
	case v.host == "" && !v.readRecord():
		return v.nothingToDial()
	}
	if address, err := netip.ParseAddr(v.host); err == nil {
		v.addresses = []netip.Addr{address}
		return ok("%s is an IP address%s", address, v.onRecord())
	}
	found, err := v.network.Lookup(ctx, v.host)
	for _, address := range found[:min(len(found), maxAddresses)] {
		v.addresses = append(v.addresses, address.Unmap())
	}
	if err == nil && len(found) > 0 {
		return ok("%s is %s%s", v.host, addresses.Join(v.addresses), v.onRecord())
	}
	return v.unresolved(err)
}

// lead stores the address that clients of a kubeconfig dial.
func (v *visit) lead(endpoint kubeconfig.Endpoint) {
	v.proxied = endpoint.ProxyURL != ""
	if u, err := url.Parse(cmp.Or(endpoint.ProxyURL, endpoint.Server)); err == nil {
		v.host, v.port = strings.ToLower(strings.TrimSuffix(u.Hostname(), ".")), u.Port()
		if v.port == "" {
			v.port = map[string]string{"http": "80", "socks5": "1080"}[u.Scheme]
		}
	}
	v.dials = net.JoinHostPort(v.host, cmp.Or(v.port, "443"))
}

// readRecord reads the address that clients dial from the Tunnel's status, if the kubeconfig cannot be read, and
// returns whether it is there.
func (v *visit) readRecord() bool {
	if v.tunnel == nil || v.secret != nil || v.broken[HopKubeconfig] {
		return false
	}
	record := v.tunnel.Status.Kubeconfig
	v.lead(kubeconfig.Endpoint{Server: record.Server, ProxyURL: record.ProxyURL})
	return v.host != ""
}

// onRecord states the source of the address if that is neither the kubeconfig nor the command.
func (v *visit) onRecord() string {
	if v.secret != nil || v.Via != "" {
		return ""
	}
	return " (according to the Tunnel's status)"
}

func (v *visit) nothingToDial() finding {
	if v.secret == nil && !v.broken[HopKubeconfig] {
		return unknown(
			"the address that clients dial is in the kubeconfig Secret, which cannot be read from here, and not in the "+
				"Tunnel's status",
			"run fairlead check as a user that may read Secrets in namespace "+v.key.Namespace,
		)
	}
	return skipped("no usable kubeconfig")
}

// unresolved returns the finding for a name without an address.
func (v *visit) unresolved(err error) finding {
	detail := v.host + " does not resolve from here"
	if inKubernetes(v.host) && os.Getenv("KUBERNETES_SERVICE_HOST") == "" {
		return unknown(detail+": only the DNS of the management cluster resolves this name", v.elsewhere())
	}
	var dns *net.DNSError
	switch {
	case err == nil:
	case errors.As(err, &dns) && dns.IsNotFound:
	case errors.As(err, &dns) && dns.IsTimeout, errors.Is(err, context.DeadlineExceeded):
		return broken(
			detail+": DNS does not answer", "the DNS of this network is down or unreachable",
			"restore DNS: the resolver in /etc/resolv.conf must answer; "+v.orElsewhere(),
		)
	default:
		return broken(
			detail+": "+text(err), "the DNS of this network gives no usable answer",
			"check that the resolver in /etc/resolv.conf works; "+v.orElsewhere(),
		)
	}
	return broken(detail+": DNS has no address for this name", "the record of the gateways is missing in DNS",
		"point "+v.host+" to the gateways (the Service gateway in namespace "+v.installation()+"); "+v.orElsewhere())
}

// elsewhere is the cure for a hop that cannot be tested from here.
func (v *visit) elsewhere() string {
	return "run fairlead check in a Pod of the management cluster, or forward a port (kubectl -n " + v.installation() +
		" port-forward service/gateway 6443) and pass --via=127.0.0.1:6443"
}

func (v *visit) orElsewhere() string {
	return "if only this machine cannot resolve it, " + v.elsewhere()
}

// inKubernetes reports whether a name belongs to a Service or Pod.
func inKubernetes(host string) bool {
	host = strings.TrimSuffix(host, ".")
	return strings.HasSuffix(host, ".svc") || strings.HasSuffix(host, ".cluster.local")
}

// checkPort connects to each address that clients may dial.
func checkPort(ctx context.Context, v *visit) finding {
	if len(v.addresses) == 0 {
		return skipped("no address to dial")
	}
	port, err := net.DefaultResolver.LookupPort(ctx, "tcp", cmp.Or(v.port, "443"))
	if err != nil {
		return broken(
			"port "+v.port+" is invalid", "the kubeconfig has an invalid port",
			"delete the kubeconfig Secret: its control-plane provider writes it again",
		)
	}
	d := addresses.Dial(ctx, v.network.DialContext, v.addresses, uint16(port))
	v.open = len(d.Open)
	open, first := strings.Join(d.Open, ", "), d.First()
	switch {
	case first == nil && len(d.NoRoute) > 0:
		return ok(
			"%s accepts connections; this machine has no route to %s, which clients here skip", open,
			strings.Join(d.NoRoute, ", "),
		)
	case first == nil:
		return ok("%s accepts connections", open)
	}
	var said []string
	for _, f := range d.Failed {
		said = append(said, fmt.Sprintf("%s: %s", f.Address, cmp.Or(explain.Dial(f.Err), text(f.Err))))
	}
	cause, cure := v.dialCause(first)
	if len(d.Open) > 0 {
		return warning(
			strings.Join(said, "; ")+"; "+open+" accepts connections",
			cause+"; clients that dial this address wait, or fail", cure,
		)
	}
	return broken(strings.Join(said, "; "), cause, cure)
}

// dialCause distinguishes a port without a listener from packets without an answer.
func (v *visit) dialCause(err error) (cause, cure string) {
	what, pods := "gateway", "kubectl -n "+v.installation()+" get pods -l app.kubernetes.io/name=gateway shows whether "+
		"it is ready"
	if !v.tunnelled() {
		what, pods = "proxy or server of your own", "check that it runs"
	}
	switch {
	case errors.Is(err, syscall.ECONNREFUSED):
		return "nothing listens there: the " + what + " is down or still starting, or a firewall rejects connections",
			pods + "; open its port in firewalls"
	case errors.Is(err, syscall.EHOSTUNREACH), errors.Is(err, syscall.ENETUNREACH):
		return "this machine has no route to the " + what,
			"check the address and the route to it; if only this machine has the problem, " + v.elsewhere()
	case explain.IsTimeout(err):
		return "no answer: the machine of the " + what + " is down, or a firewall or NetworkPolicy on the path drops packets",
			"allow TCP to this address and port; " + pods + "; if only this machine has the problem, " + v.elsewhere()
	}
	return "the connection cannot be opened from here", v.elsewhere()
}
