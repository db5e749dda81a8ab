package admission_test

import (
	"fmt"
	"net/netip"
	"testing"
	"time"

	"github.com/fairlead/fairlead/pkg/admission"
	"github.com/fairlead/fairlead/pkg/model"
)

var start = time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)

// dialler is a source that dials at a rate.
type dialler struct {
	from  netip.Addr
	every time.Duration
	kind  admission.Kind
	next  time.Time

	admitted, rejected int
	last               admission.Reason
}

func dials(from string, rate float64) *dialler {
	return &dialler{from: netip.MustParseAddr(from), every: time.Duration(float64(time.Second) / rate), next: start}
}

// run simulates sources that dial for a time.
func run(c *admission.Control, d time.Duration, all ...*dialler) {
	for now := start; now.Before(start.Add(d)); now = now.Add(2 * time.Millisecond) {
		for _, s := range all {
			for !s.next.After(now) {
				s.next = s.next.Add(s.every)
				if reason := c.Connection(now, s.from, s.kind); reason == admission.Admitted {
					s.admitted++
				} else {
					s.rejected++
					s.last = reason
				}
			}
		}
	}
}

// know makes a source known by a number of edges with two reverse tunnels each.
func know(c *admission.Control, from string, edges int) {
	for i := range edges {
		c.Note(start, netip.MustParseAddr(from), model.EdgeRef{Node: fmt.Sprint("edge-", from, "-", i), ID: "id"}, 2)
	}
}

// TestAFloodOfOneSourceDoesNotBlockOtherSources sends a hundred times the quota from one source without a certificate.
func TestAFloodOfOneSourceDoesNotBlockOtherSources(t *testing.T) {
	c := admission.NewControl(0, 0)
	know(c, "192.0.2.1", 1)
	flood, edge, unknown := dials("198.51.100.1", 1000), dials("192.0.2.1", 5), dials("203.0.113.1", 5)
	run(c, 30*time.Second, flood, edge, unknown)
	if edge.rejected+unknown.rejected > 0 {
		t.Errorf("edges of a known source: %d refused; of an unknown one: %d refused", edge.rejected, unknown.rejected)
	}
	if flood.admitted > 200+31*10 || flood.last != admission.BySource {
		t.Errorf("%d connections of the flood were admitted, the last was refused by %q", flood.admitted, flood.last)
	}
}

// TestManySourcesUseUpTheirHalfOnly floods from so many sources that their quotas together exceed the capacity.
func TestManySourcesUseUpTheirHalfOnly(t *testing.T) {
	c := admission.NewControl(0, 0)
	c.SetRate(1000)
	know(c, "192.0.2.1", 300)
	site := dials("192.0.2.1", 490)
	all := []*dialler{site}
	for i := range 200 {
		all = append(all, dials(fmt.Sprintf("198.51.100.%d", i), 100))
	}
	run(c, 10*time.Second, all...)
	if site.rejected > 0 {
		t.Errorf("%d of %d connections of a known source were refused", site.rejected, site.rejected+site.admitted)
	}
	strangers := 0
	for _, s := range all[1:] {
		strangers += s.admitted
	}
	if strangers > 500*11 || strangers < 400*10 {
		t.Errorf("unknown sources got %d connections in 10 s, half of the capacity is 5000", strangers)
	}
}

// TestOneKnownSourceUsesCapacityThatOthersLeave tests a site of 9,000 edges behind one address.
func TestOneKnownSourceUsesCapacityThatOthersLeave(t *testing.T) {
	c := admission.NewControl(0, 0)
	c.SetRate(1000)
	know(c, "192.0.2.1", 9000)
	site := dials("192.0.2.1", 3000)
	run(c, 10*time.Second, site, dials("198.51.100.1", 1000))
	if site.admitted < 9500 {
		t.Errorf("a known source got %d connections in 10 s, the capacity is 10000", site.admitted)
	}
}

// TestKnownSourcesShareTheirHalf tests a known source that dials much more than the others.
func TestKnownSourcesShareTheirHalf(t *testing.T) {
	c := admission.NewControl(0, 0)
	c.SetRate(100)
	know(c, "192.0.2.1", 1000)
	know(c, "192.0.2.2", 1)
	know(c, "192.0.2.3", 1)
	noisy, quiet, other := dials("192.0.2.1", 3000), dials("192.0.2.2", 5), dials("192.0.2.3", 5)
	run(c, 20*time.Second, noisy, quiet, other)
	if quiet.rejected+other.rejected > 0 {
		t.Errorf("%d and %d connections of quiet sources were refused", quiet.rejected, other.rejected)
	}
}

