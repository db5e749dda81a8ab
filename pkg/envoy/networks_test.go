package envoy_test

import (
	"bufio"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"golang.org/x/net/dns/dnsmessage"

	"github.com/fairlead/fairlead/internal/envoytest"
	"github.com/fairlead/fairlead/internal/freeport"
	"github.com/fairlead/fairlead/pkg/envoy"
	"github.com/fairlead/fairlead/pkg/envoy/record"
	"github.com/fairlead/fairlead/pkg/model"
)

// networkPort is the port of the servers in networks. Nothing else is allowed there.
const networkPort = 7000

// insideNamespace runs the test again in a network namespace of its own, with the addresses of the networks and a
// resolver at 127.0.0.1. It returns true there.
func insideNamespace(t *testing.T, addresses ...string) bool {
	t.Helper()
	envoytest.Path(t)
	const variable = "NETWORKS_TEST_INSIDE"
	if os.Getenv(variable) == t.Name() {
		return true
	}
	resolv := filepath.Join(t.TempDir(), "resolv.conf")
	if err := os.WriteFile(resolv, []byte("nameserver 127.0.0.1\n"), 0o644); err != nil {
		t.Fatal(err)
	}
	script := "set -e; ip link set lo up; mount --bind " + resolv + " /etc/resolv.conf; "
	for _, at := range addresses {
		script += "ip addr add " + at + " dev lo; "
	}
	cmd := exec.CommandContext(t.Context(), "unshare", "--map-root-user", "--net", "--mount", "sh", "-c", script+`exec "$@"`,
		"sh", os.Args[0], "-test.run=^"+t.Name()+"$", "-test.v", "-test.timeout=5m")
	cmd.Env = append(os.Environ(), variable+"="+t.Name())
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Errorf("in a network namespace: %v\n%s", err, out)
	}
	return false
}

// site is a network with its edge.
type site struct {
	model.WorkloadCluster
	edge *envoytest.Envoy
}

// dialled returns how many connections the edge has opened in its network.
func (s site) dialled(t *testing.T) int {
	t.Helper()
	return s.edge.Sum(t, "^cluster[.](network|targets)_.*[.]upstream_cx_total$")
}

// newSite returns a network of a Cluster.
func newSite(name, cluster, egressID string, cidrs []string, suffixes ...string) model.WorkloadCluster {
	n := &model.Network{
		Name: name, Cluster: model.Key{Namespace: "prod", Name: cluster}, EgressID: egressID, Suffixes: suffixes,
		Ports: []model.PortRange{{First: networkPort, Last: networkPort}},
	}
	for _, cidr := range cidrs {
		n.CIDRs = append(n.CIDRs, netip.MustParsePrefix(cidr))
	}
	key := model.Key{Namespace: "prod", Name: cluster + "." + name + ".network"}
	return model.WorkloadCluster{Key: key, ID: model.NewID(), Network: n}
}

// newNameServer answers with the addresses of a few names, at 127.0.0.1:53.
func newNameServer(t *testing.T, names map[string][]string) {
	t.Helper()
	conn, err := net.ListenPacket("udp", "127.0.0.1:53")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = conn.Close() })
	go func() {
		data := make([]byte, 1500)
		for {
			n, from, err := conn.ReadFrom(data)
			if err != nil {
				return
			}
			var m dnsmessage.Message
			if m.Unpack(data[:n]) != nil || len(m.Questions) != 1 {
				continue
			}
			q := m.Questions[0]
			m.Response, m.Additionals = true, nil
			for _, at := range names[strings.ToLower(strings.TrimSuffix(q.Name.String(), "."))] {
				addr := netip.MustParseAddr(at)
				header := dnsmessage.ResourceHeader{Name: q.Name, Class: q.Class, TTL: 1}
				switch {
				case addr.Is4() && q.Type == dnsmessage.TypeA:
					m.Answers = append(m.Answers, dnsmessage.Resource{Header: header, Body: &dnsmessage.AResource{A: addr.As4()}})
				case addr.Is6() && q.Type == dnsmessage.TypeAAAA:
					body := &dnsmessage.AAAAResource{AAAA: addr.As16()}
					m.Answers = append(m.Answers, dnsmessage.Resource{Header: header, Body: body})
				}
			}
			if answer, err := m.Pack(); err == nil {
				_, _ = conn.WriteTo(answer, from)
			}
		}
	}()
}

// newEcho answers each line with the server's address.
func newEcho(t *testing.T, at string) *countingListener {
	t.Helper()
	return newCountingListener(t, "tcp", at, func(conn net.Conn) {
		defer conn.Close()
		_ = conn.SetDeadline(time.Now().Add(envoytest.Patience))
		if _, err := bufio.NewReader(conn).ReadString('\n'); err == nil {
			fmt.Fprintln(conn, "I am", conn.LocalAddr())
		}
	})
}

