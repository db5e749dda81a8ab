package admission_test

import (
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"testing"
	"time"

	"github.com/fairlead/fairlead/pkg/admission"
	"github.com/fairlead/fairlead/pkg/envoy/overload"
	"github.com/fairlead/fairlead/pkg/model"
)

// gateway simulates the table of a gateway: a reverse tunnel is added some time after it was admitted.
type gateway struct {
	control *admission.Control
	live    map[netip.AddrPort]model.EdgeRef
	due     map[netip.AddrPort]time.Time
	edges   map[netip.AddrPort]model.EdgeRef
	port    uint16
	delay   time.Duration
}

func newGateway(maxEdges int) *gateway {
	return &gateway{
		control: admission.NewControl(maxEdges, 0), delay: 250 * time.Millisecond,
		live: map[netip.AddrPort]model.EdgeRef{}, due: map[netip.AddrPort]time.Time{},
		edges: map[netip.AddrPort]model.EdgeRef{},
	}
}

var local = netip.MustParseAddrPort("192.0.2.254:443")

// open requests a reverse tunnel.
func (g *gateway) open(now time.Time, edge model.EdgeRef, tunnels int) admission.Reason {
	for remote, at := range g.due {
		if !now.Before(at) {
			g.live[remote] = g.edges[remote]
			delete(g.due, remote)
		}
	}
	g.port++
	remote := netip.AddrPortFrom(netip.MustParseAddr("192.0.2.1"), g.port)
	a := admission.Attempt{
		Edge: edge, Remote: remote, Local: local, Tunnels: tunnels,
		Live: func(remote, _ netip.AddrPort) bool { _, ok := g.live[remote]; return ok },
	}
	for _, e := range g.live {
		if e.ID == edge.ID {
			a.LiveOfID++
		}
		if e == edge {
			a.LiveOfEdge++
		}
	}
	reason := g.control.Tunnel(now, a)
	if reason == admission.Admitted {
		g.due[remote], g.edges[remote] = now.Add(g.delay), edge
	}
	return reason
}

func (g *gateway) all() int { return len(g.live) + len(g.due) }

func TestOneLeafOpensThreeThousandTunnels(t *testing.T) {
	g := newGateway(0)
	leaf, now := model.EdgeRef{Node: "edge-hostile", ID: "hostile"}, start
	for range 3000 {
		g.open(now, leaf, 2)
		now = now.Add(10 * time.Millisecond)
	}
	if n := g.all(); n > 8 {
		t.Errorf("it has %d tunnels", n)
	}
	// All at once, before any of them is in the table.
	leaf.Node = "edge-fast"
	before := g.all()
	for range 3000 {
		g.open(now, leaf, 2)
	}
	if n := g.all() - before; n > 8 {
		t.Errorf("in one moment it got %d tunnels", n)
	}
	for _, other := range []model.EdgeRef{{Node: "edge-victim", ID: "victim"}, {Node: "edge-other", ID: "hostile"}} {
		for range 2 {
			if reason := g.open(now, other, 2); reason != admission.Admitted {
				t.Errorf("%v is refused by %q", other, reason)
			}
		}
	}
}

func TestTheEdgesOfOneTunnelIDTogether(t *testing.T) {
	g, now := newGateway(10), start
	var last admission.Reason
	for i := range 1000 {
		last = g.open(now, model.EdgeRef{Node: fmt.Sprint("edge-", i), ID: "hostile"}, 2)
		now = now.Add(time.Second)
	}
	if n := g.all(); n > 2*2*10 || last != admission.ByTunnelID {
		t.Errorf("they have %d tunnels, the last was refused by %q", n, last)
	}
	if reason := g.open(now, model.EdgeRef{Node: "edge-victim", ID: "victim"}, 2); reason != admission.Admitted {
		t.Errorf("another tunnel id is refused by %q", reason)
	}
}

