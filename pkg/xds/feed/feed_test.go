package feed

import (
	"fmt"
	"maps"
	"math/rand/v2"
	"testing"

	clusterv3 "github.com/envoyproxy/go-control-plane/envoy/config/cluster/v3"
	discoveryv3 "github.com/envoyproxy/go-control-plane/envoy/service/discovery/v3"
	"github.com/envoyproxy/go-control-plane/pkg/cache/types"
	resourcev3 "github.com/envoyproxy/go-control-plane/pkg/resource/v3"

	"github.com/fairlead/fairlead/pkg/deltaxds"
)

// client is a stream that sends each answer at once.
type client struct {
	feed   *Feed
	reader *Reader
	state  deltaxds.Stream
	nonce  string
	has    map[string]string // versions by name
	got    int               // resources, removed ones too
}

func newClient(f *Feed, has map[string]string) *client {
	c := &client{feed: f, reader: NewReader(false, nil), state: deltaxds.NewStream(1, 0), has: maps.Clone(has)}
	if c.has == nil {
		c.has = map[string]string{}
	}
	r := &discoveryv3.DeltaDiscoveryRequest{InitialResourceVersions: has}
	c.state.Request(0, r, deltaxds.ClaimsOf(r))
	return c
}

// ask answers the last response.
func (c *client) ask() {
	c.state.Request(0, &discoveryv3.DeltaDiscoveryRequest{ResponseNonce: c.nonce}, nil)
}

// take receives a response if there is one, and reports whether there was one.
func (c *client) take(t testing.TB) bool {
	t.Helper()
	c.state.Changed(0)
	_, whole, due := c.state.Next()
	if !due {
		return false
	}
	reading := c.feed.Read(c.reader, whole)
	message, rest := c.state.Respond(0, reading.Offer())
	if rest {
		t.Fatal("a response was not complete")
	}
	c.feed.Keep(c.reader, reading)
	if message == nil {
		return false
	}
	c.nonce = message.GetNonce()
	for _, r := range message.GetResources() {
		c.has[r.GetName()] = r.GetVersion()
	}
	for _, name := range message.GetRemovedResources() {
		if _, had := c.has[name]; !had {
			t.Errorf("%s is removed, which was not there", name)
		}
		delete(c.has, name)
	}
	c.got += len(message.GetResources()) + len(message.GetRemovedResources())
	return true
}

func (f *Feed) versions() map[string]string {
	all := map[string]string{}
	for name, r := range f.resources {
		all[name] = r.Version()
	}
	return all
}

func cluster(name string, version int) types.Resource {
	return &clusterv3.Cluster{Name: name, AltStatName: fmt.Sprint(version)}
}

// TestFeed opens streams, has them answer or wait, and closes them while resources change at random. A stream that has
// received every response has all resources.
func TestFeed(t *testing.T) {
	random := rand.New(rand.NewPCG(1, 2))
	f := New(resourcev3.ClusterType)
	var clients []*client
	for range 20_000 {
		switch n := random.IntN(100); {
		case n < 3 && len(clients) < 5:
			var has map[string]string
			if len(clients) > 0 {
				has = clients[0].has // it was connected to another server before
			}
			clients = append(clients, newClient(f, has))
		case n < 5 && len(clients) > 0:
			clients = clients[1:]
		case n < 60:
			set, gone := map[string]types.Resource{}, []string{}
			for range 1 + random.IntN(3) {
				if name := fmt.Sprintf("c%d", random.IntN(30)); random.IntN(3) == 0 {
					gone = append(gone, name)
				} else {
					set[name] = cluster(name, random.IntN(4))
				}
			}
			if err := f.Update(set, gone); err != nil {
				t.Fatal(err)
			}
		case len(clients) > 0:
			if c := clients[random.IntN(len(clients))]; c.take(t) {
				c.ask()
			}
		}
	}
	for _, c := range clients {
		for c.take(t) {
			c.ask()
		}
		if !maps.Equal(c.has, f.versions()) {
			t.Errorf("a stream has %v, there is %v", c.has, f.versions())
		}
	}
	if len(clients) == 0 || len(f.resources) == 0 {
		t.Fatalf("%d streams, %d resources at the end: nothing was compared", len(clients), len(f.resources))
	}
}