// apiserver is an apiserver of a Cluster that dials gateways by mutual TLS.
type apiserver struct {
	gateway model.Endpoint
	config  *tls.Config
}

func (in *installation) apiserver(t *testing.T, s model.Subject, serverName string) apiserver {
	t.Helper()
	config := &tls.Config{
		ServerName: serverName, RootCAs: in.ca.roots(), Certificates: []tls.Certificate{in.ca.issue(t, s).TLSCertificate()},
		InsecureSkipVerify: serverName != domain.Gateway(), // the leaf has no other name
	}
	return apiserver{in.gateways[0].bind.Public, config}
}

func (a apiserver) dial() (net.Conn, error) {
	return tls.DialWithDialer(&net.Dialer{Timeout: envoytest.Patience}, "tcp", a.gateway.String(), a.config)
}

// connect sends a CONNECT as kube-apiserver does, and returns what the server behind it answers, or the refusal.
func connect(dial func() (net.Conn, error), authority string, headers ...string) (string, error) {
	conn, err := dial()
	if err != nil {
		return "", err
	}
	defer conn.Close()
	_ = conn.SetDeadline(time.Now().Add(envoytest.Patience))
	fmt.Fprintf(conn, "CONNECT %s HTTP/1.1\r\nHost: 127.0.0.1\r\n%s\r\n", authority, strings.Join(headers, ""))
	reader := bufio.NewReader(conn)
	response, err := http.ReadResponse(reader, &http.Request{Method: http.MethodConnect})
	if err != nil {
		return "", err
	}
	if response.StatusCode != http.StatusOK {
		_ = conn.SetReadDeadline(time.Now().Add(time.Second))
		body, _ := io.ReadAll(reader)
		return fmt.Sprintf("%d %s", response.StatusCode, body), nil
	}
	fmt.Fprintln(conn, "hello")
	line, err := reader.ReadString('\n')
	return strings.TrimSpace(line), err
}

