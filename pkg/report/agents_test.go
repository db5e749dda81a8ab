package report_test

import (
	"context"
	"fmt"
	"log/slog"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"google.golang.org/grpc"

	"github.com/fairlead/fairlead/internal/eventually"
	"github.com/fairlead/fairlead/pkg/model"
	"github.com/fairlead/fairlead/pkg/report/agent"
	reportv1 "github.com/fairlead/fairlead/pkg/report/v1"
	"github.com/fairlead/fairlead/pkg/report/view"
	"github.com/fairlead/fairlead/pkg/tunnels"
)

// gatewayAgent is a table with its reporter. Its tunnels exist only in a file: no kernel has their addresses.
type gatewayAgent struct {
	*tunnels.Table
	path string
	conn *grpc.ClientConn
	stop func()
	log  *slog.Logger

	takes   toggle
	workers int // of its Envoy; 0: one
}

func (w *world) gateway(t testing.TB, name string, addresses ...string) *gatewayAgent {
	t.Helper()
	s := gatewayOf(name)
	g := &gatewayAgent{path: filepath.Join(t.TempDir(), "tunnels.log"), conn: w.Dial(t, &s, addresses...), log: w.Log}
	g.start(t)
	return g
}

// toggle is whether a gateway accepts clients.
type toggle struct {
	mu      sync.Mutex
	on      bool
	changed chan struct{}
}

func (t *toggle) state() (agent.GatewayState, <-chan struct{}) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.changed == nil {
		t.changed = make(chan struct{})
	}
	return agent.GatewayState{Ready: t.on}, t.changed
}

func (t *toggle) set(on bool) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.on = on
	if t.changed != nil {
		close(t.changed)
	}
	t.changed = make(chan struct{})
}

// start runs the agent, which reads the file.
func (g *gatewayAgent) start(t testing.TB) {
	t.Helper()
	reopen := func(context.Context) error { return nil }
	g.Table = tunnels.New(tunnels.Config{Domain: domain, Log: g.path, Workers: g.workers, Reopen: reopen, Logger: g.log})
	table := g.Table
	stopTable := background(t, table.Run)
	from := agent.GatewaySource{Table: table, State: g.takes.state, Reopen: quick.Reopen}
	stopSending := background(t, func(ctx context.Context) error { return agent.SendGateway(ctx, g.conn, from, g.log) })
	g.stop = func() { stopSending(); stopTable() }
}

// event makes Envoy write that a tunnel has opened or closed.
func (g *gatewayAgent) event(t testing.TB, what string, port int, node, id string) {
	t.Helper()
	g.eventOf(t, 0, what, port, node, id)
}

// eventOf is event for a tunnel of any worker.
func (g *gatewayAgent) eventOf(t testing.TB, worker int, what string, port int, node, id string) {
	t.Helper()
	file, err := os.OpenFile(g.path, os.O_CREATE|os.O_WRONLY|os.O_APPEND, 0o600)
	if err != nil {
		t.Fatal(err)
	}
	defer file.Close()
	_, err = fmt.Fprintf(
		file,
		`{"owner":"tunnel","local":"192.0.2.1:1","peer":"198.51.100.1:%d","time":"2026-01-01T12:00:00.000Z",`+
			`"id":%q,"event":%q,"node":"CN=%s","worker":"worker_%d"}`+"\n",
		port,
		domain.TunnelID(id),
		what,
		node,
		worker,
	)
	if err != nil {
		t.Fatal(err)
	}
}

// connection writes the record of a connection that is no tunnel, by its number.
func (g *gatewayAgent) connection(t testing.TB, owner, what string, port int, node, name string) {
	t.Helper()
	file, err := os.OpenFile(g.path, os.O_CREATE|os.O_WRONLY|os.O_APPEND, 0o600)
	if err != nil {
		t.Fatal(err)
	}
	defer file.Close()
	if _, err := fmt.Fprintf(
		file, `{"owner":%q,"local":"192.0.2.1:1","peer":"198.51.100.2:%d","time":"2026-01-01T12:00:00.000Z",`+
			`"id":%q,"event":%q,"node":"CN=%s","connection":%d}`+"\n", owner, port, name, what, node, port,
	); err != nil {
		t.Fatal(err)
	}
}

func (g *gatewayAgent) opens(t testing.TB, port int, node, id string) {
	t.Helper()
	g.event(t, "tunnel_setup", port, node, id)
}

func (g *gatewayAgent) closes(t testing.TB, port int, node, id string) {
	t.Helper()
	g.event(t, "tunnel_closed", port, node, id)
}

// edge runs the reporter of an edge-agent.
func (w *world) edge(t testing.TB, s model.Subject, addresses ...string) (stop func()) {
	t.Helper()
	conn := w.Dial(t, &s, addresses...)
	report := func() *reportv1.EdgeReport { return &reportv1.EdgeReport{Form: "Process"} }
	return background(t, func(ctx context.Context) error {
		return agent.SendEdge(ctx, conn, agent.EdgeSource{Reopen: quick.Reopen, Report: report}, w.Log)
	})
}

// viewer is a controller's view of the servers at some addresses.
type viewer struct {
	*view.View
	stop func()

	mu  sync.Mutex
	ids map[string]int // number of notifications by id
}

func (w *world) view(t testing.TB, addresses ...string) *viewer {
	t.Helper()
	controller := model.ControllerSubject()
	identity := w.Identity(t, controller, time.Now().Add(time.Hour))
	v := &viewer{ids: map[string]int{}}
	v.View = view.New(
		func(context.Context) ([]string, error) { return addresses, nil },
		func(address string) (*grpc.ClientConn, error) { return w.DialAs(t, &identity, address), nil },
		func(id string) {
			v.mu.Lock()
			defer v.mu.Unlock()
			v.ids[id]++
		}, w.Log)
	v.SetTimes(quick)
	v.stop = background(t, v.Run)
	return v
}

// shows waits until the state of a tunnel is as expected.
func (v *viewer) shows(t testing.TB, id, want string) {
	t.Helper()
	eventually.True(t, patience, "the view is right", func() error {
		if got := describe(v.Tunnel(id)); got != want {
			return fmt.Errorf("\n got %s\nwant %s", got, want)
		}
		return nil
	})
}

// describe returns the state of the tunnel in a line: gateways, then each edge with its tunnels, a + for a connected
// agent, after - the number of workers without a tunnel, after : other connections, and a ? after tunnels to a gateway
// that is down.
func describe(l view.Live) string {
	text := "unknown"
	if l.Known {
		text = "known"
	}
	text += " " + strings.Join(l.Gateways, ",")
	for _, e := range l.Edges {
		text += "; " + e.Node
		if e.Connected {
			text += "+"
		}
		for _, name := range slices.Sorted(maps.Keys(e.Gateways)) {
			text += fmt.Sprintf(" %s=%d", name, e.Gateways[name])
			if n := e.Without[name]; n > 0 {
				text += fmt.Sprintf("-%d", n)
			}
		}
		for _, name := range slices.Sorted(maps.Keys(e.Connections)) {
			text += fmt.Sprintf(" %s:%d", name, e.Connections[name])
		}
		for _, name := range slices.Sorted(maps.Keys(e.Last)) {
			text += fmt.Sprintf(" %s=%d?", name, e.Last[name])
		}
	}
	return text
}
