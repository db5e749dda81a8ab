package envoy

import (
	"time"

	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	"google.golang.org/protobuf/types/known/durationpb"
	"google.golang.org/protobuf/types/known/wrapperspb"
)

// ComponentLogLevel is for Envoy's --component-log-level. A look-up of a tunnel that is down logs the error "cluster to
// node mapping changed", which is neither true nor of any use, at each attempt of each client. A gateway address that
// can't be reached logs "Connection closed", without a reason, several times a second; the agent says why.
const ComponentLogLevel = "filter:critical,io:critical"

const (
	// downloadWindow is that of a stream on its way to a gateway: Envoy gives the half of it back at a time, so at 50 ms of round trip
	// it lets one stream have 90 MB/s. It is also what a client that stops reading pins of a gateway's memory. uploadWindow is that of
	// the other direction, pinned in an edge by an apiserver that stops reading: 18 MB/s at 50 ms.
	downloadWindow = 10 << 20
	uploadWindow   = 2 << 20
	// streamsPerTunnel lets the two tunnels to a gateway carry 1,000 connections; a full tunnel makes Envoy use the next.
	streamsPerTunnel = 512
	// stalledReaders is how many clients may stop reading before the others in their tunnel stand still. All windows of a tunnel
	// together would be more than HTTP/2 can say and a gateway has memory for; this is the most that one tunnel pins of it, 1.25 GB.
	stalledReaders = 128
	downloads      = stalledReaders * downloadWindow
	uploads        = streamsPerTunnel * uploadWindow

	// notSentLowWater, together with farBuffers, bounds what waits inside an edge in front of a slow uplink: at 2 Mbit/s under four
	// downloads a new request takes 2 s, at 10 Mbit/s 0.4 s, with Envoy's and the kernel's defaults 3 to 8 s at 10 Mbit/s. None works
	// alone.
	notSentLowWater = 16 << 10

	// http2Ping finds a dead tunnel that is in use; Envoy has no other way to, and would keep it for ever. Interval and
	// time-out together: a black hole is found after 4 s, and the next tunnel used.
	http2Ping = 2 * time.Second

	// controlPing does the same for the control channel, where nobody waits for an answer.
	controlPing = 15 * time.Second

	// reversePing is rare on purpose: these pings go below the TLS of an idle tunnel, and one that is under way when
	// the tunnel is first used breaks the TLS handshake. Kernel keepalive finds dead idle tunnels instead.
	reversePing = 60 * time.Second

	// maintainInterval is how often an edge looks for tunnels that are missing, maxReconnectBackoff the longest wait after
	// a dial that failed. Service is back after 0.5 to 1 s; the defaults are 10 s, and shortening only one makes it worse.
	maintainInterval    = 500 * time.Millisecond
	maxReconnectBackoff = time.Second

	// connectAttempts and connectBackoff hold a connection for which there is no tunnel for about 1.4 s, so that an edge
	// that is restarting is not noticed. Longer would starve callers that dial one cluster after the other. Each wait is
	// random between nothing and connectBackoff: many short ones add up to nearly the same time for everybody.
	connectAttempts = 10
	connectBackoff  = 300 * time.Millisecond

	// tunnelConnectTimeout bounds the TLS handshake inside a tunnel that proves to be dead, so that the next tunnel is
	// tried before the 5 s are over for which Cluster API's probe waits.
	tunnelConnectTimeout = 2 * time.Second
	// apiserverTimeout is for an edge's connections to an apiserver, a single round trip: who comes in the 2 s before a health
	// check finds that one of several is gone waits no longer than that. By SNI, an apiserver that does not answer costs all
	// apiserverAttempts at each of connectAttempts: together they must be less than the 30 s for which client-go dials.
	apiserverTimeout  = 400 * time.Millisecond
	apiserverAttempts = 5
	apiserverBackoff  = 10 * time.Millisecond
	// apiserverConnections is no limit: that is what an edge's tunnels can carry.
	apiserverConnections = 1 << 20

	// healthInterval and healthTimeout find an apiserver that accepts connections and does not answer after 2 s at most, which
	// nothing else does. A healthy one is asked once a second on one open connection. One failure is enough, because to take another
	// apiserver costs nothing, and healthyThreshold answers in a row to go back, so that one that comes and goes is left alone.
	healthInterval   = time.Second
	healthTimeout    = time.Second
	healthyThreshold = 3
	// dialTimeout is for all other connections, some of them over the internet.
	dialTimeout = 5 * time.Second

	// dnsRetryBase and dnsRetryMax bound the wait after a name that did not resolve: a random part of the base, which doubles up to the
	// maximum. Envoy's default is 5 s each time.
	dnsRetryBase = 500 * time.Millisecond
	dnsRetryMax  = 2 * time.Second

	// handshakeTimeout is how long somebody may take for the TLS handshake on the public port. An edge takes three round
	// trips; who says nothing would hold a connection for ever.
	handshakeTimeout = 10 * time.Second
	// helloTimeout is how long somebody may take for the first message of that, by Envoy's default 15 s.
	helloTimeout = 5 * time.Second

	// handshakeRate is how many tunnels a gateway lets be opened in a second by default: about what one worker can do. Who is refused
	// costs a third of a tunnel and comes back a second later, so a rate below that is for gateways that shall do less.
	handshakeRate = 1000
	// publicBacklog is how many connections wait in the kernel to be accepted on the public port: for about a second. The worker accepts one
	// in each round of its event loop, so that all edges that come at once never stand in front of a client. What doesn't fit waits on
	// its own side: TCP knocks again after a second.
	publicBacklog = 1024

	// lostTimeout is for the first message of a client inside, which comes at once. Envoy 1.40 may lose a connection that it
	// accepts at the moment at which a tunnel in use ends.
	lostTimeout = 2 * time.Second

	// idleTimeout ends a connection on which nobody has said anything. It is what Envoy's TCP proxy has by default; its
	// HTTP connection manager would end a silent `kubectl exec` after 5 minutes.
	idleTimeout = time.Hour
	// passedIdleTimeout is that of what a gateway passes on to the xds-server or another gateway. Pings come at least once a minute,
	// as reversePing says.
	passedIdleTimeout = 5 * time.Minute

	// configBackoff is the longest wait before the agent is dialled again: Envoy's own maximum is 30 s, for which an Envoy
	// that starts before its agent listens would have no listeners.
	configBackoffBase = 500 * time.Millisecond
	configBackoff     = 2 * time.Second

	// gatewayHeap is enough for 10,000 workload clusters at 50 KB and as many clients, edgeHeap for what the windows of the
	// streams of an edge let in.
	gatewayHeap = 2 << 30
	edgeHeap    = 512 << 20
	// shrinkAt and refuseAt are parts of the heap. Between them memory that is free is given back to the kernel.
	shrinkAt = 0.85
	refuseAt = 0.95
	// overloadInterval is how often memory is looked at: 10 Gbit/s fill 300 MB meanwhile.
	overloadInterval = 250 * time.Millisecond
	// maxConnections is far more than one gateway has: two tunnels each of 10,000 edges, and their clients.
	maxConnections = 50_000
)