// TestAnEdgeWithinItsLimitsIsNeverRejected opens all reverse tunnels that edges may open, for several numbers of
// workers and names.
func TestAnEdgeWithinItsLimitsIsNeverRejected(t *testing.T) {
	for _, shape := range []struct{ workers, names int }{{1, 1}, {4, 1}, {1, 3}, {4, 5}, {8, 4}} {
		each := model.TunnelsPerEdge(shape.workers, shape.names)
		tests := map[string]func(t *testing.T, g *gateway, edge model.EdgeRef, now time.Time){
			"it restarts while its old sockets linger": func(t *testing.T, g *gateway, edge model.EdgeRef, now time.Time) {
				openAll(t, g, edge, now, each)
				openAll(t, g, edge, now.Add(2*time.Second), each)
			},
			"it restarts three times, and its sockets end with " +
				"it": func(t *testing.T, g *gateway, edge model.EdgeRef, now time.Time) {
				for range 4 {
					openAll(t, g, edge, now, each)
					now = now.Add(2 * time.Second)
					clear(g.live)
					clear(g.due)
				}
			},
			"its limit is doubled": func(t *testing.T, g *gateway, edge model.EdgeRef, now time.Time) {
				openAll(t, g, edge, now, each)
				now = now.Add(time.Second)
				openAll(t, g, edge, now, 2*each)
			},
			"each of its tunnels is lost and dialled again every " +
				"second": func(t *testing.T, g *gateway, edge model.EdgeRef, now time.Time) {
				for range 30 {
					openAll(t, g, edge, now, each)
					now = now.Add(time.Second)
					for remote := range g.due {
						g.live[remote] = edge
					}
					clear(g.due)
					g.control.Tunnel(
						now,
						admission.Attempt{
							Edge:    model.EdgeRef{ID: edge.ID},
							Tunnels: each,
							Live:    func(netip.AddrPort, netip.AddrPort) bool { return true },
						},
					)
					clear(g.live)
				}
			},
			"all edges of its tunnel id restart at once": func(t *testing.T, g *gateway, edge model.EdgeRef, now time.Time) {
				for i := range 10 {
					openAll(t, g, model.EdgeRef{Node: fmt.Sprint("edge-", i), ID: edge.ID}, now, each)
				}
				clear(g.live)
				clear(g.due)
				now = now.Add(5 * time.Second)
				for i := range 10 {
					openAll(t, g, model.EdgeRef{Node: fmt.Sprint("edge-", i), ID: edge.ID}, now, each)
				}
			},
		}
		for name, do := range tests {
			t.Run(fmt.Sprintf("%d workers, %d names: %s", shape.workers, shape.names, name), func(t *testing.T) {
				do(t, newGateway(0), model.EdgeRef{Node: "edge-a", ID: "id"}, start)
			})
		}
	}
}

func openAll(t *testing.T, g *gateway, edge model.EdgeRef, now time.Time, n int) {
	t.Helper()
	for i := range n {
		if reason := g.open(now, edge, n); reason != admission.Admitted {
			t.Fatalf("tunnel %d of %d of %s is refused by %q, there are %d", i+1, n, edge.Node, reason, g.all())
		}
	}
}

func TestExcess(t *testing.T) {
	c := admission.NewControl(4, 0)
	limits := func(tunnels int) func(string) admission.Limits {
		return func(string) admission.Limits { return c.TunnelLimits(tunnels) }
	}
	var all []admission.Live
	add := func(node, id string, n int, since time.Duration) {
		for i := range n {
			all = append(all, admission.Live{
				Key: fmt.Sprintf(
					"%s-%s-%d", id, node, i,
				), Edge: model.EdgeRef{Node: node, ID: id}, Since: start.Add(since + time.Duration(i)*time.Second),
			})
		}
	}
	add("edge-a", "hostile", 20, 0)
	add("edge-b", "hostile", 2, 0)
	add("edge-a", "victim", 2, time.Hour)
	keys := c.Excess(slices.Clone(all), limits(2))
	if len(keys) != 12 || keys[0] != "hostile-edge-a-19" || keys[11] != "hostile-edge-a-8" {
		t.Errorf("in excess are %q", keys)
	}
	// Many edges of one tunnel id: the oldest 2 × 2 × 4 reverse tunnels stay.
	all = nil
	for i := range 20 {
		add(fmt.Sprint("edge-", i), "hostile", 1, time.Duration(i)*time.Minute)
	}
	if keys = c.Excess(all, limits(2)); len(keys) != 4 || keys[0] != "hostile-edge-19-0" {
		t.Errorf("of many edges in excess are %q", keys)
	}
	if keys = c.Excess(all, limits(8)); len(keys) != 0 {
		t.Errorf("of edges that keep more in excess are %q", keys)
	}
}