// TestOneEdgeEarnsNoLargeQuota tests a tenant with one valid edge that floods from its source.
func TestOneEdgeEarnsNoLargeQuota(t *testing.T) {
	c := admission.NewControl(0, 0)
	know(c, "192.0.2.1", 1)
	tenant := dials("192.0.2.1", 3000)
	run(c, 10*time.Second, tenant)
	if tenant.admitted > 300+10*20 {
		t.Errorf("a source with one edge got %d connections in 10 s", tenant.admitted)
	}
	// Dialling from many addresses does not help either: an edge makes only a few of them known.
	for i := range 1000 {
		c.Note(start, netip.MustParseAddr(fmt.Sprintf("2001:db8:0:%x::1", i)), model.EdgeRef{Node: "edge", ID: "id"}, 2)
	}
	if n := c.Known(); n > 1+8 {
		t.Errorf("one edge made %d sources known", n)
	}
}

func TestSources(t *testing.T) {
	c := admission.NewControl(0, 0)
	var all []*dialler
	for i := range 64 { // /64s of one /48
		all = append(all, dials(fmt.Sprintf("2001:db8:1:%x::1", i), 50))
	}
	run(c, 10*time.Second, all...)
	sum := 0
	for _, s := range all {
		sum += s.admitted
	}
	if sum > 4*(200+11*10) {
		t.Errorf("a /48 got %d connections", sum)
	}
	if reason := c.Connection(start.Add(10*time.Second), netip.MustParseAddr("2001:db8:2::1"),
		admission.Terminated); reason != admission.Admitted {
		t.Errorf("another /48 is refused by %q", reason)
	}
	if a, b := admission.Source(netip.MustParseAddr("::ffff:192.0.2.1")), admission.Source(netip.MustParseAddr(
		"192.0.2.1")); a != b {
		t.Errorf("%s and %s are two sources", a, b)
	}
}

func TestAKnownSourceExpiresAfterADay(t *testing.T) {
	c := admission.NewControl(0, 0)
	from := netip.MustParseAddr("192.0.2.1")
	c.Note(start, from, model.EdgeRef{Node: "edge", ID: "id"}, 2)
	if c.Weight(start.Add(23*time.Hour), admission.Source(from)) == 0 {
		t.Error("it is forgotten after 23 h")
	}
	if c.Weight(start.Add(25*time.Hour), admission.Source(from)) != 0 || c.Known() != 0 {
		t.Error("it is known after 25 h")
	}
}

func TestKnownSourcesSurviveARestart(t *testing.T) {
	c := admission.NewControl(0, 0)
	know(c, "192.0.2.1", 3)
	know(c, "2001:db8::1", 1)
	data, changed, err := c.Save()
	if err != nil || !changed {
		t.Fatalf("changed %t, %v", changed, err)
	}
	if _, changed, _ := c.Save(); changed {
		t.Error("it changed by itself")
	}
	next := admission.NewControl(0, 0)
	if err := next.Restore(start.Add(time.Hour), data); err != nil {
		t.Fatal(err)
	}
	for _, from := range []string{"192.0.2.1", "2001:db8::1"} {
		source := admission.Source(netip.MustParseAddr(from))
		if a, b := c.Weight(start, source), next.Weight(start, source); a != b || a == 0 {
			t.Errorf("%s: weight %d became %d", from, a, b)
		}
	}
	if err := next.Restore(start.Add(48*time.Hour), data); err != nil || next.Known() != 2 {
		t.Errorf("an old file: %v, %d are known", err, next.Known())
	}
	if err := next.Restore(start, []byte("{")); err == nil {
		t.Error("a file that is not JSON gives no error")
	}
}

func TestMemoryIsBounded(t *testing.T) {
	c := admission.NewControl(0, 0)
	for i := range 70_000 {
		a := netip.AddrFrom4([4]byte{10, byte(i >> 16), byte(i >> 8), byte(i)})
		c.Connection(start, a, admission.Terminated)
		c.Note(start, a, model.EdgeRef{Node: fmt.Sprint(i), ID: "id"}, 2)
	}
	if n := c.Known(); n > 1<<16 {
		t.Errorf("%d sources are known", n)
	}
	if n := c.Sources(); n > 1<<16 {
		t.Errorf("%d sources have a bucket", n)
	}
}
