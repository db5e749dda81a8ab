package infra

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"sync"
	"time"

	"k8s.io/apimachinery/pkg/types"

	"github.com/fairlead/fairlead/test/lab/netns"
	"github.com/fairlead/fairlead/test/lab/proc"
)

const (
	// endpointPort is the port of a workload cluster's endpoint, and of each of its apiservers.
	endpointPort = 6443
	// firstEndpoint is the last byte of the first endpoint's address.
	firstEndpoint = 200
	// healthInterval is the interval at which a load balancer checks its apiservers.
	healthInterval = time.Second
	// unhealthyAfter is the number of consecutive checks that must fail. A single check also fails when the processors
	// are busy.
	unhealthyAfter = 3
)

// balancer is a load balancer for TCP in the workload network: the endpoint of a workload cluster.
type balancer struct {
	in       *netns.Namespace
	address  netip.Addr
	listener net.Listener
	cancel   context.CancelFunc

	mu       sync.Mutex
	backends []netip.Addr
	healthy  map[netip.Addr]bool
	failures map[netip.Addr]int      // number of consecutive failures
	conns    map[net.Conn]netip.Addr // machine of each client's connection
	turn     int
}

// Endpoint returns the address of a Cluster's load balancer. It creates one if there is none.
func (c *Cloud) Endpoint(ctx context.Context, cluster types.NamespacedName) (netip.AddrPort, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	b := c.balancers[cluster]
	if b == nil {
		var err error
		if b, err = c.newBalancer(ctx, netns.AddressAt(netns.WorkloadPrefix, firstEndpoint+len(c.balancers))); err != nil {
			return netip.AddrPort{}, fmt.Errorf("making the endpoint of %s: %w", cluster, err)
		}
		c.balancers[cluster] = b
		c.updateBalancer(cluster)
	}
	return netip.AddrPortFrom(b.address, endpointPort), nil
}

func (c *Cloud) newBalancer(ctx context.Context, address netip.Addr) (*balancer, error) {
	in := c.network.Workload
	if err := in.AddAddress(ctx, "work", netip.PrefixFrom(address, netns.WorkloadPrefix.Bits())); err != nil {
		return nil, err
	}
	listener, err := in.Listen(ctx, netip.AddrPortFrom(address, endpointPort).String())
	if err != nil {
		return nil, err
	}
	running, cancel := context.WithCancel(context.Background())
	b := &balancer{
		in: in, address: address, listener: listener, cancel: cancel, healthy: map[netip.Addr]bool{},
		failures: map[netip.Addr]int{}, conns: map[net.Conn]netip.Addr{},
	}
	c.workspace.OnClose(func(context.Context) { b.close() })
	go b.serve(running)
	go b.watch(running)
	return b, nil
}

// updateBalancer sets the machines of a Cluster's load balancer. The caller holds the lock.
func (c *Cloud) updateBalancer(cluster types.NamespacedName) {
	b := c.balancers[cluster]
	if b == nil {
		return
	}
	var backends []netip.Addr
	for _, machine := range c.machines {
		if machine.Cluster == cluster && machine.serves {
			backends = append(backends, machine.Address)
		}
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	b.backends = backends
}

func (b *balancer) close() {
	b.cancel()
	_ = b.listener.Close()
}

// watch checks the apiservers periodically, and closes the connections to the ones that have failed.
func (b *balancer) watch(ctx context.Context) {
	tick := time.NewTicker(healthInterval)
	defer tick.Stop()
	for {
		b.probe(ctx)
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		}
	}
}

// probe checks each apiserver once. A new one is used after its first answer.
func (b *balancer) probe(ctx context.Context) {
	b.mu.Lock()
	backends := b.backends
	b.mu.Unlock()
	answers := make([]bool, len(backends))
	var group sync.WaitGroup
	for i, backend := range backends {
		group.Go(func() { answers[i] = b.check(ctx, backend) == nil })
	}
	group.Wait()
	b.mu.Lock()
	defer b.mu.Unlock()
	before := b.healthy
	b.healthy = map[netip.Addr]bool{}
	for i, backend := range backends {
		b.failures[backend]++
		if answers[i] {
			b.failures[backend] = 0
		}
		b.healthy[backend] = answers[i] || (before[backend] && b.failures[backend] < unhealthyAfter)
	}
	for conn, backend := range b.conns {
		if !b.healthy[backend] {
			_ = conn.Close()
		}
	}
}

// check attempts a TLS handshake.
func (b *balancer) check(ctx context.Context, backend netip.Addr) error {
	ctx, cancel := context.WithTimeout(ctx, 2*time.Second)
	defer cancel()
	conn, err := b.dial(ctx, backend)
	if err != nil {
		return err
	}
	defer func() { _ = conn.Close() }()
	return tls.Client(conn, proc.Insecure()).HandshakeContext(ctx)
}

func (b *balancer) dial(ctx context.Context, backend netip.Addr) (net.Conn, error) {
	return b.in.DialContext(ctx, "tcp", netip.AddrPortFrom(backend, endpointPort).String())
}

func (b *balancer) serve(ctx context.Context) {
	for {
		conn, err := b.listener.Accept()
		if err != nil {
			return
		}
		go b.forward(ctx, conn)
	}
}

// next returns the next healthy apiserver in turn.
func (b *balancer) next() (netip.Addr, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	for range b.backends {
		b.turn++
		if backend := b.backends[b.turn%len(b.backends)]; b.healthy[backend] {
			return backend, nil
		}
	}
	return netip.Addr{}, errors.New("no apiserver is healthy")
}

// forward copies a client's bytes to an apiserver and back. Without an apiserver it closes the client's connection.
func (b *balancer) forward(ctx context.Context, client net.Conn) {
	defer func() { _ = client.Close() }()
	backend, err := b.next()
	if err != nil {
		return
	}
	dialing, cancel := context.WithTimeout(ctx, 2*time.Second)
	defer cancel()
	server, err := b.dial(dialing, backend)
	if err != nil {
		return
	}
	defer func() { _ = server.Close() }()
	b.note(client, backend)
	defer b.forget(client)
	stop := context.AfterFunc(ctx, func() { _ = client.Close() })
	defer stop()
	done := make(chan struct{}, 2)
	go netns.Pipe(server, client, done)
	go netns.Pipe(client, server, done)
	<-done
}

func (b *balancer) note(client net.Conn, backend netip.Addr) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.conns[client] = backend
}

func (b *balancer) forget(client net.Conn) {
	b.mu.Lock()
	defer b.mu.Unlock()
	delete(b.conns, client)
}
