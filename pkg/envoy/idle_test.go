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
	// scale is how much shorter all of these times are in tests, and the intervals between pings too.
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
	conns   map[net.Conn]net.Conn    // from edges, each with its connection to the gateway
}

// newBalancer returns a balancer to the public listener of the first gateway.
func newBalancer(t *testing.T, in *installation, idle, delay time.Duration) *balancer {
	t.Helper()
	b := &balancer{
		to: in.gateways[0].bind.Public.String(), idle: idle, delay: delay,
		pinged: make(chan struct{}, 1), silence: map[string]time.Duration{}, conns: map[net.Conn]net.Conn{},
	}
	b.countingListener = newCountingListener(t, "tcp", "127.0.0.1:0", b.pass)
	return b
}

func (b *balancer) pass(from net.Conn) {
	defer from.Close()
	to, err := net.DialTimeout("tcp", b.to, time.Second)
	if err != nil {
		return
	}
	defer to.Close()
	for _, conn := range []net.Conn{from, to} {
		_ = conn.(*net.TCPConn).SetKeepAlive(false) // only edges and gateways send probes
	}
	b.open.Add(1)
	defer b.open.Add(-1)
	b.hold(from, to)
	defer b.release(from)
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

func (b *balancer) hold(from, to net.Conn) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.conns[from] = to
}

