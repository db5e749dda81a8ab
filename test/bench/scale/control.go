package scale

import (
	"context"
	"fmt"
	"net"
	"net/netip"
	"strconv"
	"sync"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/fairlead/fairlead/internal/retry"
	"github.com/fairlead/fairlead/test/synthetic"
)

// following is how many edges open their control channel at the same time.
const following = 64

// xdsServer is where the lab's xds-server listens.
var xdsServer = net.JoinHostPort("10.111.1.10", strconv.Itoa(xdsPort))

// control opens the control channels of as many edges as the sockets allow, with their resources and reports, because
// the xds-server stores some state for each. The edges connect to the xds-server directly: through the gateway each
// would take two sockets of its Envoy.
func (w *world) control(ctx context.Context, r *results, sockets int) error {
	edges := w.Fleet.Edges()
	edges = edges[:min(len(edges), sockets)]
	before, err := w.memoryOf("xds-server")
	if err != nil {
		return err
	}
	begin := time.Now()
	open, err := w.follow(ctx, edges)
	defer func() {
		for _, c := range open {
			_ = c.Close()
		}
	}()
	if err != nil {
		return fmt.Errorf("opening %d control channels, %d are open: %w", len(edges), len(open), err)
	}
	r.add("edges with a control channel", "", float64(len(open)))
	r.add("new control channels", "1/s", float64(len(open))/time.Since(begin).Seconds())
	if err := w.memory(r, "with control channels"); err != nil {
		return err
	}
	after, err := w.memoryOf("xds-server")
	if err != nil {
		return err
	}
	each := (after - before) / float64(len(open))
	r.of("xds-server", "memory of a control channel", "KB", each*1e3)
	// Some may have no control channel, because the process has too few sockets.
	r.of("xds-server", "memory if all had a control channel", "MB", before+each*float64(r.size))
	seconds := r.out.Rounds(20, 10)
	return w.usage(
		ctx, r, "a second with control channels", seconds, nil,
		func() error { return retry.Sleep(ctx, time.Duration(seconds)*time.Second) },
	)
}

// follow opens the control channels of edges, several at the same time, and returns those that are open. With an error
// too, the caller closes them.
func (w *world) follow(ctx context.Context, edges []*synthetic.Edge) ([]*synthetic.Control, error) {
	var (
		mu   sync.Mutex
		open []*synthetic.Control
	)
	group, bounded := errgroup.WithContext(ctx)
	group.SetLimit(following)
	for i, e := range edges {
		group.Go(func() error {
			ctx, cancel := context.WithTimeout(bounded, patience)
			defer cancel()
			c, err := e.Follow(ctx, source(i), func(ctx context.Context) (net.Conn, error) {
				return w.Network.Management.DialContext(ctx, "tcp", xdsServer)
			})
			if err != nil {
				return err
			}
			mu.Lock()
			defer mu.Unlock()
			open = append(open, c)
			return nil
		})
	}
	err := group.Wait()
	return open, err
}

// source returns a separate source address for the i-th edge, because an xds-server limits each address.
func source(i int) net.Addr {
	return net.TCPAddrFromAddrPort(netip.AddrPortFrom(netip.AddrFrom4([4]byte{10, 200, byte(i >> 8), byte(i)}), 40_000))
}
