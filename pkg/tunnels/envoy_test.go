package tunnels

import (
	"bytes"
	"context"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strconv"
	"testing"
	"text/template"
	"time"

	"github.com/fairlead/fairlead/internal/envoytest"
	"github.com/fairlead/fairlead/internal/eventually"
	"github.com/fairlead/fairlead/internal/freeport"
	"github.com/fairlead/fairlead/internal/logtest"
	"github.com/fairlead/fairlead/pkg/certs"
	"github.com/fairlead/fairlead/pkg/model"
)

// lab is a gateway and edges, all of them real Envoys.
type lab struct {
	Address string // address at which the gateway listens
	Dials   string // address at which the edges dial it
	Compat  bool
	Workers int  // number of workers of the gateway
	Count   int  // number of tunnels of each edge
	Balance bool // the gateway balances connections itself
	Whole   bool // records have the whole metadata, as before they had named fields
	Public  int
	Tunnels []labTunnel

	ca      *certs.CA
	dir     string
	gateway *envoytest.Envoy
	log     *logtest.Journal
}

type labTunnel struct {
	*lab
	Node, TunnelID     string
	Clients, APIServer int
}

func newLab(t *testing.T, address, dials string, compat bool) *lab {
	t.Helper()
	return (&lab{Address: address, Dials: dials, Compat: compat, Workers: 1, Count: 2}).start(t)
}

func (l *lab) start(t *testing.T) *lab {
	t.Helper()
	envoytest.Path(t)
	ca, err := certs.NewCA("test", time.Now(), time.Hour)
	if err != nil {
		t.Fatal(err)
	}
	l.Public, l.ca, l.dir, l.log = freeport.TCP(t), ca, envoytest.Dir(t), &logtest.Journal{}
	for i, id := range []string{idA, idB} {
		e := newEcho(t, "tcp", "127.0.0.1:0")
		go func() {
			for range e.accepted { // connections are accepted and not used
			}
		}()
		l.Tunnels = append(l.Tunnels, labTunnel{
			lab: l, Node: "edge-" + strconv.Itoa(i+1), TunnelID: domain.TunnelID(id), Clients: freeport.TCP(t),
			APIServer: e.Addr().(*net.TCPAddr).Port,
		})
	}
	l.credentials(t, l.dir, model.Subject{Role: model.RoleGateway, Node: "gateway-0"})
	l.gateway = envoytest.Start(
		t, l.dir, render(t, "gateway.yaml", l), "--file-flush-interval-msec", "200", "--concurrency", strconv.Itoa(l.Workers),
	)
	for i, tunnel := range l.Tunnels {
		dir := envoytest.Dir(t)
		l.credentials(t, dir, model.Subject{Role: model.RoleEdge, Node: tunnel.Node, ID: []string{idA, idB}[i]})
		envoytest.Start(t, dir, render(t, "edge.yaml", tunnel), "--drain-time-s", "1")
	}
	return l
}

// table returns the table of the gateway's agent. It stops with the test, or earlier by the returned function.
func (l *lab) table(t *testing.T) (*Table, func()) {
	t.Helper()
	b := &bed{log: l.log, path: filepath.Join(l.dir, "tunnels.log")}
	b.Table = New(
		Config{
			Domain: domain,
			Log:    b.path,
			Logger: slog.New(slog.NewTextHandler(l.log, nil)),
			Reopen: func(ctx context.Context) error {
				_, err := l.gateway.Admin(ctx, http.MethodPost, "/reopen_logs")
				return err
			},
		},
	)
	return b.Table, b.run(t)
}

// client opens a connection through the tunnel of an edge and keeps it open.
func (l *lab) client(t *testing.T, tunnel labTunnel) wire {
	t.Helper()
	conn, err := net.Dial("tcp", net.JoinHostPort("127.0.0.1", strconv.Itoa(tunnel.Clients)))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = conn.Close() })
	_ = conn.SetDeadline(time.Now().Add(3 * envoytest.Patience))
	w := wire{Conn: conn}
	if err := w.answers(); err != nil {
		t.Fatal(err)
	}
	return w
}

func render(t *testing.T, name string, data any) []byte {
	t.Helper()
	var out bytes.Buffer
	if err := template.Must(template.ParseFiles(filepath.Join("testdata", name))).Execute(&out, data); err != nil {
		t.Fatal(err)
	}
	return out.Bytes()
}

func (l *lab) credentials(t *testing.T, dir string, s model.Subject) {
	t.Helper()
	key, err := certs.NewKey()
	if err != nil {
		t.Fatal(err)
	}
	chain, err := l.ca.Issue(key.Public(), certs.Leaf{
		CommonName: s.Node, DNSNames: domain.DNSNames(s), Server: true, Client: true,
		NotBefore: time.Now().Add(-time.Minute), NotAfter: time.Now().Add(time.Hour),
	})
	if err != nil {
		t.Fatal(err)
	}
	identity, err := certs.NewIdentity(chain, key)
	if err != nil {
		t.Fatal(err)
	}
	keyPEM, err := identity.KeyPEM()
	if err != nil {
		t.Fatal(err)
	}
	for name, data := range map[string][]byte{"key.pem": keyPEM, "leaf.pem": chain, "ca.pem": l.ca.CertPEM()} {
		if err := os.WriteFile(filepath.Join(dir, name), data, 0o600); err != nil {
			t.Fatal(err)
		}
	}
}

