package envoy_test

import (
	"bytes"
	"context"
	"fmt"
	"net"
	"os"
	"slices"
	"strconv"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	listenerv3 "github.com/envoyproxy/go-control-plane/envoy/config/listener/v3"
	reversetunnelv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/network/reverse_tunnel/v3"
	"google.golang.org/protobuf/types/known/anypb"
	"google.golang.org/protobuf/types/known/durationpb"

	"github.com/fairlead/fairlead/internal/envoytest"
	"github.com/fairlead/fairlead/pkg/envoy"
	"github.com/fairlead/fairlead/pkg/model"
)

const (
	// longestSilence is how long a tunnel may be without data. balancerIdle is a usual idle timeout of load balancers.
	longestSilence, balancerIdle = 30 * time.Second, 60 * time.Second
	// scale makes all of these times shorter in TestAnIdleTunnelSendsData.
	scale = 10
	// echo is what Envoy sends in a reverse tunnel before its first use, and what the other end returns.
	echo = "RPING"
)

// balancer is a load balancer between edges and a gateway. It counts only data as traffic, and closes connections that
// have none for a time.
type balancer struct {
	*countingListener
	to    string
	idle  time.Duration // after which it closes a connection; 0 means never
	delay time.Duration // of each direction

	open   atomic.Int64
	closed atomic.Int64  // connections without traffic
	pinged chan struct{} // receives when a ping passes; may be full

	mu      sync.Mutex
	silence map[string]time.Duration // the longest time without data, by direction
	conns   map[net.Conn]bool        // of edges
}

// newBalancer returns a balancer to the public listener of a gateway, and makes edges use it.
func newBalancer(t *testing.T, in *installation, idle, delay time.Duration) *balancer {
	t.Helper()
	b := &balancer{
		to: in.gateways[0].bind.Public.String(), idle: idle, delay: delay,
		pinged: make(chan struct{}, 1), silence: map[string]time.Duration{}, conns: map[net.Conn]bool{},
	}
	b.countingListener = newCountingListener(t, "tcp", "127.0.0.1:0", b.pass)
	in.Public = b.endpoint(t)
	return b
}

func (b *balancer) pass(from net.Conn) {
	defer from.Close()
	_ = from.(*net.TCPConn).SetKeepAlive(false) // only edges and gateways send probes
	to, err := net.DialTimeout("tcp", b.to, time.Second)
	if err != nil {
		return
	}
	defer to.Close()
	b.open.Add(1)
	defer b.open.Add(-1)
	b.hold(from, true)
	defer b.hold(from, false)
	traffic := func() {}
	if b.idle > 0 {
		timer := time.AfterFunc(b.idle, func() {
			b.closed.Add(1)
			_ = from.Close()
			_ = to.Close()
		})
		defer timer.Stop()
		traffic = func() { timer.Reset(b.idle) }
	}
	go b.forward(to, from, "edge to gateway", traffic)
	b.forward(from, to, "gateway to edge", traffic)
}

// forward forwards one direction until it ends, and then closes both connections.
func (b *balancer) forward(to, from net.Conn, direction string, traffic func()) {
	defer to.Close()
	defer from.Close()
	type chunk struct {
		data []byte
		at   time.Time
	}
	delayed := make(chan chunk, 1024)
	defer close(delayed)
	go func() {
		for c := range delayed {
			time.Sleep(time.Until(c.at.Add(b.delay)))
			if _, err := to.Write(c.data); err != nil {
				_ = to.Close()
			}
		}
	}()
	buffer, last := make([]byte, 64<<10), time.Now()
	for {
		n, err := from.Read(buffer)
		if err != nil {
			return
		}
		traffic()
		b.heard(direction, time.Since(last), string(buffer[:n]))
		last = time.Now()
		delayed <- chunk{bytes.Clone(buffer[:n]), last}
	}
}

func (b *balancer) heard(direction string, silent time.Duration, data string) {
	if direction == "gateway to edge" && data == echo {
		select {
		case b.pinged <- struct{}{}:
		default:
		}
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	b.silence[direction] = max(b.silence[direction], silent)
}

func (b *balancer) hold(conn net.Conn, held bool) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if held {
		b.conns[conn] = true
		return
	}
	delete(b.conns, conn)
}

// renew closes all connections, and waits until edges have dialled as many again.
func (b *balancer) renew(t *testing.T) {
	t.Helper()
	want := b.count.Load() + b.open.Load()
	b.mu.Lock()
	for conn := range b.conns {
		_ = conn.Close()
	}
	b.mu.Unlock()
	envoytest.Eventually(t, "the tunnels are dialled again", func() error {
		if n := b.count.Load(); n < want {
			return fmt.Errorf("%d are missing", want-n)
		}
		return nil
	})
}