// TestApiserversReachTheirNetworksAndNothingElse has two Clusters with overlapping networks: a has 10.1.0.0/16 and, in
// it, 10.1.7.0/24, and b has 10.1.0.0/16 too.
func TestApiserversReachTheirNetworksAndNothingElse(t *testing.T) {
	if !insideNamespace(t, "10.1.0.5/32", "10.1.0.6/32", "10.1.7.7/32", "10.9.0.1/32", "169.254.169.254/32",
		"fd00:1::5/128", "192.168.9.9/32") {
		return
	}
	newNameServer(t, map[string][]string{
		"ok.svc.a1.test": {"10.1.0.5"}, "v6.svc.a1.test": {"fd00:1::5"}, "x.deep.svc.a1.test": {"10.1.7.7"},
		"lo.svc.a1.test": {"127.0.0.1"}, "meta.svc.a1.test": {"169.254.169.254"}, "out.svc.a1.test": {"192.168.9.9"},
		"multi.svc.a1.test": {"10.1.0.99", "169.254.169.254"}, "mapped.svc.a1.test": {"::ffff:169.254.169.254"},
		"ok.other.test": {"10.1.0.5"}, "bmc.example.com": {"10.9.0.1"}, "evil.example.com": {"169.254.169.254"},
		"mapped.example.com": {"::ffff:169.254.169.254"}, "oracle.example.com": {"fd00:c1::a9fe:a9fe"},
	})
	for _, at := range []string{"10.1.0.5", "10.1.7.7", "[fd00:1::5]", "10.9.0.1"} {
		newEcho(t, at+":"+strconv.Itoa(networkPort))
	}
	var forbidden []*countingListener
	for _, at := range []string{
		"169.254.169.254:7000", "127.0.0.1:7000", "192.168.9.9:7000", "[::1]:7000", "10.1.0.5:7001",
	} {
		forbidden = append(forbidden, newEcho(t, at))
	}
	hosted := newEcho(t, "127.0.0.1:0")
	egressA, egressB := model.NewID(), model.NewID()
	everywhere := []string{"10.1.0.0/16", "fd00:1::/64", "0.0.0.0/0", "::/0"}
	a1 := newSite("a1", "a", egressA, []string{"10.1.0.0/16", "fd00:1::/64"}, "svc.a1.test")
	a2 := newSite("a2", "a", egressA, []string{"10.1.7.0/24"}, "deep.svc.a1.test")
	b1 := newSite("b1", "b", egressB, []string{"10.1.0.0/16"})
	a1.Network.APIServers = []model.Endpoint{hosted.endpoint(t)}
	target := func(name, host string) model.Target {
		at := model.Endpoint{Host: host, Port: networkPort}
		return model.Target{Name: name + ".a1.a.prod." + string(domain), Address: at}
	}
	a1.Network.Targets = []model.Target{
		target("vcenter", "10.9.0.1"), target("bmc", "bmc.example.com"),
		target("evil", "evil.example.com"), target("mapped", "mapped.example.com"),
		target("oracle", "oracle.example.com"),
	}

	// Gateways send everything to a1, so that its edge has to refuse.
	wide := newSite("a1", "a", egressA, everywhere, "svc.a1.test", "test")
	wide.ID = a1.ID
	in := newInstallation(t, 1, a1, a2, b1)
	g := in.gateways[0]
	g.bind.Version = envoy.Current
	g.agent.scopes = append(g.agent.scopes,
		envoy.NetworkScope(model.Installation{Domain: domain}, egressA, []model.WorkloadCluster{wide, a2}),
		envoy.NetworkScope(model.Installation{Domain: domain}, egressB, []model.WorkloadCluster{b1}))
	g.deny(t, in, model.Denied{})
	local := freeport.Endpoint(t)
	local.Host = "10.1.0.6"
	sites := map[string]site{
		"a1": {a1, in.startDialling(t, a1, envoy.EdgeDial{Version: envoy.Current, Listen: []model.Endpoint{local}})},
		"a2": {a2, in.startDialling(t, a2, envoy.EdgeDial{Version: envoy.Current})},
		"b1": {b1, in.startDialling(t, b1, envoy.EdgeDial{Version: envoy.Current})},
	}
	subject := func(id string) model.Subject {
		return model.Subject{Role: model.RoleEgress, Node: model.NewNodeName(), ID: id}
	}
	a, b := in.apiserver(t, subject(egressA), domain.Egress()), in.apiserver(t, subject(egressB), domain.Gateway())
	other := in.apiserver(t, subject(model.NewID()), domain.Egress())
	edge := in.apiserver(t, model.Subject{Role: model.RoleEdge, Node: "edge-x", ID: a1.ID}, domain.Egress())
	socket := filepath.Join(envoytest.Dir(t), "egress.sock")
	in.startDialling(
		t, model.WorkloadCluster{ID: egressA, Egress: true}, envoy.EdgeDial{Version: envoy.Current, Socket: socket},
	)
	sidecar := func() (net.Conn, error) { return net.Dial("unix", socket) }

	for name, first := range map[string]func() (string, error){
		"a1": func() (string, error) { return connect(a.dial, "10.1.0.5:7000") },
		"a2": func() (string, error) { return connect(a.dial, "10.1.7.7:7000") },
		"b1": func() (string, error) { return connect(b.dial, "10.1.0.5:7000") },
	} {
		envoytest.Eventually(t, name+" is reached", func() error {
			if got, err := first(); err != nil || !strings.HasPrefix(got, "I am") {
				return fmt.Errorf("%q: %w", got, err)
			}
			return nil
		})
	}

	for _, c := range []struct {
		name, want, via string // via: the network whose edge dials
		dial            func() (net.Conn, error)
		to, header      string
	}{
		{"an address", "I am 10.1.0.5:7000", "a1", a.dial, "10.1.0.5:7000", ""},
		{"IPv6", "I am [fd00:1::5]:7000", "a1", a.dial, "[fd00:1::5]:7000", ""},
		{"the longest prefix", "I am 10.1.7.7:7000", "a2", a.dial, "10.1.7.7:7000", ""},
		{"the same CIDR of another Cluster", "I am 10.1.0.5:7000", "b1", b.dial, "10.1.0.5:7000", ""},
		{"no more specific network of another Cluster", "I am 10.1.7.7:7000", "b1", b.dial, "10.1.7.7:7000", ""},
		{"a name", "I am 10.1.0.5:7000", "a1", a.dial, "ok.svc.a1.test:7000", ""},
		{"a name in capitals", "I am 10.1.0.5:7000", "a1", a.dial, "OK.SVC.A1.TEST:7000", ""},
		{"a name with an IPv6 address", "I am [fd00:1::5]:7000", "a1", a.dial, "v6.svc.a1.test:7000", ""},
		{"the longest suffix", "I am 10.1.7.7:7000", "a2", a.dial, "x.deep.svc.a1.test:7000", ""},
		{"the Unix socket", "I am 10.1.7.7:7000", "a2", sidecar, "10.1.7.7:7000", ""},
		{
			"a forged identity", "I am 10.1.0.5:7000", "b1", b.dial, "10.1.0.5:7000",
			"x-fairlead-egress: " + domain.EgressID(egressA) + "\r\n",
		},
		{
			"a forged identity behind the socket", "I am 10.1.7.7:7000", "a2", sidecar, "10.1.7.7:7000",
			"x-fairlead-egress: " + domain.EgressID(egressB) + "\r\n",
		},
		{"a target by address", "I am 10.9.0.1:7000", "a1", g.dialConnect, a1.Network.Targets[0].Name + ":443", ""},
		{"a target by name", "I am 10.9.0.1:7000", "a1", g.dialConnect, a1.Network.Targets[1].Name + ":443", ""},
	} {
		t.Run(c.name, func(t *testing.T) {
			before := sites[c.via].dialled(t)
			if got, err := connect(c.dial, c.to, c.header); err != nil || got != c.want {
				t.Errorf("%s: got %q, %v; want %q", c.to, got, err, c.want)
			}
			if sites[c.via].dialled(t) == before {
				t.Errorf("%s: the edge of %s did not dial", c.to, c.via)
			}
		})
	}
	checkRefusals(t, a, b, other)
	if got, err := connect(edge.dial, "10.1.0.5:7000"); err == nil {
		t.Errorf("the leaf of an edge: got %q", got)
	}
	for _, forbidden := range a1.Network.Targets[2:] {
		if got, _ := connect(g.dialConnect, forbidden.Name+":443"); !strings.HasPrefix(got, "403") {
			t.Errorf("the target %s with a forbidden address: got %q, want 403", forbidden.Address, got)
		}
	}
	for _, l := range forbidden {
		if n := l.count.Load(); n > 0 {
			t.Errorf("%s was dialled %d times, want never", l.Addr(), n)
		}
	}
	conn, err := net.DialTimeout("tcp", local.String(), envoytest.Patience)
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	_ = conn.SetDeadline(time.Now().Add(envoytest.Patience))
	fmt.Fprintln(conn, "hello")
	if got, err := bufio.NewReader(conn).ReadString('\n'); strings.TrimSpace(got) != "I am "+hosted.Addr().String() {
		t.Errorf("the local listener answered %q, %v", got, err)
	}
	checkRecords(t, g, a1.ID, egressA)
}

