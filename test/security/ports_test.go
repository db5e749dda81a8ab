package security

import (
	"context"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/netip"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/fairlead/fairlead/test/lab/netns"
)

// port is a listening TCP socket, as reported by the kernel.
type port struct {
	place   string // management, workload or gateway
	in      *netns.Namespace
	address netip.AddrPort
	program string
}

func (p port) String() string {
	return fmt.Sprintf("%s listens on %s in the %s network", p.program, p.address, p.place)
}

// row states which ports exist and what must happen at each. A port that matches no row fails the test, so a new port
// needs a row that states what each identity may do there.
type row struct {
	name    string
	place   string
	program string
	ports   []uint16
	local   bool // it must listen only on a loopback address
	// try does at the port what each identity must be able to do, and what it must not.
	try func(t *testing.T, in *installation, p port)
}

// rows are all ports of an installation. docs/security.md gives the reasons.
var rows = []row{
	{"public", "gateway", "envoy", []uint16{netns.PublicPort}, false, tryPublic},
	{"apiserver", "gateway", "envoy", []uint16{netns.APIServerPort}, false, tryAPIServer},
	{"connect", "gateway", "envoy", []uint16{netns.ConnectPort}, false, tryConnect},
	{"gateway health", "gateway", "gateway-agent", []uint16{8080}, true, tryHealth},
	{"edge health", "workload", "edge-agent", []uint16{8101, 8102, 8103, 8104}, true, tryHealth},
	{"control channel", "management", "xds-server", []uint16{18000}, false, tryInsideControl},
	{"xds-server health", "management", "xds-server", []uint16{8083, 8084}, true, tryHealth},
	{"inspection", "management", "xds-server", []uint16{9460, 9461}, true, tryInspection},
	{"controller health", "management", "controller", []uint16{8081}, true, tryHealth},
	{"controller metrics", "management", "controller", []uint16{8082}, true, tryMetrics},
	{"webhook", "management", "controller", []uint16{9447}, true, tryWebhook},
}

// foreign are programs outside of Fairlead: the management cluster's programs, and stand-ins in the test itself.
var foreign = []string{"kube-apiserver", "etcd", "security.test"}

// portAttacks tries every port with every identity.
func portAttacks(t *testing.T, in *installation) {
	ports := in.listening(t)
	that(t, "every listening port has a row with the permissions of each identity", func(t *testing.T) {
		for _, p := range ports {
			if matching(p) == nil {
				t.Errorf("%s, and no row says what must happen there", p)
			}
		}
	})
	for i := range rows {
		r := &rows[i]
		at := slices.IndexFunc(ports, func(p port) bool { return matching(p) == r })
		if at < 0 {
			t.Errorf("no port matches the row %q", r.name)
			continue
		}
		for _, p := range ports {
			if matching(p) == r && r.local {
				in.tryFromElsewhere(t, r.name, p)
			}
		}
		r.try(t, in, ports[at])
	}
	attack(
		t, "another user of the machine connects to the admin interface of Envoy, or to an agent",
		"mode 0600 of each Unix socket, or 0700 of its folder", in.sockets, nil,
	)
}

// listening lists the listening sockets of each network and their programs.
func (in *installation) listening(t *testing.T) (all []port) {
	t.Helper()
	places := map[string][]*netns.Namespace{
		"management": {in.Network.Management},
		"workload":   {in.Network.Workload},
		"gateway":    in.Network.Gateways,
	}
	for place, namespaces := range places {
		for _, n := range namespaces {
			out, err := n.Command(t.Context(), "ss", "-Hltnp").Output()
			must(t, err)
			for line := range strings.Lines(string(out)) {
				p := port{place: place, in: n}
				must(t, p.parse(line))
				if !slices.Contains(foreign, p.program) {
					all = append(all, p)
				}
			}
		}
	}
	if len(all) < len(rows) {
		t.Fatalf("only %d ports were found", len(all))
	}
	return all
}

var listenLine = regexp.MustCompile(`^LISTEN\s+\d+\s+\d+\s+(\S+)\s+\S+\s+users:\(\("([^"]+)"`)

// parse parses a line of ss.
func (p *port) parse(line string) error {
	found := listenLine.FindStringSubmatch(line)
	if found == nil {
		return fmt.Errorf("ss says %q", line)
	}
	text := strings.Replace(found[1], "*:", "[::]:", 1)
	if i := strings.Index(text, "%"); i >= 0 {
		text = text[:i] + text[strings.LastIndex(text, ":"):]
	}
	var err error
	p.address, err = netip.ParseAddrPort(text)
	p.program = found[2]
	return err
}

// matching returns the row of a port, or nil.
func matching(p port) *row {
	i := slices.IndexFunc(rows, func(r row) bool {
		return r.place == p.place && r.program == p.program && slices.Contains(r.ports, p.address.Port()) &&
			r.local == p.address.Addr().IsLoopback()
	})
	if i < 0 {
		return nil
	}
	return &rows[i]
}