// forget starts the measurement of silences anew.
func (b *balancer) forget() {
	b.mu.Lock()
	defer b.mu.Unlock()
	clear(b.silence)
}

// withPings returns the listeners of a gateway with other intervals between the pings of unused reverse tunnels.
func withPings(
	t *testing.T, listeners []*listenerv3.Listener, change func(time.Duration) time.Duration,
) []*listenerv3.Listener {
	t.Helper()
	changed := 0
	for _, l := range listeners {
		for _, chain := range l.FilterChains {
			for _, f := range chain.Filters {
				tunnel := &reversetunnelv3.ReverseTunnel{}
				if !f.GetTypedConfig().MessageIs(tunnel) {
					continue
				}
				if err := f.GetTypedConfig().UnmarshalTo(tunnel); err != nil {
					t.Fatal(err)
				}
				tunnel.PingInterval = durationpb.New(change(tunnel.GetPingInterval().AsDuration()))
				config, err := anypb.New(tunnel)
				if err != nil {
					t.Fatal(err)
				}
				f.ConfigType = &listenerv3.Filter_TypedConfig{TypedConfig: config}
				changed++
			}
		}
	}
	if changed != 1 {
		t.Fatalf("%d filters of reverse tunnels, want 1", changed)
	}
	return listeners
}

// startEdges starts the edges of all workload clusters in one Envoy, and waits for their reverse tunnels.
func (in *installation) startEdges(t *testing.T, b *balancer) {
	t.Helper()
	config, subjects := envoy.EdgeBootstrap(envoy.BootstrapConfig{}), []model.Subject(nil)
	for _, wc := range in.clusters {
		s := model.Subject{Role: model.RoleEdge, Node: model.NewNodeName(), ID: wc.ID}
		subjects = append(subjects, s)
		config = envoy.Static(
			config, envoy.EdgeListeners(in.Installation, wc, s.Node, envoy.EdgeDial{}),
			envoy.EdgeClusters(in.Installation, wc, s.Node, envoy.EdgeDial{}),
		)
	}
	dir := envoytest.Dir(t)
	in.serveAgent(t, dir, nil, subjects...)
	envoytest.Start(t, dir, marshal(t, config), "--component-log-level", envoy.ComponentLogLevel)
	want := int64(2 * len(in.clusters) * len(in.gateways))
	envoytest.Eventually(t, "all tunnels are there", func() error {
		if n := b.open.Load(); n != want || b.count.Load() < want {
			return fmt.Errorf("%d of %d are", n, want)
		}
		return nil
	})
}

// idleClusters returns workload clusters of one apiserver.
func idleClusters(t *testing.T, n int, workload authority) []model.WorkloadCluster {
	t.Helper()
	api := newAPIServer(t, "api", workload, "*.prod."+string(domain))
	at := endpoint(t, api.Listener.Addr().String())
	var all []model.WorkloadCluster
	for i := range n {
		all = append(all, cluster(t, "c"+strconv.Itoa(i), at))
	}
	return all
}

// TestAnIdleTunnelSendsData has a load balancer that closes connections without data. All times are a tenth of the real
// ones, and so is the interval of the generated configuration.
func TestAnIdleTunnelSendsData(t *testing.T) {
	workload := newAuthority(t)
	in := newInstallation(t, 1, idleClusters(t, 3, workload)...)
	in.workload = workload
	b := newBalancer(t, in, balancerIdle/scale, 0)
	g := in.gateways[0]
	g.agent.listen(t, withPings(t, envoy.GatewayListeners(in.Installation, g.name, g.bind, model.Denied{}),
		func(d time.Duration) time.Duration { return d / scale }))
	in.startEdges(t, b)
	used, unused := in.clusters[0], in.clusters[1]
	works(t, in.getBySNI, g, used.Hostname, "api "+used.Hostname)
	tunnels, dialled := b.open.Load(), b.count.Load()

	b.forget()
	time.Sleep(3 * balancerIdle / scale)
	if b.closed.Load() > 0 || b.open.Load() != tunnels || b.count.Load() != dialled {
		t.Errorf("of %d tunnels, the balancer closed %d, and %d are open", tunnels, b.closed.Load(), b.open.Load())
	}
	b.mu.Lock()
	for _, direction := range []string{"edge to gateway", "gateway to edge"} {
		if got := b.silence[direction]; got == 0 || got > longestSilence/scale {
			t.Errorf("%s: a tunnel was silent for %s, want some time up to %s", direction, got, longestSilence/scale)
		}
	}
	b.mu.Unlock()
	for _, get := range []func(context.Context, *gateway, string) (string, error){in.getBySNI, in.getByConnect} {
		if _, err := get(t.Context(), g, unused.Hostname); err != nil {
			t.Errorf("first use: %v", err)
		}
	}
}

