package check

import (
	"context"
	"errors"
	"net"
	"net/netip"
	"strings"
	"testing"
	"time"

	"github.com/fairlead/fairlead/api/v1alpha1"
	"github.com/fairlead/fairlead/pkg/diagnose/collect"
	"github.com/fairlead/fairlead/pkg/kubeconfig"
)

func TestTheFirstBrokenHopDecides(t *testing.T) {
	tests := map[string]struct {
		in     map[ID]Status
		status Status
		first  ID
	}{
		"every checked hop is healthy": {map[ID]Status{HopRoute: Unknown, HopWatch: Skipped}, OK, ""},
		"a warning": {
			map[ID]Status{HopPort: Warning, HopServers: Warning},
			Warning,
			HopPort,
		},
		"something broken after a warning": {
			map[ID]Status{HopPort: Warning, HopAPIServer: Broken},
			Broken,
			HopAPIServer,
		},
		"no tunnel, and no known cause": {
			map[ID]Status{HopTunnels: Broken, HopAuthentication: Broken},
			Broken,
			HopTunnels,
		},
		"no tunnel, because no edge is enrolled": {map[ID]Status{HopTunnels: Broken, HopEdge: Broken}, Broken, HopEdge},
		"no tunnel, for the handshake does not do": {
			map[ID]Status{HopTunnels: Broken, HopHandshake: Broken},
			Broken,
			HopHandshake,
		},
		"no gateway is reached, and no tunnel there": {
			map[ID]Status{HopPort: Broken, HopTunnels: Broken, HopEdge: Broken},
			Broken, HopPort,
		},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			var r Report
			for _, hop := range Hops() {
				status := OK
				if s, ok := tc.in[hop.ID]; ok {
					status = s
				}
				r.Hops = append(r.Hops, Result{ID: hop.ID, Status: status})
			}
			r.decide()
			if r.Status != tc.status || r.First != tc.first || (r.Deciding() == nil) != (tc.first == "") {
				t.Errorf("got %s at %q, want %s at %q", r.Status, r.First, tc.status, tc.first)
			}
		})
	}
}

// place is a network with names and their addresses.
type place struct {
	machine
	names map[string][]netip.Addr
}

func (p place) Lookup(_ context.Context, host string) ([]netip.Addr, error) {
	if found, ok := p.names[host]; ok {
		return found, nil
	}
	return nil, &net.DNSError{Name: host, Err: "no such host", IsNotFound: true}
}

func TestNamesAndPorts(t *testing.T) {
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer listener.Close()
	_, open, _ := net.SplitHostPort(listener.Addr().String())
	home, silent := netip.MustParseAddr("127.0.0.1"), netip.MustParseAddr("127.0.0.2")
	unroutable6, unroutable4 := netip.MustParseAddr("ff0e::1"), netip.MustParseAddr("224.0.0.1") // no TCP to multicast
	tests := map[string]struct {
		via        string
		names      map[string][]netip.Addr
		name, port Status
		says       string
	}{
		"an address": {"127.0.0.1:" + open, nil, OK, OK, "accepts connections"},
		"a name": {
			"gw.test:" + open,
			map[string][]netip.Addr{"gw.test": {home}},
			OK, OK,
			"accepts connections",
		},
		"an unknown name": {"gw.test:" + open, nil, Broken, Skipped, "has no address"},
		"a name of the management cluster": {
			"gateway.fairlead-system.svc:6443", nil, Unknown, Skipped,
			"only the DNS of the management cluster",
		},
		"one of two addresses is closed": {
			"gw.test:" + open,
			map[string][]netip.Addr{"gw.test": {home, silent}},
			OK,
			Warning, "127.0.0.2:" + open + ": refused",
		},
		"this machine has no route to the other family": {
			"gw.test:" + open,
			map[string][]netip.Addr{"gw.test": {unroutable6, home}},
			OK,
			OK, "no route to [ff0e::1]:" + open,
		},
		"this machine has no route to one of two addresses of a family": {
			"gw.test:" + open,
			map[string][]netip.Addr{"gw.test": {unroutable4, home}},
			OK,
			Warning, "224.0.0.1:" + open + ": no route",
		},
		"this machine has no route at all": {
			"gw.test:" + open,
			map[string][]netip.Addr{"gw.test": {unroutable6}},
			OK,
			Broken, "no route",
		},
		"nothing listens": {
			"gw.test:" + open,
			map[string][]netip.Addr{"gw.test": {silent}},
			OK,
			Broken, "refused",
		},
		"no port": {"127.0.0.1", nil, Broken, Skipped, "is not host:port"},
		"a name whose record has no addresses": {
			"gw.test:" + open,
			map[string][]netip.Addr{"gw.test": {}},
			Broken, Skipped,
			"does not resolve",
		},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			t.Setenv("KUBERNETES_SERVICE_HOST", "")
			v := &visit{Checker: &Checker{Via: tc.via, Network: place{names: tc.names}}}
			v.defaults()
			first := checkName(t.Context(), v)
			second := checkPort(t.Context(), v)
			if first.status != tc.name || second.status != tc.port {
				t.Errorf("got %+v and %+v", first, second)
			}
			if printed := first.detail + second.detail; !strings.Contains(printed, tc.says) {
				t.Errorf("%q is not in %q", tc.says, printed)
			}
			for _, f := range []finding{first, second} {
				if f.status == Broken && (f.cause == "" || f.cure == "") {
					t.Errorf("there is no cause or no cure: %+v", f)
				}
			}
		})
	}
}