// buffers are those of an edge, in bytes: of a tunnel, and of a connection to an apiserver, which is how much a stream writes at a time.
// Each time the tunnel's is full, all of its streams stop reading and start again half a buffer later, which costs CPU.
type buffers struct{ tunnel, apiserver uint32 }

var (
	// farBuffers are as large as bearable in front of a slow uplink.
	farBuffers = buffers{tunnel: 64 << 10, apiserver: 16 << 10}
	// nearBuffers are nearly as fast as any, and small requests beside a download wait little longer than with farBuffers.
	nearBuffers = buffers{tunnel: 512 << 10, apiserver: 64 << 10}
)

func (d EdgeDial) buffers() buffers {
	if d.Near {
		return nearBuffers
	}
	return farBuffers
}

// tunnelKeepalive lets the kernel find dead idle tunnels: 5 s + 3 × 2 s.
func tunnelKeepalive() *corev3.TcpKeepalive { return keepalive(5, 2, 3) }

// clientKeepalive finds clients and servers that went away without a word: 60 s + 3 × 20 s.
func clientKeepalive() *corev3.TcpKeepalive { return keepalive(60, 20, 3) }

func keepalive(idle, interval, probes uint32) *corev3.TcpKeepalive {
	return &corev3.TcpKeepalive{
		KeepaliveTime:     wrapperspb.UInt32(idle),
		KeepaliveInterval: wrapperspb.UInt32(interval),
		KeepaliveProbes:   wrapperspb.UInt32(probes),
	}
}

// gatewayHTTP2 and edgeHTTP2 are the options of HTTP/2 inside of a tunnel on its two sides. Each side's windows are for what it receives.
func gatewayHTTP2() *corev3.Http2ProtocolOptions { return tunnelHTTP2(downloadWindow, downloads) }

func edgeHTTP2() *corev3.Http2ProtocolOptions { return tunnelHTTP2(uploadWindow, uploads) }

func tunnelHTTP2(stream, connection uint32) *corev3.Http2ProtocolOptions {
	return &corev3.Http2ProtocolOptions{
		AllowConnect:                true,
		MaxConcurrentStreams:        wrapperspb.UInt32(streamsPerTunnel),
		InitialStreamWindowSize:     wrapperspb.UInt32(stream),
		InitialConnectionWindowSize: wrapperspb.UInt32(connection),
		ConnectionKeepalive:         http2Keepalive(http2Ping),
	}
}

func http2Keepalive(every time.Duration) *corev3.KeepaliveSettings {
	return &corev3.KeepaliveSettings{Interval: durationpb.New(every), Timeout: durationpb.New(every)}
}