// TestNoTunnelIDHasMostTunnelsOfAGateway, whatever its Cluster and the installation contain: an edge keeps 1,024
// tunnels for 257 names, and 64 workers are the maximum. An installation that permits more edges of one tunnel id
// leaves at least a tenth to others.
func TestNoTunnelIDHasMostTunnelsOfAGateway(t *testing.T) {
	most := int(overload.PublicConnections(0)) / 2
	for _, tunnels := range []int{
		1, model.TunnelsPerEdge(1, 257), model.TunnelsPerEdge(model.MaxWorkers, 257) + model.TunnelsInLanes(model.MaxLanes),
	} {
		for _, edges := range []int{0, 1, 64, 65, 1000, 1 << 30} {
			c := admission.NewControl(edges, 2*most)
			of, streams := c.TunnelLimits(tunnels).ID, c.StreamLimits(model.RoleEgress).ID+c.StreamLimits(model.RoleEdge).ID
			if streams > most || edges <= 64 && of+streams > most || of > 2*most*9/10 {
				t.Errorf("with %d tunnels of %d edges a tunnel id may have %d and %d others", tunnels, edges, of, streams)
			}
		}
	}
	usual := admission.NewControl(0, 2*most).TunnelLimits(model.TunnelsPerEdge(4, 4))
	if want := (admission.Limits{Node: 4 * 32, ID: 2 * 32 * 64, All: 2 * most}); usual != want {
		t.Errorf("usually it may have %v, want %v", usual, want)
	}
}

// TestAnEdgeHasTunnelsBesideTheLanesOfOthers: 64 edges of one Cluster keep more tunnels than one tunnel id may have.
func TestAnEdgeHasTunnelsBesideTheLanesOfOthers(t *testing.T) {
	c, id, usual := admission.NewControl(0, 0), "id", model.TunnelsPerEdge(4, 1)
	all := usual + 4*model.TunnelsInLanes(model.DefaultLanes)
	edges, live, now := map[model.EdgeRef]int{}, 0, start
	open := func(node string, n int) (reason admission.Reason) {
		edge := model.EdgeRef{Node: node, ID: id}
		for range n {
			now = now.Add(5 * time.Millisecond)
			if reason = c.Tunnel(now, admission.Attempt{
				Edge: edge, Tunnels: all, LiveOfEdge: edges[edge], LiveOfID: live,
				Live: func(netip.AddrPort, netip.AddrPort) bool { return true },
			}); reason != admission.Admitted {
				return reason
			}
			edges[edge]++
			live++
		}
		return reason
	}
	for i := range 40 {
		open(fmt.Sprint("edge-", i), all)
	}
	if reason := open("edge-0", 1); reason != admission.ByTunnelID {
		t.Errorf("with %d tunnels one more is rejected by %q", live, reason)
	}
	for i := 40; i < 64; i++ {
		if reason := open(fmt.Sprint("edge-", i), usual); reason != admission.Admitted {
			t.Fatalf("with %d tunnels edge %d is rejected by %q", live, i, reason)
		}
	}
}

