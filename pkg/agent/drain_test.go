package agent

import (
	"errors"
	"os"
	"path/filepath"
	"syscall"
	"testing"
	"time"

	"github.com/fairlead/fairlead/internal/envoytest"
	"github.com/fairlead/fairlead/pkg/model"
)

func TestADrainWaitsForOpenStreams(t *testing.T) {
	tests := map[string]struct {
		life, drain time.Duration
		stops       func(gateway, edge *agentProcess) *agentProcess
		cut         bool
	}{
		"when the edge stops": {
			life:  4 * time.Second,
			drain: 10 * time.Second,
			stops: func(_, edge *agentProcess) *agentProcess { return edge },
		},
		"when the gateway stops": {
			life:  6 * time.Second,
			drain: 12 * time.Second,
			stops: func(gateway, _ *agentProcess) *agentProcess { return gateway },
		},
		"unless it takes longer than it may take": {
			life:  10 * time.Second,
			drain: 2 * time.Second,
			stops: func(_, edge *agentProcess) *agentProcess { return edge },
			cut:   true,
		},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			gateway, edge, a := newPair(t)
			gateway.child.Drain, edge.child.Drain = tc.drain, tc.drain
			gateway.serve()
			g, e := gateway.agent(), edge.agent()
			edge.works(a)
			edge.ready()
			wait := edge.stream(a, tc.life)
			began := time.Now()
			tc.stops(g, e).end(t, syscall.SIGTERM)
			took := time.Since(began)
			if err := wait(); (err != nil) != tc.cut {
				t.Errorf("the stream ended with %v", err)
			}
			least, most := tc.life, tc.life+4*time.Second
			if tc.cut {
				least, most = tc.drain, tc.life-2*time.Second
			}
			if took < least-time.Second || took > most {
				t.Errorf("it took %v, want about %v", took, least)
			}
		})
	}
}

// TestADrainOfAGatewayWaitsForStreamsOfNetworks has an apiserver whose request is not complete when the gateway stops.
// Envoy waits 5 s for the rest of it, longer than a drain without open streams takes.
func TestADrainOfAGatewayWaitsForStreamsOfNetworks(t *testing.T) {
	c := newWorld(t)
	gateway, id := newGateway(c), model.NewID()
	c.egress("c1", id)
	c.serve()
	agent := gateway.agent()
	gateway.ready()
	const active = "envoy_http_downstream_rq_active"
	counted, err := gateway.admin().Families(t.Context(), `^http\.(egress|forward)\.downstream_rq_active$`)
	if err != nil || len(counted[active].GetMetric()) != 2 {
		t.Errorf("Envoy counts the streams of both kinds of nodes in %v, %v", counted, err)
	}
	conn, err := c.dialNetwork("kas-1", id)
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	began := time.Now()
	if _, err := conn.Write([]byte("CONNECT 10.0.0.1:443 HTTP/1.1\r\nHost: 10.")); err != nil {
		t.Fatal(err)
	}
	envoytest.Eventually(t, "Envoy has an open stream", func() error {
		n, err := gateway.admin().Sum(t.Context(), `^http\.egress\.downstream_rq_active$`)
		if err == nil && n != 1 {
			err = errors.New("it has none")
		}
		return err
	})
	agent.end(t, syscall.SIGTERM)
	if took := time.Since(began); took < 4500*time.Millisecond {
		t.Errorf("the gateway ended after %s, with an open stream", took)
	}
}

// TestNoRequestFailsWhileOneOfTwoEdgesDrains has a client that does not retry. The gateway retries: while a tunnel of
// the draining edge is in use, Envoy continues to look for one, and finds a tunnel of the other edge 0.1 to 0.4 s
// later.
func TestNoRequestFailsWhileOneOfTwoEdgesDrains(t *testing.T) {
	gateway, first, a := newPair(t)
	second := newEdge(gateway.control)
	gateway.serve()
	gateway.agent()
	agents := map[*place]*agentProcess{first: first.agent(), second: second.agent()}
	first.ready()
	second.ready()
	first.works(a)
	waits := []func() error{first.stream(a, 5*time.Second), first.stream(a, 5*time.Second)}
	ending := first
	if n, err := first.admin().Sum(t.Context(), `^http\.tunnel[^.]*\.downstream_rq_active$`); err != nil {
		t.Fatal(err)
	} else if n == 0 {
		ending = second // the streams are in one of its tunnels
	}
	began, ended := time.Now(), make(chan struct{})
	go func() {
		defer close(ended)
		agents[ending].end(t, syscall.SIGTERM)
	}()
	requests := 0
	for tick := time.NewTicker(10 * time.Millisecond); ; requests++ {
		select {
		case <-ended:
			t.Logf("%d requests", requests)
			if took := time.Since(began); took < 4*time.Second || requests < 10 {
				t.Errorf("it drained for %v only, with %d requests", took, requests)
			}
			for _, wait := range waits {
				if err := wait(); err != nil {
					t.Error(err)
				}
			}
			return
		case <-tick.C:
			if err := first.once(t.Context(), a); err != nil {
				t.Fatalf("request %d: %v", requests, err)
			}
		}
	}
}

// TestAnEnvoyThatWasAskedToDrainIsNotAdopted kills an agent in the middle of a drain. Its Envoy never accepts or dials
// a connection again.
func TestAnEnvoyThatWasAskedToDrainIsNotAdopted(t *testing.T) {
	for name, tc := range map[string]struct{ ofGateway, unrecorded bool }{
		"a gateway's": {ofGateway: true},
		"an edge's":   {},
		"an edge's, by an agent that recorded nothing": {unrecorded: true},
	} {
		t.Run(name, func(t *testing.T) {
			gateway, edge, a := newPair(t)
			gateway.child.Drain, edge.child.Drain = 6*time.Second, 6*time.Second
			gateway.serve()
			g, e := gateway.agent(), edge.agent()
			edge.works(a)
			place, killed := edge, e
			if tc.ofGateway {
				place, killed = gateway, g
			}
			old := place.ready()
			wait := edge.stream(a, 20*time.Second) // so that the drain does not end before
			if err := killed.cmd.Process.Signal(syscall.SIGTERM); err != nil {
				t.Fatal(err)
			}
			envoytest.Eventually(t, "requests fail during the drain", func() error {
				if err := edge.once(t.Context(), a); err == nil {
					return errors.New("one is answered")
				}
				return nil
			})
			killed.end(t, syscall.SIGKILL)
			if tc.unrecorded {
				if err := os.Remove(filepath.Join(place.child.StateDir, "drained")); err != nil {
					t.Fatal(err)
				}
			}
			if pid, err := place.admin().PID(); err != nil || pid != old {
				t.Fatalf("the Envoy that drains is %d, %v; want %d", pid, err, old)
			}
			place.agent()
			place.ready(old)
			edge.works(a)
			if err := wait(); err == nil {
				t.Error("the stream of the Envoy that was replaced goes on")
			}
		})
	}
}