// tryFromElsewhere connects to a port on a loopback address from each other network, and by the other addresses of its
// own machine.
func (in *installation) tryFromElsewhere(t *testing.T, name string, p port) {
	t.Helper()
	addresses := []netip.Addr{
		netns.InsideAddress(0),
		netns.PublicAddress(0),
		in.Management.Endpoint.Addr(),
		in.Network.WorkloadAddress(),
	}
	attack(
		t,
		fmt.Sprintf("a host in a network connects to the port %s (%d)", name, p.address.Port()),
		"it listens only on a loopback address",
		func(t *testing.T) {
			for _, from := range append([]*netns.Namespace{in.Network.Management, in.Network.Workload}, in.Network.Gateways...) {
				for _, address := range addresses {
					dialFails(t, from, netip.AddrPortFrom(address, p.address.Port()))
				}
			}
		},
		func(t *testing.T) {
			conn, err := p.in.DialContext(t.Context(), "tcp", p.address.String())
			must(t, err)
			_ = conn.Close()
		},
	)
}

// dialFails fails the test if the address accepts a connection.
func dialFails(t *testing.T, from *netns.Namespace, to netip.AddrPort) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 300*time.Millisecond)
	defer cancel()
	if conn, err := from.DialContext(ctx, "tcp", to.String()); err == nil {
		_ = conn.Close()
		t.Errorf("%s is reached from %s", to, from.Name)
	}
}

// sockets checks all Unix sockets in the folders of agents.
func (in *installation) sockets(t *testing.T) {
	found := 0
	must(t, filepath.WalkDir(in.Dir, func(path string, entry os.DirEntry, err error) error {
		if err != nil || entry.Type() != os.ModeSocket {
			return nil //nolint:nilerr // files come and go
		}
		info, err := entry.Info()
		if err != nil {
			return nil //nolint:nilerr // files come and go
		}
		found++
		if folder, err := os.Stat(filepath.Dir(path)); info.Mode().Perm()&0o077 != 0 &&
			(err != nil || folder.Mode().Perm()&0o077 != 0) {
			t.Errorf("%s has the mode %s in a folder that others may enter", path, info.Mode())
		}
		return nil
	}))
	if least := len(in.Gateways); found < least {
		t.Errorf("only %d sockets were found", found)
	}
}

// secretText matches secrets that no answer may contain.
var secretText = regexp.MustCompile(`PRIVATE KEY|fl1\.[a-z2-7]|flr1\.[a-z2-7]|eyJhbGciOi`)

// get sends an HTTP request to a port with a token, or without one.
func (p port) get(t *testing.T, method, path, token string) (int, string) {
	t.Helper()
	transport := &http.Transport{
		DisableKeepAlives: true,
		DialContext: func(ctx context.Context, network, _ string) (net.Conn, error) {
			return p.in.DialContext(ctx, network, p.address.String())
		},
	}
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
	defer cancel()
	request, err := http.NewRequestWithContext(ctx, method, "http://"+p.address.String()+path, http.NoBody)
	must(t, err)
	if token != "" {
		request.Header.Set("Authorization", "Bearer "+token)
	}
	response, err := transport.RoundTrip(request)
	must(t, err)
	defer response.Body.Close()
	body, err := io.ReadAll(io.LimitReader(response.Body, 8<<20))
	must(t, err)
	if secretText.Match(body) {
		t.Errorf("%s of %s holds a key or a token", path, p)
	}
	return response.StatusCode, string(body)
}

// tryHealth requests more than health with each identity. All get the same answer.
func tryHealth(t *testing.T, in *installation, p port) {
	that(t, fmt.Sprintf("%s serves every identity only health checks", p), func(t *testing.T) {
		for name, token := range in.tokens(t) {
			if code, _ := p.get(t, http.MethodGet, "/readyz", token); code != http.StatusOK {
				t.Errorf("%s: /readyz is answered with %d", name, code)
			}
			for _, path := range []string{"/debug/pprof/", "/config_dump", "/quitquitquit", "/secrets"} {
				if code, body := p.get(t, http.MethodGet, path, token); code != http.StatusNotFound {
					t.Errorf("%s: %s is answered with %d %.60q", name, path, code, body)
				}
			}
		}
	})
}

// tryMetrics requests metrics with each identity. They contain no secret, and the port serves nothing else.
func tryMetrics(t *testing.T, in *installation, p port) {
	that(t, fmt.Sprintf("%s serves every identity only metrics without secrets", p), func(t *testing.T) {
		for name, token := range in.tokens(t) {
			if code, body := p.get(t, http.MethodGet, "/metrics", token); code != http.StatusOK ||
				!strings.Contains(body, "fairlead_") {
				t.Errorf("%s: the figures are answered with %d", name, code)
			}
			if code, _ := p.get(t, http.MethodGet, "/debug/pprof/", token); code != http.StatusNotFound {
				t.Errorf("%s: profiles are answered with %d", name, code)
			}
		}
	})
}