// byNode returns the number of tunnels by node.
func byNode(table *Table) map[string]int {
	all, _ := table.Snapshot()
	counts := map[string]int{}
	for _, tunnel := range all {
		counts[tunnel.Node]++
	}
	return counts
}

func waitForTunnels(t *testing.T, table *Table, want map[string]int) {
	t.Helper()
	eventually.True(t, envoytest.Patience, "the tunnels are there", func() error {
		if got := byNode(table); fmt.Sprint(got) != fmt.Sprint(want) {
			return fmt.Errorf("got %v, want %v", got, want)
		}
		return nil
	})
}

// TestEnvoy has a table follow a real Envoy with two edges of two tunnels each, and denies one edge.
func TestEnvoy(t *testing.T) {
	needsRight(t)
	for name, tt := range map[string]struct {
		address, dials string
		compat         bool
	}{
		"IPv4":                       {"127.0.0.1", "127.0.0.1", false},
		"IPv6":                       {"::1", "::1", false},
		"IPv4 by a listener of IPv6": {"::", "127.0.0.1", true},
	} {
		t.Run(name, func(t *testing.T) {
			l := newLab(t, tt.address, tt.dials, tt.compat)
			table, stop := l.table(t)
			both := map[string]int{"edge-1": 2, "edge-2": 2}
			waitForTunnels(t, table, both)
			used, other := l.client(t, l.Tunnels[0]), l.client(t, l.Tunnels[1])

			began := time.Now()
			table.Deny(model.Denied{Edges: []model.EdgeRef{{Node: "edge-1", ID: idA}}})
			if _, err := used.Read(make([]byte, 1)); err == nil {
				t.Error("the connection goes on")
			}
			took := time.Since(began)
			t.Logf("a connection in a tunnel was cut after %s", took)
			if took > 3*time.Second { // a few ms on an idle machine
				t.Errorf("it took %s", took)
			}
			eventually.True(
				t,
				envoytest.Patience,
				"the idle tunnel and redialled ones are closed too",
				func() error {
					if n := table.Stats().Cut; n < 4 {
						return fmt.Errorf("%d were cut", n)
					}
					return nil
				},
			)
			if err := other.answers(); err != nil {
				t.Errorf("the other edge's connection was cut: %v", err)
			}
			if got := byNode(table)["edge-2"]; got != 2 {
				t.Errorf("the other edge has %d tunnels", got)
			}
			if table.Stats().CutFails != 0 {
				t.Errorf("got %+v:\n%s", table.Stats(), l.log.String())
			}

			// The agent ends. The next one has all tunnels, including the ones that were opened in between.
			stop()
			table, _ = l.table(t)
			waitForTunnels(t, table, both)
			if err := other.answers(); err != nil {
				t.Errorf("the other edge's connection was cut: %v", err)
			}
		})
	}
}

// TestEnvoyReopensItsLog replaces the log of a real Envoy repeatedly, while tunnels open and close.
func TestEnvoyReopensItsLog(t *testing.T) {
	needsRight(t)
	l := newLab(t, "127.0.0.1", "127.0.0.1", false)
	table := New(
		Config{
			Domain: domain,
			Log:    filepath.Join(l.dir, "tunnels.log"),
			Logger: slog.New(slog.NewTextHandler(l.log, nil)),
			Reopen: func(ctx context.Context) error {
				_, err := l.gateway.Admin(ctx, http.MethodPost, "/reopen_logs")
				return err
			},
		},
	)
	table.maxLog, table.reopenEvery = 1000, 50*time.Millisecond
	stop := (&bed{Table: table}).run(t)
	both := map[string]int{"edge-1": 2, "edge-2": 2}
	for range 5 {
		waitForTunnels(t, table, both)
		cut := table.Stats().Cut
		table.Deny(model.Denied{Edges: []model.EdgeRef{{Node: "edge-1", ID: idA}}})
		eventually.True(t, envoytest.Patience, "they were cut", func() error {
			if n := table.Stats().Cut; n < cut+2 {
				return fmt.Errorf("%d were cut", n-cut)
			}
			return nil
		})
		table.Deny(model.Denied{})
	}
	waitForTunnels(t, table, both)
	eventually.True(t, envoytest.Patience, "the log was replaced", func() error {
		_, err := os.Stat(table.statePath())
		return err
	})
	all, _ := table.Snapshot()
	stop()
	if table.Stats().BadLines != 0 {
		t.Errorf("got %+v:\n%s", table.Stats(), l.log.String())
	}
	again, _ := l.table(t)
	waitForTunnels(t, again, both)
	known := map[string]bool{}
	for _, tunnel := range all {
		known[tunnel.Key] = true
	}
	now, _ := again.Snapshot()
	for _, tunnel := range now {
		if tunnel.Node == "edge-2" && !known[tunnel.Key] { // edge-2 had the same two tunnels from the beginning
			t.Errorf("%s was not known before", tunnel.Key)
		}
	}
}