// TestAnEdgeWithoutTunnelsIsAdmitted, however many edges one tunnel id may have. Many edges may keep their lanes too: a
// thousand have ten tunnels each.
func TestAnEdgeWithoutTunnelsIsAdmitted(t *testing.T) {
	for edges, most := range map[int]int{64: 8000, 1000: 16_666, 1001: 16_666, 5000: 16_666} {
		for _, c := range []struct{ ofEdge, ofID int }{{0, 8500}, {0, most + 500}, {500, most - 1}, {500, most}} {
			want := admission.Admitted
			if c.ofEdge > 0 && c.ofID >= most {
				want = admission.ByTunnelID
			}
			if got := admission.NewControl(edges, 25_000).Tunnel(start, admission.Attempt{
				Edge: model.EdgeRef{Node: "edge-a", ID: "id"}, Tunnels: 264,
				LiveOfEdge: c.ofEdge, LiveOfID: c.ofID, LiveOfAll: c.ofID,
			}); got != want {
				t.Errorf("of %d edges with %d tunnels one with %d is rejected by %q, want %q", edges, c.ofID, c.ofEdge, got, want)
			}
		}
	}
}

// crowd simulates a gateway whose table has a reverse tunnel as soon as it is admitted.
type crowd struct {
	control *admission.Control
	now     time.Time
	live    map[string]admission.Live
	edges   map[model.EdgeRef]int
	ids     map[string]int
	opened  int
}

func newCrowd(most int) *crowd {
	return &crowd{
		control: admission.NewControl(0, most), now: start, live: map[string]admission.Live{},
		edges: map[model.EdgeRef]int{}, ids: map[string]int{},
	}
}

// keeps is how many reverse tunnels an edge is configured to keep: usual ones, and lanes.
const keeps = 66

// open requests a reverse tunnel 5 ms after the previous one.
func (c *crowd) open(edge model.EdgeRef) admission.Reason {
	c.now = c.now.Add(5 * time.Millisecond)
	reason := c.control.Tunnel(c.now, admission.Attempt{
		Edge: edge, Tunnels: keeps, LiveOfEdge: c.edges[edge], LiveOfID: c.ids[edge.ID], LiveOfAll: len(c.live),
		Live: func(netip.AddrPort, netip.AddrPort) bool { return true },
	})
	if reason == admission.Admitted {
		c.opened++
		key := fmt.Sprint(c.opened)
		c.live[key] = admission.Live{Key: key, Edge: edge, Since: c.now}
		c.edges[edge]++
		c.ids[edge.ID]++
	}
	return reason
}

// closeExcess closes at most 100 reverse tunnels, as a gateway does every two seconds.
func (c *crowd) closeExcess() {
	c.now = c.now.Add(2 * time.Second)
	keys := c.control.Excess(slices.Collect(maps.Values(c.live)), func(string) admission.Limits {
		return c.control.TunnelLimits(keeps)
	})
	for _, key := range keys[:min(len(keys), 100)] {
		edge := c.live[key].Edge
		delete(c.live, key)
		c.edges[edge]--
		c.ids[edge.ID]--
	}
}

// attack has tunnel ids take all that they may: one after the other with edges that have as many as they may, and then
// in turn with any number of edges that have one.
func (c *crowd) attack(ids, edges int) {
	hostile := func(id int, node any) model.EdgeRef {
		return model.EdgeRef{Node: fmt.Sprint("edge-", node), ID: fmt.Sprint("hostile-", id)}
	}
	for id := range ids {
		for edge := range edges {
			for c.open(hostile(id, edge)) == admission.Admitted {
			}
		}
	}
	for opened := true; opened; {
		opened = false
		for id := range ids {
			if c.open(hostile(id, fmt.Sprint("one-", c.opened))) == admission.Admitted {
				opened = true
			}
		}
	}
}

