package security

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/fairlead/fairlead/pkg/model"
	"github.com/fairlead/fairlead/test/lab"
	"github.com/fairlead/fairlead/test/world"
)

const (
	// revokedWithin is how long a revoked edge may keep its tunnels.
	revokedWithin = 5 * time.Second
	// backWithin bounds the time in which the edges of others dial again after a gateway's Envoy was replaced, beside
	// other tests.
	backWithin = 15 * time.Second
)

// TestARevocationWithoutNetAdmin revokes an edge in an installation whose gateways may not close single connections.
// The edge has a tunnel at one gateway only.
func TestARevocationWithoutNetAdmin(t *testing.T) {
	if testing.Short() {
		t.Skip("the full run has it")
	}
	w := world.Start(t, &proof, lab.Options{
		Lean: true, WithoutWorkload: true, Gateways: 2, XDSServers: 2, WithoutNetAdmin: true,
	})
	in := &installation{World: w}
	in.victim = w.Member(t, "victim", nil)
	in.edgeVictim = w.Edge(t, lab.EdgeSpec{Name: "edge-victim"}, in.victim)
	hostile := w.Member(t, "hostile", nil)
	edge := w.Edge(t, lab.EdgeSpec{Name: "edge-hostile"}, hostile)
	stolen := world.Steal(t, edge)
	world.StopEdge(t, edge)
	eventually(t, hostile.Unreachable)
	before := in.envoys(t)

	response, conn := in.openTunnel(t, stolen, model.TenantID, "")
	defer func() { _ = conn.Close() }()
	if response != http.StatusOK {
		t.Fatalf("Envoy answers %d", response)
	}
	closed := make(chan time.Duration, 1)
	began := time.Now()
	go func() {
		_ = conn.NetConn().SetReadDeadline(began.Add(closedWithin))
		_, err := conn.NetConn().Read(make([]byte, 1))
		for err == nil { // pings
			_, err = conn.NetConn().Read(make([]byte, 1))
		}
		if errors.Is(err, os.ErrDeadlineExceeded) {
			close(closed)
			return
		}
		closed <- time.Since(began)
	}()
	var out string
	var err error
	attack(t, "an edge keeps a tunnel beyond its revocation at a gateway without NET_ADMIN",
		"the replacement of Envoy (without: TestAReplacementThatClosesNothingIsReportedAndRepeated)", func(t *testing.T) {
			done := make(chan struct{})
			go func() {
				defer close(done)
				out, err = in.Exec(t.Context(), "edge", "revoke", stolen.Subject.Node, in.Inspection())
			}()
			took, ok := <-closed
			if !ok || took > revokedWithin {
				t.Errorf("the tunnel was closed after %s (%t)", took, ok)
			}
			measured("revoked_without_net_admin_s", took.Seconds())
			in.mustReturn(t)
			measured("others_back_without_net_admin_s", time.Since(began).Seconds()-took.Seconds())
			<-done
		}, nil)
	that(t, "the command has the proof of both gateways", func(t *testing.T) {
		if err != nil || !strings.Contains(out, "gateway-0: closed 1 connections") ||
			!strings.Contains(out, "gateway-1: closed 0 connections") {
			t.Errorf("%v: %s", err, out)
		}
	})
	that(t, "one gateway has replaced its Envoy, once, and reports it", func(t *testing.T) {
		time.Sleep(revokedWithin) // a further replacement would come in this time
		after := in.envoys(t)
		if after[0] == before[0] || after[1] != before[1] {
			t.Errorf("the Envoys were %v and are %v", before, after)
		}
		for i, want := range []int{1, 0} {
			log, err := os.ReadFile(in.LogFile(fmt.Sprintf("gateway-%d", i)))
			must(t, err)
			if n := strings.Count(string(log), "Envoy is replaced to close connections"); n != want {
				t.Errorf("gateway-%d has logged %d replacements, want %d", i, n, want)
			}
		}
	})
}

// mustReturn waits until all paths to the victim work again.
func (in *installation) mustReturn(t *testing.T) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), backWithin)
	defer cancel()
	err := in.victim.Works(ctx)
	for err != nil && ctx.Err() == nil {
		time.Sleep(50 * time.Millisecond)
		err = in.victim.Works(ctx)
	}
	must(t, err)
}