func (b *balancer) release(from net.Conn) {
	b.mu.Lock()
	defer b.mu.Unlock()
	delete(b.conns, from)
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

// startEdges starts the edges of all workload clusters in one Envoy, each with the next balancer in turn, and waits for
// their reverse tunnels.
func (in *installation) startEdges(t *testing.T, balancers ...*balancer) {
	t.Helper()
	config, subjects := envoy.EdgeBootstrap(envoy.BootstrapConfig{}), []model.Subject(nil)
	for i, wc := range in.clusters {
		s := model.Subject{Role: model.RoleEdge, Node: model.NewNodeName(), ID: wc.ID}
		subjects = append(subjects, s)
		dial := envoy.EdgeDial{Gateways: []model.Endpoint{balancers[i%len(balancers)].endpoint(t)}}
		config = envoy.Static(
			config, envoy.EdgeListeners(in.Installation, wc, s.Node, dial),
			envoy.EdgeClusters(in.Installation, wc, s.Node, dial),
		)
	}
	dir := envoytest.Dir(t)
	in.serveAgent(t, dir, nil, subjects...)
	envoytest.Start(t, dir, marshal(t, config), "--component-log-level", envoy.ComponentLogLevel)
	want := int64(2 * len(in.clusters) * len(in.gateways))
	envoytest.Eventually(t, "all tunnels are there", func() error {
		dialled, open := int64(0), int64(0)
		for _, b := range balancers {
			dialled, open = dialled+b.count.Load(), open+b.open.Load()
		}
		if open != want || dialled < want {
			return fmt.Errorf("%d of %d are", open, want)
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
// round trips of 50 and 200 ms: at any time, and while a ping is on its way. None may fail. Uses without any pings are
// for comparison. FIRST_USES is the number of uses of each kind; 500 take 20 minutes. Without it there are few, and the
// times are a tenth of the real ones.
func TestFirstUses(t *testing.T) {
	t.Parallel()
	uses, shorter := 20, time.Duration(scale)
	if n, err := strconv.Atoi(os.Getenv("FIRST_USES")); err == nil {
		uses, shorter = n, 1
	}
	faster := func(d time.Duration) time.Duration { return d / shorter }
	for _, roundTrip := range []time.Duration{50 * time.Millisecond, 200 * time.Millisecond} {
		t.Run(fmt.Sprintf("at any time, %s", roundTrip), func(t *testing.T) {
			t.Parallel()
			f := newFirstUses(t, uses, roundTrip, faster(balancerIdle), faster)
			f.rounds(t, uses, func() {
				time.Sleep(faster(balancerIdle + balancerIdle/10))
				f.spread(t, faster(longestSilence))
			})
		})
		t.Run(fmt.Sprintf("during a ping, %s", roundTrip), func(t *testing.T) {
			t.Parallel()
			f := newFirstUses(t, uses, roundTrip, faster(balancerIdle), func(time.Duration) time.Duration {
				return 2 * time.Second
			})
			f.rounds(t, uses, func() { f.duringPings(t) })
		})
		if shorter > 1 {
			continue
		}
		t.Run(fmt.Sprintf("without pings, %s", roundTrip), func(t *testing.T) {
			t.Parallel()
			f := newFirstUses(t, uses, roundTrip, balancerIdle, func(time.Duration) time.Duration { return time.Hour })
			f.rounds(t, uses, func() { f.spread(t, longestSilence) })
		})
	}
}

// firstUses are workload clusters with two unused reverse tunnels each.
type firstUses struct {
	in        *installation
	balancers []*balancer // of each workload cluster

	mu     sync.Mutex
	failed []error
	took   []time.Duration
}

func newFirstUses(
	t *testing.T, uses int, roundTrip, idle time.Duration, pings func(time.Duration) time.Duration,
) *firstUses {
	t.Helper()
	const most = 50 // more take too long to start on a busy machine
	workload := newAuthority(t)
	in := newInstallation(t, 1, idleClusters(t, min(uses, most), workload)...)
	in.workload = workload
	f := &firstUses{in: in}
	for range in.clusters {
		f.balancers = append(f.balancers, newBalancer(t, in, idle, roundTrip/2))
	}
	g := in.gateways[0]
	listeners := envoy.GatewayListeners(in.Installation, g.name, g.bind, model.Denied{})
	g.agent.listen(t, withPings(t, listeners, pings))
	in.startEdges(t, f.balancers...)
	return f
}

// rounds makes first uses until there were enough, with new tunnels for each round, and logs their figures. It fails
// the test if one has failed, or if a balancer has closed a tunnel.
func (f *firstUses) rounds(t *testing.T, uses int, round func()) {
	t.Helper()
	replaced := int64(0)
	for len(f.took) < uses {
		before := f.sum(func(b *balancer) int64 { return b.count.Load() })
		round()
		time.Sleep(2 * time.Second) // until broken tunnels are replaced
		replaced += f.sum(func(b *balancer) int64 { return b.count.Load() }) - before
		for _, b := range f.balancers {
			b.renew(t)
		}
	}
	slices.Sort(f.took)
	closed := f.sum(func(b *balancer) int64 { return b.closed.Load() })
	t.Logf("%d first uses: %d failed, median %s, longest %s; %d tunnels replaced, %d closed by the balancer", len(f.took),
		len(f.failed), f.took[len(f.took)/2], f.took[len(f.took)-1], replaced, closed)
	if len(f.failed) > 0 || closed > 0 {
		t.Errorf("want none failed and none closed: %v", f.failed)
	}
}

func (f *firstUses) sum(count func(*balancer) int64) (n int64) {
	for _, b := range f.balancers {
		n += count(b)
	}
	return n
}

// spread uses the tunnel of each workload cluster once, at times that are spread evenly over a span.
func (f *firstUses) spread(t *testing.T, span time.Duration) {
	t.Helper()
	var done sync.WaitGroup
	begin := time.Now()
	for i := range f.in.clusters {
		time.Sleep(time.Until(begin.Add(span * time.Duration(i) / time.Duration(len(f.in.clusters)))))
		done.Go(func() { f.use(t, i) })
	}
	done.Wait()
}

// duringPings uses the tunnel of each workload cluster once, at the moment at which a ping has left the gateway.
func (f *firstUses) duringPings(t *testing.T) {
	t.Helper()
	time.Sleep(time.Second) // until the handshakes are complete
	var done sync.WaitGroup
	for i, b := range f.balancers {
		done.Go(func() {
			select {
			case <-b.pinged: // of the time before
			default:
			}
			select {
			case <-b.pinged:
				f.use(t, i)
			case <-time.After(envoytest.Patience):
				t.Error("there was no ping")
			}
		})
	}
	done.Wait()
}

func (f *firstUses) use(t *testing.T, i int) {
	t.Helper()
	get := f.in.getBySNI
	if i%2 == 1 {
		get = f.in.getByConnect
	}
	begin := time.Now()
	_, err := get(t.Context(), f.in.gateways[0], f.in.clusters[i].Hostname)
	f.mu.Lock()
	defer f.mu.Unlock()
	f.took = append(f.took, time.Since(begin))
	if err != nil {
		f.failed = append(f.failed, fmt.Errorf("use %d: %w", len(f.took), err))
	}
}
