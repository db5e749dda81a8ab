package report_test

import (
	"errors"
	"math/rand/v2"
	"strconv"
	"testing"
	"time"

	"github.com/fairlead/fairlead/internal/eventually"
	"github.com/fairlead/fairlead/pkg/model"
)

// exact bounds the time until the view is exact again: a fifth of 15 s, as all times here, and a margin for a busy
// machine.
const exact = 5 * time.Second

// fleetOfTwo has two servers, two gateways and two edges, and a controller's view of them.
type fleetOfTwo struct {
	*world
	places   []*place
	gateways []*gatewayAgent
	view     *viewer
	edges    []func()
}

func newFleetOfTwo(t *testing.T) *fleetOfTwo {
	t.Helper()
	f := &fleetOfTwo{world: newWorld(t)}
	for range 2 {
		p := f.place(t)
		p.hub.SetTimes(settled())
		f.places = append(f.places, p)
	}
	a, b := f.places[0].Address, f.places[1].Address
	// Each prefers another server.
	f.gateways = []*gatewayAgent{f.gateway(t, "gateway-0", a, b), f.gateway(t, "gateway-1", b, a)}
	for port, g := range f.gateways {
		g.opens(t, port+1, "edge-1", idA)
		g.opens(t, port+11, "edge-2", idB)
	}
	f.edges = []func(){f.edge(t, edgeOf("edge-1", idA), a, b), f.edge(t, edgeOf("edge-2", idB), b, a)}
	f.view = f.world.view(t, a, b)
	f.right(t, "known gateway-0,gateway-1; edge-1+ gateway-0=1 gateway-1=1")
	return f
}

// right waits for a state of the first tunnel, and measures how long that takes.
func (f *fleetOfTwo) right(t *testing.T, want string) {
	t.Helper()
	began := time.Now()
	f.view.shows(t, idA, want)
	if took := time.Since(began); took > exact {
		t.Errorf("it took %s until it was exact", took)
	}
}

// TestStatusIsExactAfterRestarts stops some of the programs, changes tunnels, and restarts the programs in some order.
func TestStatusIsExactAfterRestarts(t *testing.T) {
	t.Parallel()
	if testing.Short() {
		t.Skip("takes a quarter of a minute")
	}
	const servers, first, gateways, controller, edges = "servers", "first server", "gateway-agents", "controller",
		"edge-agents"
	tests := map[string]struct{ stop, start []string }{
		"one xds-server":     {[]string{first}, []string{first}},
		"all xds-servers":    {[]string{servers}, []string{servers}},
		"the controller":     {[]string{controller}, []string{controller}},
		"the gateway-agents": {[]string{gateways}, []string{gateways}},
		"all, and the xds-servers come last": {
			[]string{servers, controller, gateways, edges},
			[]string{controller, gateways, edges, servers},
		},
		"all, and the controller comes last": {
			[]string{controller, gateways, edges, servers},
			[]string{servers, gateways, edges, controller},
		},
		"all, and the agents come last": {
			[]string{gateways, edges, servers, controller},
			[]string{servers, controller, edges, gateways},
		},
		"xds-servers and controller": {[]string{servers, controller}, []string{controller, servers}},
		"controller and xds-servers": {[]string{controller, servers}, []string{servers, controller}},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			f := newFleetOfTwo(t)
			parts := map[string]struct{ stop, start func() }{
				first: {func() { f.places[0].Stop() }, func() { f.places[0].start(t) }},
				servers: {
					func() { f.places[0].Stop(); f.places[1].Stop() },
					func() { f.places[1].start(t); f.places[0].start(t) },
				},
				gateways: {
					func() { f.gateways[0].stop(); f.gateways[1].stop() },
					func() { f.gateways[0].start(t); f.gateways[1].start(t) },
				},
				controller: {
					func() { f.view.stop() },
					func() { f.view = f.world.view(t, f.places[0].Address, f.places[1].Address) },
				},
				edges: {
					func() { f.edges[0](); f.edges[1]() },
					func() { f.edge(t, edgeOf("edge-1", idA), f.places[1].Address, f.places[0].Address) },
				},
			}
			for _, part := range tt.stop {
				parts[part].stop()
			}
			f.gateways[0].closes(t, 1, "edge-1", idA)
			f.gateways[1].opens(t, 3, "edge-1", idA)
			f.gateways[1].opens(t, 4, "edge-3", idA)
			for _, part := range tt.start {
				parts[part].start()
			}
			f.right(t, "known gateway-0,gateway-1; edge-1+ gateway-1=2; edge-3 gateway-1=1")
			// The state stays after all servers have sent theirs.
			steady(t, f.view, "known gateway-0,gateway-1; edge-1+ gateway-1=2; edge-3 gateway-1=1", quick.Settle)
		})
	}
}