// TestTheTunnelsOfAllEdgesAreBounded: tunnel ids of one owner take all that they may. Edges of others come later, one
// of each tunnel id. All are admitted, at once or when the next reverse tunnels were closed, and keep theirs. A tunnel
// id that had many before keeps its share.
func TestTheTunnelsOfAllEdgesAreBounded(t *testing.T) {
	for _, tc := range []struct{ most, hostile, edges, others, closings int }{
		{most: 12_000, hostile: 1, edges: 31, others: 1000},
		{most: 25_000, hostile: 3, edges: 31, others: 1000},
		{most: 5000, hostile: 40, others: 200, closings: 100},
		{most: 5000, hostile: 300, others: 200, closings: 200},
	} {
		t.Run(fmt.Sprintf("%d tunnel ids", tc.hostile), func(t *testing.T) {
			c := newCrowd(tc.most)
			for range keeps {
				c.open(model.EdgeRef{Node: "edge-1", ID: "large"})
			}
			c.attack(tc.hostile, tc.edges)
			closings, most := 0, len(c.live)
			for i := range tc.others {
				for c.open(model.EdgeRef{Node: "edge-1", ID: fmt.Sprint("other-", i)}) != admission.Admitted {
					if closings++; closings > tc.closings {
						t.Fatalf("beside %d reverse tunnels, the edge of tunnel id %d is not admitted", len(c.live), i)
					}
					c.closeExcess()
					c.attack(tc.hostile, tc.edges) // its edges dial again at once
				}
				most = max(most, len(c.live))
			}
			for range 3 {
				c.closeExcess()
			}
			for i := range tc.others {
				if n := c.ids[fmt.Sprint("other-", i)]; n != 1 {
					t.Fatalf("the edge of tunnel id %d has %d reverse tunnels", i, n)
				}
			}
			if n, of := c.ids["large"], c.ids["hostile-0"]; n < min(keeps, of/2-2) {
				t.Errorf("an earlier tunnel id has %d reverse tunnels, a hostile one %d", n, of)
			}
			if most > tc.most || most < tc.most/2 {
				t.Errorf("there were up to %d reverse tunnels of %d", most, tc.most)
			}
		})
	}
}

// TestAFullGatewayIsShared: honest tunnel ids that want more than there is get the same, and are not closed again.
func TestAFullGatewayIsShared(t *testing.T) {
	const most, ids, want = 1000, 180, 6
	c := newCrowd(most)
	for range want {
		for i := range ids {
			c.open(model.EdgeRef{Node: "edge-1", ID: fmt.Sprint("id-", i)})
		}
	}
	for range 10 {
		c.closeExcess()
	}
	if len(c.live) < most-2 || len(c.live) > most {
		t.Errorf("they have %d reverse tunnels", len(c.live))
	}
	for i := range ids {
		if n := c.ids[fmt.Sprint("id-", i)]; n < want-1 || n > want {
			t.Errorf("tunnel id %d has %d", i, n)
		}
	}
}

// TestTunnelsThatOpenCount also while they are not in the table yet.
func TestTunnelsThatOpenCount(t *testing.T) {
	const most = 1000
	c := admission.NewControl(0, most)
	for i := range 9 {
		reason := c.Tunnel(start, admission.Attempt{
			Edge: model.EdgeRef{Node: "edge-1", ID: fmt.Sprint("id-", i)}, Tunnels: keeps, LiveOfAll: most - 8,
			Live: func(netip.AddrPort, netip.AddrPort) bool { return false },
		})
		if want := i < 8; (reason == admission.Admitted) != want || !want && reason != admission.ByGateway {
			t.Errorf("beside %d that open, one more than %d is rejected by %q", i, most-8+i, reason)
		}
	}
}

// TestExcessOfAllEdges: one tunnel id has opened its reverse tunnels first, and has the largest share. Its newest ones
// go.
func TestExcessOfAllEdges(t *testing.T) {
	c := admission.NewControl(0, 1000)
	var all []admission.Live
	for i := range 2000 {
		edge := model.EdgeRef{Node: fmt.Sprint("edge-", i%30), ID: "hostile"}
		if i >= 1500 {
			edge = model.EdgeRef{Node: "edge-1", ID: fmt.Sprint("victim-", i)}
		}
		all = append(all, admission.Live{Key: fmt.Sprint(i), Edge: edge, Since: start.Add(time.Duration(i) * time.Second)})
	}
	// Of 500 for it, 400 stay, as edges with few may have four times as many as are left.
	keys := c.Excess(all, func(string) admission.Limits { return c.TunnelLimits(keeps) })
	if len(keys) != 1100 || keys[0] != "1499" || keys[1099] != "400" {
		t.Errorf("in excess are %d, %q", len(keys), keys)
	}
}

