package envoy

import (
	"time"

	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	"google.golang.org/protobuf/types/known/wrapperspb"
)

// ComponentLogLevel is the value of Envoy's --component-log-level. Selecting a tunnel without a reverse tunnel logs
// the error "cluster to node mapping changed", which is neither true nor useful, at each attempt of each client. An
// unreachable gateway address logs "Connection closed", without a reason, several times per second; the agent logs the
// reason.
const ComponentLogLevel = "filter:critical,io:critical"

const (
	// notSentLowWater, together with farBuffers, bounds the data that waits inside an edge on a slow uplink. During
	// four downloads a new request takes 2 s at 2 Mbit/s and 0.4 s at 10 Mbit/s; with the defaults of Envoy and the
	// kernel it takes 3 to 8 s at 10 Mbit/s. Neither setting is sufficient alone.
	notSentLowWater = 16 << 10

	// reversePing keeps an unused reverse tunnel open in load balancers and NATs that close connections without data
	// for 30 s or more; TCP keepalive is no data for them. These pings are sent below the TLS of the reverse tunnel. One
	// in transit at the first use breaks nothing, because both Envoys remove it from the data. The interval is not
	// shorter because of the cost; TCP keepalive detects dead unused reverse tunnels.
	reversePing = 25 * time.Second

	// maintainInterval is how often an edge checks for missing reverse tunnels, maxReconnectBackoff the longest wait
	// after a failed dial. Service is restored after 0.5 to 1 s. The defaults are 10 s, and reducing only one of them
	// makes it worse.
	maintainInterval    = 500 * time.Millisecond
	maxReconnectBackoff = time.Second

	// answerTimeout lets a client read a refusal before its connection is closed. Without it, data in transit would make
	// the kernel drop the answer.
	answerTimeout = 100 * time.Millisecond
	// scopesTimeout bounds the wait of the public listener for scopes: 10,000 take 3 s.
	scopesTimeout = 10 * time.Second
	// gatewayTimeout and gatewayAttempts bound how long an apiserver waits for a gateway. Both are in one network.
	// gatewayBackoff is the longest first wait: half of the requests have it while one of two gateways is lost.
	gatewayTimeout  = time.Second
	gatewayAttempts = 4
	gatewayBackoff  = 100 * time.Millisecond
	// peerSilence is how long the kernel of another gateway may take to acknowledge data before its connections end, and
	// clients are forwarded to the next one. Envoy itself may take longer, as it may be busy: see multiplex.Peer, whose
	// pings are such data.
	peerSilence = time.Second
	// socketMode lets an apiserver with another user and the same group use the Unix socket of its Envoy.
	socketMode = 0o660

	// connectAttempts and connectBackoff hold a connection without a reverse tunnel for about 1.4 s, so that a restart
	// of an edge is not noticed. More would starve clients that dial one workload cluster after the other. Each wait
	// is random between zero and connectBackoff: many short waits add up to nearly the same time for every client.
	connectAttempts = 10
	connectBackoff  = 300 * time.Millisecond

	// lostAttempts and lostBackoff do the same for gateways that have lanes. Usually no lane is free, or a reverse tunnel
	// has ended and another one is there, so the first wait is short: random between zero and lostBackoff, which doubles
	// up to connectBackoff. On average all waits add up to those of connectAttempts. Each gateway retries alone: this is
	// not how edges and apiservers return to a gateway.
	lostAttempts = 17
	lostBackoff  = time.Millisecond
	// lostSNIAttempts and lostSNIBackoff do the same by SNI, for about a second. All connections of a worker share one
	// backoff of Envoy's TCP proxy, which is never reset, so the waits cannot grow from short to long ones.
	lostSNIAttempts = 100
	lostSNIBackoff  = 20 * time.Millisecond
	// peerAttempts is the number of attempts for a client of another gateway: a lane, and a usual reverse tunnel.
	peerAttempts = 2

	// tunnelConnectTimeout bounds the TLS handshake inside a dead reverse tunnel, so that the next one is tried before
	// Cluster API's probe times out after 5 s.
	tunnelConnectTimeout = 2 * time.Second
	// apiserverTimeout bounds an edge's connection attempt to an apiserver, which takes a single round trip. It also
	// bounds the wait of connections in the 2 s before a health check detects that one of several apiservers is down.
	// By SNI, an apiserver that refuses connections costs all apiserverAttempts at each of lostSNIAttempts: together they
	// take 5 s. One that does not answer takes until the client gives up: client-go waits for TLS for 10 s.
	apiserverTimeout  = 400 * time.Millisecond
	apiserverAttempts = 4
	apiserverBackoff  = 10 * time.Millisecond
	// apiserverConnections is no limit: it exceeds what an edge's reverse tunnels can carry.
	apiserverConnections = 1 << 20
	// dialTimeout bounds all other connection attempts, some of them over the internet.
	dialTimeout = 5 * time.Second

	// dnsRetryBase and dnsRetryMax bound the wait after a name that did not resolve: a random part of the base, which
	// doubles up to the maximum. Envoy's default is always 5 s.
	dnsRetryBase = 500 * time.Millisecond
	dnsRetryMax  = 2 * time.Second

	// handshakeTimeout bounds the TLS handshake on the public port. An edge takes three round trips; without a bound a
	// silent client would hold a connection for ever.
	handshakeTimeout = 10 * time.Second
	// helloTimeout bounds the wait for the first message of the handshake. Envoy's default is 15 s.
	helloTimeout = 5 * time.Second

	// handshakeRate is how many reverse tunnels per second a gateway accepts by default: about the maximum of one
	// worker. A rejected connection costs a third of a reverse tunnel and returns a second later, so a lower rate is
	// only for gateways that must use less CPU.
	handshakeRate = 1000
	// publicBacklog is how many connections may wait in the kernel to be accepted on the public port: for about a
	// second. A worker accepts one per round of its event loop, so that a burst of edges never delays a client. A
	// connection beyond the backlog waits at the client, whose TCP retries after a second.
	publicBacklog = 1024

	// lostTimeout bounds the wait for the first message of a client of the inside listeners, which arrives at once.
	// Envoy 1.40 may lose a connection that it accepts at the moment at which a reverse tunnel in use ends.
	lostTimeout = 2 * time.Second

	// idleTimeout ends a connection without traffic. It is the default of Envoy's TCP proxy; its HTTP connection
	// manager would end a silent `kubectl exec` after 5 minutes.
	idleTimeout = time.Hour
	// relayedIdleTimeout is the idle timeout of connections that a gateway relays to the xds-server or another
	// gateway. Pings arrive more often: see reversePing.
	relayedIdleTimeout = 5 * time.Minute

	// configBackoff is the longest wait before the agent is dialled again. Envoy's own maximum is 30 s, for which an
	// Envoy that starts before its agent listens would have no listeners.
	configBackoffBase = 500 * time.Millisecond
	configBackoff     = 2 * time.Second
)