func TestAKubeconfigMatchesItsRecord(t *testing.T) {
	record := v1alpha1.KubeconfigStatus{
		Mode: v1alpha1.KubeconfigModeConnect, Server: "https://c1.test:6443",
		ProxyURL: "http://gw.test:3128",
	}
	sni := v1alpha1.KubeconfigStatus{
		Mode: v1alpha1.KubeconfigModeSNI, Server: "https://gw.test:6443",
		TLSServerName: "c1.test",
	}
	tests := map[string]struct {
		way    kubeconfig.Endpoint
		record v1alpha1.KubeconfigStatus
		want   bool
	}{
		"the name is the provider's": {kubeconfig.Endpoint{
			Server: "https://c1.test:6443", TLSServerName: "kubernetes",
			ProxyURL: "http://gw.test:3128",
		}, record, true},
		"credentials of the proxy": {kubeconfig.Endpoint{
			Server:   "https://c1.test:6443",
			ProxyURL: "http://me:secret@gw.test:3128",
		}, record, true},
		"without the proxy": {kubeconfig.Endpoint{Server: "https://c1.test:6443"}, record, false},
		"another server": {kubeconfig.Endpoint{
			Server:   "https://10.0.0.1:6443",
			ProxyURL: "http://gw.test:3128",
		}, record, false},
		"by SNI": {
			kubeconfig.Endpoint{Server: "https://gw.test:6443", TLSServerName: "c1.test"},
			sni, true,
		},
		"by SNI, to another cluster": {
			kubeconfig.Endpoint{Server: "https://gw.test:6443", TLSServerName: "c2.test"},
			sni, false,
		},
		"by SNI, without the name": {kubeconfig.Endpoint{Server: "https://gw.test:6443"}, sni, false},
		"a name where the server has it too": {
			kubeconfig.Endpoint{Server: "https://c1.test:6443", TLSServerName: "x"},
			v1alpha1.KubeconfigStatus{Mode: v1alpha1.KubeconfigModeSNI, Server: "https://c1.test:6443"},
			false,
		},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			if got := leadsBy(tc.way, tc.record); got != tc.want {
				t.Errorf("got %t", got)
			}
		})
	}
}

// TestAnswersContainNoSecrets proves that secrets are removed from the errors of other programs.
func TestAnswersContainNoSecrets(t *testing.T) {
	for _, secret := range []string{
		"password=hunter2hunter2", "https://me:hunter2hunter2@proxy.test",
		"Authorization: Bearer hunter2hunter2hunter2",
	} {
		if printed := text(errors.New("dialling: " + secret)); strings.Contains(printed, "hunter2") {
			t.Errorf("got %q", printed)
		}
	}
}

// TestRejectionsExpireAfterAMinute proves that a machine that was rejected long ago, or scans ports, does not explain
// a fault.
func TestRejectionsExpireAfterAMinute(t *testing.T) {
	now := time.Now()
	v := &visit{
		Checker: &Checker{Now: func() time.Time { return now }},
		observed: &collect.Fleet{Refusals: []collect.Refusal{
			{Address: "192.0.2.1", About: collect.AboutHandshake, Reason: "EOF", Last: now},
			{
				Address: "192.0.2.2", About: collect.AboutHandshake, Reason: "remote error: tls: bad certificate",
				Last: now.Add(-2 * time.Minute),
			},
			{Address: "192.0.2.3", Reason: "the token is unknown", Last: now.Add(-time.Hour)},
		}},
	}
	if printed := v.refusal(true) + v.refusal(false); printed != "" {
		t.Errorf("got %q", printed)
	}
	v.observed.Refusals[1].Last, v.observed.Refusals[2].Last = now, now
	if printed := v.refusal(true) + v.refusal(false); !strings.Contains(printed, "192.0.2.2") ||
		!strings.Contains(printed, "192.0.2.3") {
		t.Errorf("got %q", printed)
	}
}