// TestASlowStreamReceivesTheLatestVersions misses more changes than a Feed records.
func TestASlowStreamReceivesTheLatestVersions(t *testing.T) {
	f := New(resourcev3.ClusterType)
	c := newClient(f, nil)
	c.take(t) // the first response, which is empty
	for i := range 3 * maxChanges {
		name := fmt.Sprintf("c%d", i%10)
		if err := f.Update(map[string]types.Resource{name: cluster(name, i)}, nil); err != nil {
			t.Fatal(err)
		}
	}
	if c.ask(); !c.take(t) || !maps.Equal(c.has, f.versions()) {
		t.Errorf("it has %v, there is %v", c.has, f.versions())
	}
	if len(f.changed) > 2*maxChanges || c.got != 10 {
		t.Errorf("%d changes are remembered, %d resources were sent", len(f.changed), c.got)
	}
}

// TestAChangeCostsTheSameAmongMany counts the allocations of a change and its ACK: they do not depend on the number of
// other resources.
func TestAChangeCostsTheSameAmongMany(t *testing.T) {
	cost := func(size int) float64 {
		f := New(resourcev3.ClusterType)
		all := map[string]types.Resource{}
		for i := range size {
			name := fmt.Sprintf("c%d", i)
			all[name] = cluster(name, 0)
		}
		if err := f.Update(all, nil); err != nil {
			t.Fatal(err)
		}
		c := newClient(f, nil)
		c.take(t)
		c.ask()
		version := 0
		return testing.AllocsPerRun(100, func() {
			version++
			if err := f.Update(map[string]types.Resource{"c1": cluster("c1", version)}, nil); err != nil {
				t.Fatal(err)
			}
			if !c.take(t) {
				t.Fatal("the stream was not told")
			}
			c.ask()
		})
	}
	if few, many := cost(10), cost(10_000); many > 2*few {
		t.Errorf("a change among 10 allocates %.0f times, among 10,000 %.0f times", few, many)
	}
}

// BenchmarkChange measures one change among 10,000, with the ACK of one gateway.
func BenchmarkChange(b *testing.B) {
	f := New(resourcev3.ClusterType)
	all := map[string]types.Resource{}
	for i := range 10_000 {
		name := fmt.Sprintf("c%d", i)
		all[name] = cluster(name, 0)
	}
	if err := f.Update(all, nil); err != nil {
		b.Fatal(err)
	}
	c := newClient(f, nil)
	c.take(b)
	c.ask()
	version := 0
	for b.Loop() {
		version++
		_ = f.Update(map[string]types.Resource{"c1": cluster("c1", version)}, nil)
		c.take(b)
		c.ask()
	}
}

// TestAReaderNeverReceivesWhatItHides covers an agent that was replaced by an older one, too: it still has what the
// newer one received.
func TestAReaderNeverReceivesWhatItHides(t *testing.T) {
	f := New(resourcev3.ClusterType)
	set := func(names ...string) {
		all := map[string]types.Resource{}
		for _, name := range names {
			all[name] = &clusterv3.Cluster{Name: name, AltStatName: fmt.Sprint(f.Last())}
		}
		if err := f.Update(all, nil); err != nil {
			t.Fatal(err)
		}
	}
	set("a", "n/b")
	c := newClient(f, map[string]string{"n/b": "1"})
	c.reader = NewReader(false, func(name string) bool { return name == "n/b" })
	if !c.take(t) || len(c.has) != 1 || c.has["a"] == "" {
		t.Errorf("at first it has %v", c.has)
	}
	c.ask()
	set("n/b")
	if c.take(t) {
		t.Errorf("then it received something: %v", c.has)
	}
	set("a", "n/b")
	if !c.take(t) || len(c.has) != 1 || c.got != 3 {
		t.Errorf("at last it has %v, and received %d", c.has, c.got)
	}
}
