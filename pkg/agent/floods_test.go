package agent

import (
	"errors"
	"net/http"
	"net/url"
	"sync/atomic"
	"testing"
	"time"

	"golang.org/x/net/http2"
	"golang.org/x/sync/errgroup"

	"github.com/fairlead/fairlead/internal/envoytest"
	"github.com/fairlead/fairlead/pkg/admission"
	"github.com/fairlead/fairlead/pkg/model"
)

// floodTime is for how long a flood may last. Within the rate, a node may make 50,000 requests in it.
const floodTime = 30 * time.Second

// TestAFloodOfRequestsEndsItsConnection makes requests of one apiserver as fast as Envoy answers them.
func TestAFloodOfRequestsEndsItsConnection(t *testing.T) {
	c, _, id := newWorldOfNetworks(t)
	client := c.clientOf("kas-1", id)
	var clients errgroup.Group
	var answers atomic.Int64
	began := time.Now()
	for range 64 {
		clients.Go(func() error {
			for time.Since(began) < floodTime {
				response, err := client.RoundTrip(&http.Request{
					Method: http.MethodConnect, URL: &url.URL{Host: "10.0.0.1:443"}, Host: "10.0.0.1:443",
				})
				if err != nil {
					return nil //nolint:nilerr // the connection has ended
				}
				_ = response.Body.Close()
				answers.Add(1)
			}
			return errors.New("the connection is open")
		})
	}
	if err := clients.Wait(); err != nil {
		if n := answers.Load(); n < 100_000 { // the rate itself is tested in package admission
			t.Logf("this machine is too busy for a flood: %d requests in %s", n, floodTime)
			return
		}
		t.Fatal(err)
	}
	// It may make 20,000 at once, and the agent learns of a request after some time.
	if n := answers.Load(); n < 15_000 {
		t.Errorf("it ended after %d answers", n)
	}
	if err := c.askNetwork("kas-2", id); err != nil {
		t.Errorf("another apiserver: %v", err)
	}
	envoytest.Eventually(t, "a new connection is admitted in the end", func() error { return c.askNetwork("kas-1", id) })
}

// TestAnEdgeHasALimitedNumberOfConnections that forward, before it makes a request on any of them.
func TestAnEdgeHasALimitedNumberOfConnections(t *testing.T) {
	c, _, id := newWorldOfNetworks(t)
	most := admission.NewControl(0, 0).StreamLimits(model.RoleEdge).Node
	// answers reports whether Envoy begins HTTP/2 on a new connection.
	answers := func(node string) bool {
		conn, err := c.dialForward(node, id)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = conn.Close() })
		if _, err := conn.Write([]byte(http2.ClientPreface)); err != nil {
			t.Fatal(err)
		}
		framer := http2.NewFramer(conn, conn)
		if framer.WriteSettings() != nil {
			return false
		}
		_ = conn.SetReadDeadline(time.Now().Add(envoytest.Patience))
		_, err = framer.ReadFrame()
		return err == nil
	}
	for i := range most {
		if !answers("edge-1") {
			t.Fatalf("connection %d of %d is rejected", i+1, most)
		}
	}
	if answers("edge-1") {
		t.Error("one more is admitted")
	}
	if !answers("edge-2") {
		t.Error("another edge is rejected")
	}
}
