// Package dial reaches the control channel and the gateways from wherever a machine stands: by several addresses, by DNS
// that changes, by an HTTP proxy, and says what is in the way when it can't. In go addresses, a proxy and an identity,
// out come connections. It knows nothing of what is said over them.
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
	// dialTime bounds one dial over all addresses. It is longer than a SYN that was lost twice takes (1 s and 2 s later the
	// kernel sends another), and short enough that a network that comes back is noticed.
	dialTime = 10 * time.Second
	// attemptTime bounds the attempt at one address. A black hole does not cost that much: see pace.
	attemptTime = 5 * time.Second
	// keepaliveIdle, keepaliveInterval and keepaliveCount are those of Envoy's tunnels: who went away without a word is
	// found within 11 s.
	keepaliveIdle, keepaliveInterval, keepaliveCount = 5 * time.Second, 2 * time.Second, 3
	// maxFailed bounds what is remembered of addresses that did not work.
	maxFailed = 64
)

// Way is how to reach one service: the gateways' public port for an edge, the xds-server for a gateway. It never changes and
// is safe for concurrent use, but must not be copied: it remembers which address worked.
type Way struct {
	Addresses []model.Endpoint // at least one; all are tried, those that worked last first
	Proxy     Proxy            // zero: none

	resolver *net.Resolver // nil: the machine's

	mu     sync.Mutex
	trip   time.Duration           // see RoundTrip
	last   target                  // what worked last; zero: nothing yet
	failed []target                // what connected and was of no use, the latest last
	known  map[string][]netip.Addr // the last answer of DNS for each name
}

// target is a TCP connection that leads to one of the addresses.
type target struct {
	endpoint model.Endpoint // where to
	hop      netip.AddrPort // who is dialled: an address of the endpoint, or of the proxy
	proxied  bool
}

// String is what a person has to know of a target.
func (t target) String() string {
	hop := t.hop.Addr().String()
	switch {
	case t.proxied:
		return fmt.Sprintf("%s by the proxy at %s", t.endpoint, t.hop)
	case hop == t.endpoint.Host:
		return t.endpoint.String()
	}
	return fmt.Sprintf("%s (%s)", t.endpoint, hop)
}

// DialContext connects to the first address that answers, through the proxy where there is one and its exceptions don't
// name the address. Each name is looked up anew; all its addresses are tried, one begun shortly after the other, so that
// one that swallows what it gets costs a moment. The error tells of each address what happened, a line each, and
// what that means where it is known. A dial ends after 10 s at the latest.
func (w *Way) DialContext(ctx context.Context) (net.Conn, error) {
	conn, _, err := w.dial(ctx)
	return conn, err
}

func (w *Way) dial(ctx context.Context) (net.Conn, target, error) {
	conn, t, err := w.race(ctx)
	if err != nil {
		return nil, target{}, err
	}
	trip := time.Duration(0)
	if !t.proxied {
		trip = RoundTrip(conn)
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	w.last, w.trip = t, trip
	return conn, t, nil
}

// RoundTrip is how long the kernel waited for the answer when the latest connection was opened; 0: not known, as where a proxy is
// in between.
func (w *Way) RoundTrip() time.Duration {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.trip
}

// RoundTrip is the shortest round trip that the kernel has seen on a TCP connection; 0: not known.
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
		const none = 1<<32 - 1 // what the kernel says as long as it has seen none
		if info, err := unix.GetsockoptTCPInfo(int(fd), unix.IPPROTO_TCP, unix.TCP_INFO); err == nil && info.Min_rtt != none {
			trip = time.Duration(info.Min_rtt) * time.Microsecond
		}
	})
	return trip
}

// Proxied says whether the proxy leads to at least one of the addresses.
func (w *Way) Proxied() bool {
	return slices.ContainsFunc(w.Addresses, w.Proxy.leadsTo)
}

// worked remembers that somebody useful was at the end of a connection.
func (w *Way) worked(t target) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.last = t
	w.forgive(t)
}

// useless remembers that a connection was made, but that it was no use: such a target is tried after all others.
func (w *Way) useless(t target) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.last == t {
		w.last = target{}
	}
	w.forgive(t)
	if len(w.failed) == maxFailed {
		w.failed = w.failed[1:]
	}
	w.failed = append(w.failed, t)
}

func (w *Way) forgive(t target) {
	w.failed = slices.DeleteFunc(w.failed, func(f target) bool { return f == t })
}

// rank puts what worked last first, and what was of no use last.
func (w *Way) rank(t target) int {
	w.mu.Lock()
	defer w.mu.Unlock()
	if t == w.last {
		return -1
	}
	return 1 + slices.Index(w.failed, t)
}

// connect opens the TCP connection of a target, and asks the proxy to go on if there is one.
func (w *Way) connect(ctx context.Context, t target) (net.Conn, error) {
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
	through, err := w.Proxy.open(ctx, conn, t.endpoint)
	if err != nil {
		_ = conn.Close()
		return nil, fmt.Errorf("%s: %w", t, err)
	}
	return through, nil
}
