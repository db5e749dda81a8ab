// Package view is the controller's side of reports. Its input is the changes that all xds-servers send; its output is
// the state of each tunnel's edges, gateways and booting machines, with whether it is complete. It does not use
// Kubernetes.
package view

import (
	"context"
	"fmt"
	"log/slog"
	"slices"
	"sync"
	"time"

	"google.golang.org/grpc"

	"github.com/fairlead/fairlead/internal/retry"
	"github.com/fairlead/fairlead/pkg/report"
	reportv1 "github.com/fairlead/fairlead/pkg/report/v1"
)

const (
	// resolveInterval is how soon a new xds-server is watched. While there is none, it is startInterval.
	resolveInterval, startInterval = 10 * time.Second, time.Second
	// resolveTime bounds one lookup.
	resolveTime = 5 * time.Second
	// maxServers bounds how many addresses of a wrong DNS answer are dialled.
	maxServers = 32
)

// Edge is one edge of a tunnel, or one apiserver. It has the report as received instead of fields of its own:
// pkg/controller maps it to the record, v1alpha1.EdgeStatus, from which everything else is read.
type Edge struct {
	Node     string
	Gateways map[string]int // tunnels by gateway
	// Without is, by gateway, on how many workers of its Envoy the edge has had no tunnel for some seconds, if there are
	// any.
	Without map[string]int
	// Connections are the connections by gateway that are not tunnels: of an apiserver to networks, or of an edge for the
	// machines of its network.
	Connections map[string]int
	// Last are the tunnels by gateway that is down, as it reported last, for report.Times.Keep.
	Last      map[string]int
	Connected bool      // its agent, to the control channel
	Since     time.Time // of Connected, by the clock of SetClock; zero: its agent has not reported
	// Report is the last one of its agent; nil: there is none. It is shared and must not be changed.
	Report *reportv1.EdgeReport
}

// Tunnels returns how many tunnels the edge has to gateways that report.
func (e *Edge) Tunnels() (sum int) {
	for _, count := range e.Gateways {
		sum += count
	}
	return sum
}

// Live is the state of one tunnel.
type Live struct {
	// Known is false while no xds-server is synced, or a gateway is silent: then nothing may be concluded from what is
	// absent.
	Known    bool
	Gateways []string // names of the gateways that report now, in order
	// Incomplete are the gateways that may have tunnels which they do not report, in order: their record of connections
	// has a gap.
	Incomplete []string
	Edges      []Edge // ordered by node
}

// View is the state that all xds-servers together have sent. It is safe for concurrent use.
type View struct {
	resolve func(ctx context.Context) ([]string, error)
	dial    func(address string) (*grpc.ClientConn, error)
	changed func(id string)
	booted  func(id string) // nil: no function is set
	log     *slog.Logger
	times   report.Times
	clock   func() time.Time // nil: no function is set

	watches sync.WaitGroup

	mu      sync.Mutex
	fleet   *fleet
	running map[string]bool // the servers that are being watched
}

// New returns a view that watches xds-servers: resolve returns their addresses, and dial returns a connection to one.
// changed is called with the id of each tunnel whose Live may have changed, or with an empty id if Known, Gateways or
// Incomplete, which all tunnels share, have changed. It must not block.
func New(resolve func(ctx context.Context) ([]string, error), dial func(address string) (*grpc.ClientConn, error),
	changed func(id string), log *slog.Logger,
) *View {
	return &View{
		resolve: resolve, dial: dial, changed: changed, log: log, times: report.DefaultTimes,
		fleet: newFleet(report.DefaultTimes), running: map[string]bool{},
	}
}

// SetTimes replaces report.DefaultTimes. It must be called before Run.
func (v *View) SetTimes(t report.Times) { v.times, v.fleet.times = t, t }

// SetClock sets the clock of all times that the view returns: Edge.Since and report.Boot.Received. The default is the
// clock of this process. It must be called before Run.
func (v *View) SetClock(now func() time.Time) { v.clock = now }

// outward converts a time of this process to the clock of SetClock. The age is what both agree on.
func (v *View) outward(at time.Time) time.Time {
	if v.clock == nil || at.IsZero() {
		return at
	}
	return v.clock().Add(-time.Since(at))
}

// Tunnel returns the state of a tunnel.
func (v *View) Tunnel(id string) Live {
	v.mu.Lock()
	defer v.mu.Unlock()
	live := v.fleet.tunnel(id)
	for i := range live.Edges {
		live.Edges[i].Since = v.outward(live.Edges[i].Since)
	}
	return live
}