// buffers are the buffer sizes of an edge, in bytes: of a reverse tunnel, and of a connection to an apiserver, which
// is also how much a stream writes at a time. When the buffer of a reverse tunnel is full, all its streams stop
// reading and resume half a buffer later, which costs CPU.
type buffers struct{ tunnel, apiserver uint32 }

var (
	// farBuffers are as large as acceptable on a slow uplink.
	farBuffers = buffers{tunnel: 64 << 10, apiserver: 16 << 10}
	// nearBuffers give nearly the maximum throughput, and small requests during a download wait little longer than
	// with farBuffers.
	nearBuffers = buffers{tunnel: 512 << 10, apiserver: 64 << 10}
)

func (d EdgeDial) buffers() buffers {
	if d.Near {
		return nearBuffers
	}
	return farBuffers
}

// tunnelKeepalive makes the kernel detect dead idle reverse tunnels: 5 s + 3 × 2 s.
func tunnelKeepalive() *corev3.TcpKeepalive { return keepalive(5, 2, 3) }

// usedKeepalive makes the kernel of a gateway detect dead reverse tunnels that are in use: 2 s + 3 × 1 s.
func usedKeepalive() *corev3.TcpKeepalive { return keepalive(2, 1, 3) }

// clientKeepalive detects clients and servers that disappeared silently: 60 s + 3 × 20 s.
func clientKeepalive() *corev3.TcpKeepalive { return keepalive(60, 20, 3) }

func keepalive(idle, interval, probes uint32) *corev3.TcpKeepalive {
	return &corev3.TcpKeepalive{
		KeepaliveTime:     wrapperspb.UInt32(idle),
		KeepaliveInterval: wrapperspb.UInt32(interval),
		KeepaliveProbes:   wrapperspb.UInt32(probes),
	}
}
