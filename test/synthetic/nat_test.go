package synthetic_test

import (
	"context"
	"net"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/fairlead/fairlead/test/outsider"
)

// unknownSource is the address of an unauthenticated source. All edges share another address, as behind one NAT.
const unknownSource = "127.0.0.2"

const (
	// floodRate is a hundred times the quota of an unknown source.
	floodRate = 1000
	// unknownBurst is how many connections an unknown source may open at once.
	unknownBurst = 200
)

// TestManyEdgesBehindOneAddressBesideAFlood proves that edges which share one source address open their tunnels while
// another source sends a hundred times its quota, and open them again after the gateway's Envoy was replaced.
func TestManyEdgesBehindOneAddressBesideAFlood(t *testing.T) {
	edges := number(t, "NAT_EDGES", 500)
	w := newWorld(t, edges, nil)
	f := w.fleet(t, nil)
	start := func() {
		for _, wc := range w.clusters[len(f.Edges()):] {
			w.edge(t, f, wc, nil).Start()
		}
	}
	stop := w.flood(t, floodRate)
	start()
	first := up(t, f, 2*edges)
	stop("first")
	var rearm [2]time.Duration // without and with the flood
	for i := range rearm {
		var stop func(string)
		if i == 1 {
			stop = w.flood(t, floodRate)
		}
		_, rearm[i] = w.restart(t, f, 2*edges)
		if i == 1 {
			stop("again")
		}
	}
	t.Logf(
		"%d edges behind one address: beside a flood %s at first; after a restart %s, and %s beside a flood", edges, first,
		rearm[0], rearm[1],
	)
	stats, err := w.envoy.Admin(
		t.Context(), http.MethodGet, "/stats?usedonly&filter=(ratelimit.admission|ext_authz.admission)",
	)
	t.Logf("%v %s", err, strings.ReplaceAll(strings.TrimSpace(stats), "\n", ", "))
}

// flood opens connections from the unknown source. stop fails the test if most of them were admitted.
func (w *world) flood(t *testing.T, perSecond int) (stop func(when string)) {
	t.Helper()
	from := net.Dialer{LocalAddr: &net.TCPAddr{IP: net.ParseIP(unknownSource)}}
	flood, err := outsider.StartFlood(t.Context(), func(ctx context.Context) (net.Conn, error) {
		return from.DialContext(ctx, "tcp", w.bind.Public.String())
	}, domain.GatewayReplica("gateway-0"), perSecond)
	if err != nil {
		t.Fatal(err)
	}
	return func(when string) {
		t.Helper()
		done := flood.Stop()
		t.Logf(
			"%s: %.0f connections in a second from another source, %d of %d admitted", when, done.PerSecond, done.Admitted,
			done.Sent,
		)
		if done.Sent == 0 || done.Admitted > 2*unknownBurst && done.Admitted > done.Sent/2 {
			t.Errorf("%s: %d of %d connections of the flood were admitted", when, done.Admitted, done.Sent)
		}
	}
}