// checkRefusals tries to escape from networks.
func checkRefusals(t *testing.T, a, b, other apiserver) {
	t.Helper()
	for want, tries := range map[string][]string{
		"403 refused by the edge": {
			"169.254.169.254:7000", "127.0.0.1:7000", "0.0.0.0:7000", "[::1]:7000", "[::]:7000", "[::ffff:127.0.0.1]:7000",
			"[::ffff:a9fe:a9fe]:7000", "[fd00:9::9]:7000", "192.168.9.9:7000", "lo.svc.a1.test:7000", "meta.svc.a1.test:7000",
			"out.svc.a1.test:7000", "mapped.svc.a1.test:7000", "ok.other.test:7000", "localhost.test:7000",
			"[fd00:c1::a9fe:a9fe]:7000",
		},
		"403 RBAC": {"10.1.0.5:7001", "10.1.0.5:0"},
		"502":      {"none.svc.a1.test:7000"},
		"503":      {"multi.svc.a1.test:7000"},
		"40":       {"010.1.0.5:7000", "10.1.5:7000", "167837701:7000", "user@10.1.0.5:7000", "10.1.0.5:70000"},
	} {
		for _, to := range tries {
			if got, err := connect(a.dial, to); err != nil || !strings.HasPrefix(got, want) {
				t.Errorf("%s: got %q, %v; want %q", to, got, err, want)
			}
		}
	}
	for _, to := range []string{"[fd00:1::5]:7000", "192.0.2.1:443", "nowhere.example:443", "localhost:443"} {
		if got, err := connect(b.dial, to); err != nil || !strings.HasPrefix(got, "403 refused by the gateway") {
			t.Errorf("%s of another Cluster: got %q, %v; want 403", to, got, err)
		}
	}
	got, err := connect(other.dial, "10.1.0.5:7000")
	if err != nil || !strings.HasPrefix(got, "403 refused by the gateway") {
		t.Errorf("an apiserver without networks: got %q, %v; want 403", got, err)
	}
}

func (g *gateway) dialConnect() (net.Conn, error) {
	return net.DialTimeout("tcp", g.bind.Connect.String(), envoytest.Patience)
}

// checkRecords waits for the records of both kinds of connections.
func checkRecords(t *testing.T, g *gateway, networkID, egressID string) {
	t.Helper()
	envoytest.Eventually(t, "owners are recorded", func() error {
		data, err := os.ReadFile(g.log)
		if err != nil {
			return err
		}
		for _, want := range []string{
			`"id":"` + domain.TunnelID(networkID) + `"`, `"id":"` + domain.EgressID(egressID) + `"`,
			`"owner":"forward"`, `"owner":"egress"`, `"event":"` + record.EventRequest + `"`, `"node":"CN=`,
		} {
			if !strings.Contains(string(data), want) {
				return errors.New(want + " is missing in " + string(data))
			}
		}
		return nil
	})
}
