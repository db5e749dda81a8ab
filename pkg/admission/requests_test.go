package admission_test

import (
	"fmt"
	"testing"
	"time"

	"github.com/fairlead/fairlead/pkg/admission"
	"github.com/fairlead/fairlead/pkg/model"
)

// requests makes requests of a node at once, and returns how many are beyond its rate.
func requests(c *admission.Control, at time.Time, node model.EdgeRef, n int) (beyond int) {
	for range n {
		if c.Request(at, node) != admission.Admitted {
			beyond++
		}
	}
	return beyond
}

func TestRequestsOfANodeHaveARate(t *testing.T) {
	c, at := admission.NewControl(0, 0), start
	hostile, other := model.EdgeRef{Node: "kas-1", ID: "hostile"}, model.EdgeRef{Node: "kas-2", ID: "hostile"}
	for range 120 {
		if n := requests(c, at, hostile, 1000); n > 0 {
			t.Fatalf("%d of 1,000 requests a second are too many", n)
		}
		at = at.Add(time.Second)
	}
	if n := requests(c, at, hostile, 20_000); n > 0 {
		t.Errorf("of 20,000 requests after a pause %d are too many", n)
	}
	if n := requests(c, at, hostile, 5000); n != 5000 {
		t.Errorf("of 5,000 more %d are too many", n)
	}
	if c.Stream(at.Add(4*time.Second), hostile) != admission.ByRequests {
		t.Error("a new connection is admitted at once")
	}
	if c.Stream(at.Add(4*time.Second), other) != admission.Admitted || requests(c, at, other, 1000) > 0 {
		t.Error("another node of the same id is rejected")
	}
	if c.Stream(at.Add(9*time.Second), hostile) != admission.ByRequests {
		t.Error("a new connection is admitted before it may make requests")
	}
	if c.Stream(at.Add(10*time.Second), hostile) != admission.Admitted {
		t.Error("a new connection is rejected when the flood is over")
	}
	if n := c.Counts().Tunnels[admission.ByRequests]; n != 5002 {
		t.Errorf("%d are counted", n)
	}
	requests(c, at, hostile, 100_000)
	if c.Stream(at.Add(20*time.Second), hostile) != admission.Admitted {
		t.Error("it is rejected for longer than some seconds")
	}
}

// TestANodeThatReturnsMayServeItsClients: an apiserver was away for seconds, its edge has retried the requests of 2,000
// clients at one site, and these come again.
func TestANodeThatReturnsMayServeItsClients(t *testing.T) {
	c, node, at := admission.NewControl(0, 0), model.EdgeRef{Node: "kas-1", ID: "id"}, start
	requests(c, at, node, 40_000)
	for c.Stream(at, node) != admission.Admitted {
		at = at.Add(100 * time.Millisecond)
	}
	if after := at.Sub(start); after > 11*time.Second {
		t.Errorf("it is rejected for %s", after)
	}
	if n := requests(c, at, node, 2000); n > 0 {
		t.Errorf("of the requests of its clients %d are too many", n)
	}
	// Requests within the rate, on a connection that was not closed, do not keep it out.
	requests(c, at, node, 40_000)
	for second := 6 * time.Second; second <= 10*time.Second; second += time.Second {
		requests(c, at.Add(second), node, 900)
	}
	if c.Stream(at.Add(10*time.Second), node) != admission.Admitted {
		t.Error("it is rejected 10 s after its last request beyond the rate")
	}
}

func TestRequestsOfATunnelIDHaveARate(t *testing.T) {
	c, beyond := admission.NewControl(0, 0), 0
	for node := range 50 {
		beyond += requests(c, start, model.EdgeRef{Node: fmt.Sprint("kas-", node), ID: "hostile"}, 10_000)
	}
	if admitted := 50*10_000 - beyond; admitted != 80_000 {
		t.Errorf("of 50 nodes %d requests are admitted at once", admitted)
	}
	if c.Stream(start, model.EdgeRef{Node: "kas-1", ID: "victim"}) != admission.Admitted {
		t.Error("another tunnel id is rejected")
	}
}

// TestAFloodOfOneNodeRejectsNoOther, also where its connection stays open because the agent may not close it.
func TestAFloodOfOneNodeRejectsNoOther(t *testing.T) {
	c := admission.NewControl(0, 0)
	hostile, other := model.EdgeRef{Node: "kas-1", ID: "hostile"}, model.EdgeRef{Node: "kas-2", ID: "hostile"}
	if n := requests(c, start, hostile, 200_000); n != 180_000 {
		t.Errorf("of 200,000 requests %d are too many", n)
	}
	if c.Stream(start, other) != admission.Admitted || requests(c, start, other, 20_000) > 0 {
		t.Error("another node of the same id is rejected")
	}
}

// TestRequestsFollowAClockThatIsSetBack: the time of Envoy's records is the machine's.
func TestRequestsFollowAClockThatIsSetBack(t *testing.T) {
	c, node := admission.NewControl(0, 0), model.EdgeRef{Node: "kas-1", ID: "id"}
	requests(c, start, node, 30_000)
	earlier := start.Add(-time.Hour)
	c.Stream(earlier, node)
	if c.Stream(earlier.Add(20*time.Second), node) != admission.Admitted {
		t.Error("it is rejected until the clock is where it was")
	}
}