// Age returns how old the oldest state is that the view has: for how long one of the xds-servers has not been followed;
// 0: all are.
func (v *View) Age() time.Duration {
	v.mu.Lock()
	defer v.mu.Unlock()
	return v.fleet.age(time.Now())
}

// Run watches until ctx ends, and then returns nil.
func (v *View) Run(ctx context.Context) error {
	ctx, cancel := context.WithCancel(ctx)
	defer v.watches.Wait()
	defer cancel()
	var reasons retry.Reasons
	var resolved time.Time
	ticker := time.NewTicker(v.times.Tick)
	defer ticker.Stop()
	for {
		if now := time.Now(); now.Sub(resolved) >= v.interval() {
			resolved = now
			if err := v.follow(ctx); err != nil && ctx.Err() == nil && reasons.New(err) {
				v.log.Warn("cannot resolve xds-servers, retrying", "error", err)
			}
		}
		v.change(func(f *fleet, now time.Time) { f.tick(now) })
		select {
		case <-ctx.Done():
			return nil
		case <-ticker.C:
		}
	}
}

func (v *View) interval() time.Duration {
	v.mu.Lock()
	defer v.mu.Unlock()
	if v.fleet.frozen() {
		return startInterval
	}
	return resolveInterval
}

// follow watches the servers that exist now. A server that is no longer in DNS is watched until its stream ends,
// because agents that are connected to it do not resolve it again either.
func (v *View) follow(ctx context.Context) error {
	bounded, cancel := context.WithTimeout(ctx, resolveTime)
	defer cancel()
	addresses, err := v.resolve(bounded)
	if err != nil {
		return fmt.Errorf("resolving xds-servers: %w", err)
	}
	slices.Sort(addresses)
	addresses = slices.Compact(addresses)
	addresses = addresses[:min(len(addresses), maxServers)]
	var added []string
	v.change(func(f *fleet, now time.Time) {
		f.list(addresses, now)
		for _, address := range addresses {
			if !v.running[address] {
				v.running[address] = true
				added = append(added, address)
			}
		}
	})
	for _, address := range added {
		v.watches.Go(func() { v.keep(ctx, address) })
	}
	return nil
}

// finished returns, after a stream has ended, whether the server is no longer in DNS; then it is not watched any more.
func (v *View) finished(address string) bool {
	v.mu.Lock()
	defer v.mu.Unlock()
	if s := v.fleet.servers[address]; s != nil && s.listed {
		return false
	}
	delete(v.running, address)
	return true
}

// keep watches one server until ctx ends, or the stream ends and the server is no longer in DNS.
func (v *View) keep(ctx context.Context, address string) {
	conn, err := v.dial(address)
	if err != nil {
		v.log.Error("cannot watch xds-server, retrying", "address", address, "error", err)
		v.forget(address)
		return
	}
	defer conn.Close()
	ctx, stop := context.WithCancel(ctx)
	defer stop()
	log := v.log.With("address", address)
	err = report.Keep(ctx, v.times.Reopen, log, func(ctx context.Context, patient bool) error {
		err := v.watch(ctx, conn, address, patient)
		v.change(func(f *fleet, now time.Time) { f.streamEnded(address, now) })
		if ctx.Err() == nil && v.finished(address) {
			stop()
		}
		return err
	})
	if err != nil {
		// A server and a controller receive a new CA at different times, and reject each other in between. So no rejection is
		// final.
		log.Warn("rejected by the xds-server, retrying", "error", err)
		v.forget(address)
	}
}

// forget lets the next lookup in DNS watch a server again.
func (v *View) forget(address string) {
	v.mu.Lock()
	defer v.mu.Unlock()
	delete(v.running, address)
}

// watch reads one stream to its end.
func (v *View) watch(ctx context.Context, conn *grpc.ClientConn, address string, patient bool) error {
	stream, err := report.Open(ctx, patient,
		func(ctx context.Context, options ...grpc.CallOption) (grpc.ServerStreamingClient[reportv1.Change], error) {
			return reportv1.NewReportClient(conn).Watch(ctx, &reportv1.WatchRequest{}, options...)
		})
	if err != nil {
		return err
	}
	for {
		change, err := stream.Recv()
		if err != nil {
			return err
		}
		v.change(func(f *fleet, now time.Time) { f.apply(address, change, now) })
	}
}

// change changes the state, and calls changed and booted for the tunnels that have changed.
func (v *View) change(do func(f *fleet, now time.Time)) {
	v.mu.Lock()
	do(v.fleet, time.Now())
	ids, booted := v.fleet.take(), v.fleet.takeBooted()
	v.mu.Unlock()
	for id := range ids {
		v.changed(id)
	}
	if v.booted == nil {
		return
	}
	for id := range booted {
		v.booted(id)
	}
}