// steady fails if the state changes at any time.
func steady(t *testing.T, v *viewer, want string, long time.Duration) {
	t.Helper()
	end := time.Now().Add(long)
	eventually.True(t, patience, "some time has passed", func() error {
		if got := describe(v.Tunnel(idA)); got != want {
			t.Fatalf("\n got %s\nwant %s", got, want)
		}
		if time.Now().Before(end) {
			return errors.New("not yet")
		}
		return nil
	})
}

// TestNothingIsConcludedTooEarly restarts everything and checks every intermediate state of a controller: no existing
// tunnel may be reported as absent.
func TestNothingIsConcludedTooEarly(t *testing.T) {
	t.Parallel()
	f := newFleetOfTwo(t)
	watch := func(v *viewer, stop <-chan struct{}, done chan<- string) {
		for {
			l := v.Tunnel(idA)
			if l.Known && describe(l) != "known gateway-0,gateway-1; edge-1+ gateway-0=1 gateway-1=1" {
				done <- describe(l)
				return
			}
			select {
			case <-stop:
				done <- ""
				return
			case <-time.After(time.Millisecond):
			}
		}
	}
	stop, done := make(chan struct{}), make(chan string, 2)
	go watch(f.view, stop, done)
	f.places[0].Stop()
	f.places[1].Stop()
	f.places[0].start(t)
	f.places[1].start(t)
	young := f.world.view(t, f.places[0].Address, f.places[1].Address)
	go watch(young, stop, done)
	for range 2 {
		f.gateways[0].stop()
		f.gateways[0].start(t)
		young.shows(t, idA, "known gateway-0,gateway-1; edge-1+ gateway-0=1 gateway-1=1")
		f.right(t, "known gateway-0,gateway-1; edge-1+ gateway-0=1 gateway-1=1")
		f.places[0].Stop()
		f.right(t, "known gateway-0,gateway-1; edge-1+ gateway-0=1 gateway-1=1")
		f.places[0].start(t)
	}
	close(stop)
	for range 2 {
		if got := <-done; got != "" {
			t.Errorf("it was said to be %s", got)
		}
	}
}

// TestAServerWithoutReportsConcludesNothing rejects every caller: nothing is concluded from its silence.
func TestAServerWithoutReportsConcludesNothing(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.Rules.Set(model.Denied{}, true)
	p := w.place(t)
	g := w.gateway(t, "gateway-0", p.Address)
	g.opens(t, 1, "edge-1", idA)
	v := w.view(t, p.Address)
	steady(t, v, "unknown ", 2*quick.Settle)
	w.Rules.Set(model.Denied{}, false)
	v.shows(t, idA, "known gateway-0; edge-1 gateway-0=1")
}

func TestAGatewayThatDoesNotReconnectIsDown(t *testing.T) {
	t.Parallel()
	f := newFleetOfTwo(t)
	f.gateways[0].stop()
	f.view.shows(t, idA, "unknown gateway-1; edge-1+ gateway-0=1 gateway-1=1")
	f.view.shows(t, idA, "known gateway-1; edge-1+ gateway-1=1 gateway-0=1?")
}

// TestManyChangesAddUp opens and closes tunnels while servers and the gateway's agent restart.
func TestManyChangesAddUp(t *testing.T) {
	t.Parallel()
	f := newFleetOfTwo(t)
	open := map[int]bool{}
	for range 300 {
		switch port := 100 + rand.IntN(40); {
		case rand.IntN(60) == 0:
			p := f.places[rand.IntN(2)]
			p.Stop()
			p.start(t)
		case rand.IntN(60) == 0:
			f.gateways[1].stop()
			f.gateways[1].start(t)
		case open[port]:
			f.gateways[1].closes(t, port, "edge-9", idA)
			delete(open, port)
		default:
			f.gateways[1].opens(t, port, "edge-9", idA)
			open[port] = true
		}
	}
	f.gateways[1].opens(t, 100, "edge-9", idA)
	open[100] = true
	f.right(t, "known gateway-0,gateway-1; edge-1+ gateway-0=1 gateway-1=1; edge-9 gateway-1="+strconv.Itoa(len(open)))
}