// TestExcessLeavesTheTunnelsOfEachEdge: of one tunnel id the edge with the most loses its newest ones, although they
// are older than those of the other edge.
func TestExcessLeavesTheTunnelsOfEachEdge(t *testing.T) {
	c := admission.NewControl(0, 300)
	var all []admission.Live
	for i := range 259 {
		edge := model.EdgeRef{Node: "edge-a", ID: "id"}
		if i >= 250 {
			edge.Node = "edge-b"
		}
		all = append(all, admission.Live{Key: fmt.Sprint(i), Edge: edge, Since: start.Add(time.Duration(i) * time.Second)})
	}
	keys := c.Excess(all, func(string) admission.Limits { return c.TunnelLimits(keeps) })
	if len(keys) != 59 || keys[0] != "249" || keys[58] != "191" {
		t.Errorf("in excess are %d, %q", len(keys), keys)
	}
}

// TestExcessLeavesATunnelToEachWorker: clients at a worker without one are not served, and lanes serve only further
// clients. The agent closes a surplus reverse tunnel so that its edge dials again, so the only one to a worker may be
// the newest.
func TestExcessLeavesATunnelToEachWorker(t *testing.T) {
	const each = 200
	c := admission.NewControl(0, 300)
	var all []admission.Live
	add := func(n int, worker string, lane bool) {
		for range n {
			at := time.Duration(len(all))
			all = append(all, admission.Live{
				Key: fmt.Sprint(len(all)), Edge: model.EdgeRef{Node: "edge-a", ID: "id"}, Worker: worker, Lane: lane,
				Since: start.Add(at * time.Second),
			})
		}
	}
	add(each/2, "worker_0", true)
	add(each, "worker_0", false)
	add(1, "worker_1", false)
	ended := map[string]bool{}
	for _, key := range c.Excess(all, func(string) admission.Limits { return c.TunnelLimits(2 * each) }) {
		ended[key] = true
	}
	usual := 0
	for _, one := range all {
		if !one.Lane && !ended[one.Key] {
			usual++
		}
	}
	if len(ended) == 0 || ended[fmt.Sprint(each/2+each)] || usual < 150 {
		t.Errorf("%d end, and %d usual ones are left", len(ended), usual)
	}
}

// TestManyEdgesOfOneTunnelIDForward: each has a connection to a gateway, and one more while it replaces it.
func TestManyEdgesOfOneTunnelIDForward(t *testing.T) {
	for edges, want := range map[int]int{0: 1024, 64: 1024, 1000: 2000, 5000: 10_000, 100_000: 10_000} {
		if got := admission.NewControl(edges, 0).StreamLimits(model.RoleEdge); got.Node != 128 || got.ID != want {
			t.Errorf("of %d edges: %v, want %d", edges, got, want)
		}
	}
}

func TestExpireRemovesTunnelsThatNeverOpened(t *testing.T) {
	g := newGateway(0)
	edge := model.EdgeRef{Node: "edge-a", ID: "id"}
	for range 8 {
		g.open(start, edge, 2)
	}
	clear(g.due)
	if reason := g.open(start.Add(time.Second), edge, 2); reason != admission.ByEdge {
		t.Errorf("a second later one more is refused by %q", reason)
	}
	g.control.Expire(start.Add(3 * time.Second))
	if reason := g.open(start.Add(3*time.Second), edge, 2); reason != admission.Admitted {
		t.Errorf("after they expired one more is refused by %q", reason)
	}
}
