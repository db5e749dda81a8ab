package fleet

import (
	"context"
	"crypto/ecdsa"
	"crypto/x509"
	"net"
	"net/netip"
	"sync"
	"testing"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/fairlead/fairlead/pkg/certs"
	"github.com/fairlead/fairlead/test/lab"
	"github.com/fairlead/fairlead/test/lab/netns"
	"github.com/fairlead/fairlead/test/lab/proc"
	"github.com/fairlead/fairlead/test/synthetic"
	"github.com/fairlead/fairlead/test/world"
)

const (
	// xdsMemoryLimit is so low that an xds-server serves its minimum of control channels: cmd/xds-server/memory.go.
	xdsMemoryLimit, mostChannels = 224 << 20, 1000
	// first is how many control channels of another tunnel id are open before the overload.
	first = 20
	// joining is how many control channels open at the same time.
	joining = 64
)

// overloadXDSServer overloads the xds-server with control channels of the tunnel ids of greedy members.
func overloadXDSServer(t *testing.T, w *world.World, greedy []*world.Member, quiet *world.Member) {
	group, name := limit(t, w.XDSServers[0], "xds-server", xdsMemoryLimit)
	must(t, w.XDSServers[0].WaitReady(t.Context(), proc.StartTimeout, w.XDSServerReady))
	c := newChannels(t, w)
	before := c.open(t, first, quiet)
	if len(before) != first {
		t.Fatalf("%d of %d control channels are open before the overload", len(before), first)
	}
	var crowd []*synthetic.Control
	that(t, "an xds-server with twice the edges that it has memory for rejects the others", func(t *testing.T) {
		crowd = c.open(t, 2*mostChannels, greedy...)
		memory, err := group.Memory(name)
		must(t, err)
		measured("overload_channels", float64(alive(crowd)))
		measured("overload_xds_memory_mb", float64(memory.Highest>>20))
		if n := alive(crowd); n > mostChannels || n < mostChannels/2 {
			t.Errorf("%d control channels are open, want %d at most, and at least half as many", n, mostChannels)
		}
		if memory.Kills > 0 {
			t.Errorf("the kernel has killed %d processes", memory.Kills)
		}
	})
	that(t, "control channels of a tunnel id with few edges stay open, and it gets further ones", func(t *testing.T) {
		further := c.open(t, first, quiet)
		if a, b := alive(before), alive(further); a != first || b != first {
			t.Errorf("of each %d control channels %d from before the overload and %d from within it are open", first, a, b)
		}
	})
	that(t, "30 s after the overload a new workload cluster is reached", func(t *testing.T) {
		for _, one := range crowd {
			_ = one.Close()
		}
		began := time.Now()
		late := w.Member(t, "late", nil)
		w.Edge(t, lab.EdgeSpec{Name: "late"}, late)
		took := time.Since(began)
		measured("overload_xds_recovery_s", took.Seconds())
		if took > recovery {
			t.Errorf("it took %v", took)
		}
	})
}

// alive returns how many control channels are open.
func alive(all []*synthetic.Control) (n int) {
	for _, one := range all {
		if one.Open() {
			n++
		}
	}
	return n
}

// channels opens control channels at the xds-server, of edges with certificates of the installation's CA.
type channels struct {
	ca      *certs.CA
	key     *ecdsa.PrivateKey // of all edges
	fleet   *synthetic.Fleet
	network *netns.Namespace
	address string

	mu   sync.Mutex
	next int // number of the next edge
}

func newChannels(t *testing.T, w *world.World) *channels {
	t.Helper()
	ca, err := w.CA(t.Context())
	must(t, err)
	roots := x509.NewCertPool()
	roots.AppendCertsFromPEM(ca.CertPEM())
	fleet, err := synthetic.New(synthetic.Options{Domain: world.Domain, Roots: roots})
	must(t, err)
	t.Cleanup(func() { _ = fleet.Close() })
	key, err := certs.NewKey()
	must(t, err)
	return &channels{
		ca: ca, key: key, fleet: fleet, network: w.Network.Management,
		address: netns.HostPort(w.Network.ManagementAddress().String(), netns.XDSPort),
	}
}

// open opens n control channels of members in turn, and returns those that the xds-server has accepted.
func (c *channels) open(t *testing.T, n int, members ...*world.Member) (accepted []*synthetic.Control) {
	t.Helper()
	var ids []string
	for _, m := range members {
		tunnel, err := m.Tunnel(t.Context())
		must(t, err)
		ids = append(ids, tunnel.Spec.ID)
	}
	var group errgroup.Group
	group.SetLimit(joining)
	for i := range n {
		group.Go(func() error {
			one, rejection, err := c.one(t.Context(), ids[i%len(ids)])
			if err != nil || rejection != nil {
				return err
			}
			t.Cleanup(func() { _ = one.Close() })
			c.mu.Lock()
			defer c.mu.Unlock()
			accepted = append(accepted, one)
			return nil
		})
	}
	must(t, group.Wait())
	return accepted
}

// one opens the control channel of another edge of a tunnel id, which claims to come from an address of its own.
func (c *channels) one(ctx context.Context, id string) (one *synthetic.Control, rejection, err error) {
	ctx, cancel := context.WithTimeout(ctx, recovery)
	defer cancel()
	spec, err := synthetic.NewSpec(c.ca, c.key, world.Domain, id, time.Hour)
	if err != nil {
		return nil, nil, err
	}
	c.mu.Lock()
	c.next++
	from := netip.AddrFrom4([4]byte{10, 200, byte(c.next >> 8), byte(c.next)})
	c.mu.Unlock()
	one, rejection = c.fleet.Add(spec).Follow(
		ctx, net.TCPAddrFromAddrPort(netip.AddrPortFrom(from, 40_000)),
		func(ctx context.Context) (net.Conn, error) { return c.network.DialContext(ctx, "tcp", c.address) },
	)
	return one, rejection, nil
}