// TestFirstUses measures the first use of reverse tunnels that were idle for longer than a load balancer permits, over
// round trips of 50 and 200 ms. At any time none may fail. The other parts only report: uses without any pings, for
// comparison, and uses while a ping is on its way, with pings every 2 s. It runs only if FIRST_USES is the number of
// uses; 500 take 17 minutes, and need an idle machine.
func TestFirstUses(t *testing.T) {
	uses, err := strconv.Atoi(os.Getenv("FIRST_USES"))
	if err != nil {
		t.Skip("FIRST_USES is not a number")
	}
	for _, roundTrip := range []time.Duration{50 * time.Millisecond, 200 * time.Millisecond} {
		t.Run(fmt.Sprintf("at any time, %s", roundTrip), func(t *testing.T) {
			t.Parallel()
			f := newFirstUses(t, roundTrip, nil)
			f.rounds(t, uses, func() {
				time.Sleep(balancerIdle + balancerIdle/10)
				f.spread(t, f.in.clusters, longestSilence)
			})
			if len(f.failed) > 0 {
				t.Errorf("want none failed: %v", f.failed)
			}
		})
		t.Run(fmt.Sprintf("without pings, %s", roundTrip), func(t *testing.T) {
			t.Parallel()
			f := newFirstUses(t, roundTrip, func(time.Duration) time.Duration { return time.Hour })
			f.rounds(t, uses, func() { f.spread(t, f.in.clusters, longestSilence) })
		})
		t.Run(fmt.Sprintf("during a ping, %s", roundTrip), func(t *testing.T) {
			t.Parallel()
			const atOnce = 5
			f := newFirstUses(t, roundTrip, func(time.Duration) time.Duration { return 2 * time.Second })
			f.rounds(t, uses, func() {
				for group := range slices.Chunk(f.in.clusters, atOnce) {
					time.Sleep(time.Second) // until the answers to the last pings have arrived
					select {
					case <-f.balancer.pinged:
					default:
					}
					<-f.balancer.pinged
					f.spread(t, group, roundTrip)
				}
			})
		})
	}
}

// firstUses are workload clusters with two unused reverse tunnels each.
type firstUses struct {
	in       *installation
	balancer *balancer
	replaced int64 // reverse tunnels that were dialled again

	mu     sync.Mutex
	failed []error
	took   []time.Duration
}

func newFirstUses(t *testing.T, roundTrip time.Duration, pings func(time.Duration) time.Duration) *firstUses {
	t.Helper()
	const clusters = 50 // more take too long to start on a busy machine
	workload := newAuthority(t)
	in := newInstallation(t, 1, idleClusters(t, clusters, workload)...)
	in.workload = workload
	f := &firstUses{in: in, balancer: newBalancer(t, in, balancerIdle, roundTrip/2)}
	if g := in.gateways[0]; pings != nil {
		listeners := envoy.GatewayListeners(in.Installation, g.name, g.bind, model.Denied{})
		g.agent.listen(t, withPings(t, listeners, pings))
	}
	in.startEdges(t, f.balancer)
	return f
}

// rounds makes first uses until there were enough, with new tunnels for each round, and logs their figures. It fails
// the test if the balancer has closed a tunnel.
func (f *firstUses) rounds(t *testing.T, uses int, round func()) {
	t.Helper()
	for len(f.took) < uses {
		before := f.balancer.count.Load()
		round()
		time.Sleep(2 * time.Second) // until broken tunnels are replaced
		f.replaced += f.balancer.count.Load() - before
		f.balancer.renew(t)
	}
	slices.Sort(f.took)
	longest := f.took[len(f.took)-1]
	t.Logf("%d first uses: %d failed, median %s, longest %s; %d tunnels replaced, %d closed by the balancer", len(f.took),
		len(f.failed), f.took[len(f.took)/2], longest, f.replaced, f.balancer.closed.Load())
	if f.balancer.closed.Load() > 0 {
		t.Error("want none closed")
	}
}

// spread uses the tunnel of each workload cluster once, at times that are spread evenly over a span.
func (f *firstUses) spread(t *testing.T, clusters []model.WorkloadCluster, span time.Duration) {
	t.Helper()
	var done sync.WaitGroup
	begin := time.Now()
	for i, wc := range clusters {
		time.Sleep(time.Until(begin.Add(span * time.Duration(i) / time.Duration(len(clusters)))))
		get := f.in.getBySNI
		if i%2 == 1 {
			get = f.in.getByConnect
		}
		done.Go(func() {
			start := time.Now()
			_, err := get(t.Context(), f.in.gateways[0], wc.Hostname)
			f.mu.Lock()
			defer f.mu.Unlock()
			f.took = append(f.took, time.Since(start))
			if err != nil {
				f.failed = append(f.failed, err)
			}
		})
	}
	done.Wait()
}
