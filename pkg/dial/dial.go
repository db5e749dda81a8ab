// Package dial connects to the control channel and to the gateways: through several addresses, with changing DNS,
// through an HTTP proxy. If it cannot connect, it reports the cause. The input is addresses, a proxy and an identity;
// the output is connections. The package does not know the protocols on these connections.
package dial

import (
	"context"
	"fmt"
	"net"
	"net/netip"
	"slices"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"github.com/fairlead/fairlead/pkg/model"
)

const (
	// dialTime bounds one dial over all addresses. It is long enough for a SYN that is lost twice (the kernel repeats
	// it after 1 s and after 2 s more), and short enough to notice soon that a network is back.
	dialTime = 10 * time.Second
	// attemptTime bounds the attempt at one address. A black hole delays a dial much less: see pace.
	attemptTime = 5 * time.Second
	// keepaliveIdle, keepaliveInterval and keepaliveCount are the same as for Envoy's reverse tunnels: a peer that
	// disappears silently is detected within 11 s.
	keepaliveIdle, keepaliveInterval, keepaliveCount = 5 * time.Second, 2 * time.Second, 3
	// maxFailed bounds the list of failed targets.
	maxFailed = 64
)

// Dialer describes how to reach one service: the gateways' public port for an edge, the xds-server for a gateway. Its
// exported fields must not change after first use. It is safe for concurrent use, but must not be copied, because it
// records which address worked.
type Dialer struct {
	Addresses []model.Endpoint // at least one; all are tried, the one that worked last first
	Proxy     Proxy            // zero: none

	resolver *net.Resolver // nil: the machine's

	mu     sync.Mutex
	more   []model.Endpoint          // see SetMore
	trip   time.Duration             // see RoundTrip
	last   target                    // the target that worked last; zero: none yet
	failed []target                  // targets that connected but were unusable, the latest last
	known  map[question][]netip.Addr // the last answers of DNS
}

// target is a TCP connection to one of the addresses.
type target struct {
	endpoint model.Endpoint // the destination
	hop      netip.AddrPort // the address that is dialled: of the endpoint, or of the proxy
	proxied  bool
}

// String returns the description of a target for error messages.
func (t target) String() string {
	hop := t.hop.Addr().String()
	switch {
	case t.proxied:
		return fmt.Sprintf("%s through the proxy at %s", t.endpoint, t.hop)
	case hop == t.endpoint.Host:
		return t.endpoint.String()
	}
	return fmt.Sprintf("%s (%s)", t.endpoint, hop)
}

// DialContext connects to the first address that answers, through the proxy if there is one, unless the proxy's
// exceptions contain the address. Each name is resolved again. All its addresses are tried, each a short time after
// the previous one, so that a black hole costs only a moment. The error has one line for each address, with a known
// cause explained. DialContext returns after 10 s at the latest.
func (d *Dialer) DialContext(ctx context.Context) (net.Conn, error) {
	conn, _, err := d.dial(ctx)
	return conn, err
}

func (d *Dialer) dial(ctx context.Context) (net.Conn, target, error) {
	conn, t, err := d.race(ctx)
	if err != nil {
		return nil, target{}, err
	}
	trip := time.Duration(0)
	if !t.proxied {
		trip = RoundTrip(conn)
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	d.last, d.trip = t, trip
	return conn, t, nil
}

// SetMore replaces the addresses that each later dial tries in addition to Addresses: the one that worked last first,
// else all of them after Addresses.
func (d *Dialer) SetMore(addresses []model.Endpoint) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.more = slices.Clone(addresses)
}

// all returns the addresses of a dial, without duplicates.
func (d *Dialer) all() []model.Endpoint {
	d.mu.Lock()
	defer d.mu.Unlock()
	all := slices.Clone(d.Addresses)
	for _, e := range d.more {
		if !slices.Contains(all, e) {
			all = append(all, e)
		}
	}
	return all
}

// RoundTrip returns how long the kernel waited for the answer when the latest connection was opened; 0 if this is
// unknown, for example because of a proxy.
func (d *Dialer) RoundTrip() time.Duration {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.trip
}

// RoundTrip returns the shortest round trip that the kernel has measured on a TCP connection; 0 if it is unknown.
func RoundTrip(conn net.Conn) (trip time.Duration) {
	tcp := tcpOf(conn)
	if tcp == nil {
		return 0
	}
	raw, err := tcp.SyscallConn()
	if err != nil {
		return 0
	}
	_ = raw.Control(func(fd uintptr) {
		const none = 1<<32 - 1 // the kernel's value before it has measured any
		if info, err := unix.GetsockoptTCPInfo(int(fd), unix.IPPROTO_TCP, unix.TCP_INFO); err == nil && info.Min_rtt != none {
			trip = time.Duration(info.Min_rtt) * time.Microsecond
		}
	})
	return trip
}

// Proxied reports whether at least one of the addresses is dialled through the proxy.
func (d *Dialer) Proxied() bool {
	return slices.ContainsFunc(d.Addresses, d.Proxy.leadsTo)
}

// markWorked records that the expected server answered on a connection.
func (d *Dialer) markWorked(t target) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.last = t
	d.clearFailed(t)
}

// markUnusable records that a connection was established but unusable: such a target is tried after all others.
func (d *Dialer) markUnusable(t target) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.last == t {
		d.last = target{}
	}
	d.clearFailed(t)
	if len(d.failed) == maxFailed {
		d.failed = d.failed[1:]
	}
	d.failed = append(d.failed, t)
}

func (d *Dialer) clearFailed(t target) {
	d.failed = slices.DeleteFunc(d.failed, func(f target) bool { return f == t })
}

// rank orders targets: the one that worked last first, unusable ones last.
func (d *Dialer) rank(t target) int {
	d.mu.Lock()
	defer d.mu.Unlock()
	if t == d.last {
		return -1
	}
	return 1 + slices.Index(d.failed, t)
}

// connect opens the TCP connection of a target, through the proxy if the target is proxied.
func (d *Dialer) connect(ctx context.Context, t target) (net.Conn, error) {
	limit := attemptTime
	if t.proxied {
		limit = proxiedTime
	}
	ctx, cancel := context.WithTimeout(ctx, limit)
	defer cancel()
	dialer := net.Dialer{KeepAliveConfig: net.KeepAliveConfig{
		Enable: true, Idle: keepaliveIdle, Interval: keepaliveInterval, Count: keepaliveCount,
	}}
	conn, err := dialer.DialContext(ctx, "tcp", t.hop.String())
	if err != nil {
		return nil, fmt.Errorf("%s: %w", t, explainDial(err))
	}
	if !t.proxied {
		return conn, nil
	}
	through, err := d.Proxy.open(ctx, conn, t.endpoint)
	if err != nil {
		_ = conn.Close()
		return nil, fmt.Errorf("%s: %w", t, err)
	}
	return through, nil
}
