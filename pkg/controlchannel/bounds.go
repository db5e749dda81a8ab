package controlchannel

import (
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/keepalive"
	"google.golang.org/grpc/stats"

	"github.com/fairlead/fairlead/internal/limit"
)

// Classes of callers. Each has a gRPC server with limits of its own.
const (
	strangers = iota // without a certificate, or with one that has expired or is not accepted
	edges            // with an edge's leaf
	insiders         // gateways and controllers
	classes
)

const (
	// handshakeTime bounds how long somebody who says nothing, or little, holds a connection: twice what a bad line takes.
	handshakeTime = 10 * time.Second
	// strangerTime ends connections of strangers, who make one call: a bit more than that takes at most.
	strangerTime = 45 * time.Second
	// hangUpTime is when a connection ends after a call on it was refused for its certificate: whoever has a better one by
	// then shows it with a new connection only.
	hangUpTime = time.Second
	// idleTime ends connections without a stream. Every agent has one all the time.
	idleTime = 5 * time.Minute
	// pingTime and pingTimeout find agents that went away without a word, or whose process is frozen, within 16 s. Agents that
	// live ping every 10 s themselves, which is why they are never pinged.
	pingTime, pingTimeout = 12 * time.Second, 4 * time.Second
	// minPing is half of the shortest interval in which gRPC clients ping (10 s): who pings more often is cut off.
	minPing = 5 * time.Second
	// window bounds what is kept of a message that nobody has read yet, for strangers and edges: none of theirs is larger
	// than a few of these.
	window = 64 << 10
	// readBuffer is no buffer between gRPC and TLS, which has one of its own. By default each connection keeps 32 KiB.
	readBuffer = 0
	// writeBuffer is what it writes at a time. It is held only while something is written.
	writeBuffer = 4 << 10
)

// perClass are the limits of one class.
var perClass = [classes]struct {
	message int    // bytes
	headers uint32 // bytes, far more than gRPC sends
	streams uint32 // at a time in one connection
	idle    time.Duration
}{
	// A ServiceAccount token of 16 KiB and a signing request of 8 KiB, with room.
	strangers: {message: 32 << 10, headers: 8 << 10, streams: 2, idle: strangerTime},
	// What an edge asks for is small, its reports have names of a serving certificate, and what its Envoy refuses has texts.
	edges: {message: 256 << 10, headers: 16 << 10, streams: 16, idle: idleTime},
	// Room for the first request of a gateway that comes back: the name and the version of each Envoy cluster that it has,
	// about 130 bytes each, so 60,000 of them.
	insiders: {message: 8 << 20, headers: 16 << 10, streams: 16, idle: idleTime},
}

// newServer returns the gRPC server of a class.
func newServer(class int, rules rules, calls stats.Handler) *grpc.Server {
	bounds := perClass[class]
	options := []grpc.ServerOption{
		grpc.Creds(done{}),
		grpc.InTapHandle(rules.admit),
		grpc.UnaryInterceptor(rules.unary), grpc.StreamInterceptor(rules.stream),
		grpc.ConnectionTimeout(handshakeTime),
		grpc.MaxConcurrentStreams(bounds.streams),
		grpc.MaxRecvMsgSize(bounds.message),
		grpc.MaxHeaderListSize(bounds.headers),
		grpc.KeepaliveParams(keepalive.ServerParameters{MaxConnectionIdle: bounds.idle, Time: pingTime, Timeout: pingTimeout}),
		grpc.KeepaliveEnforcementPolicy(keepalive.EnforcementPolicy{MinTime: minPing, PermitWithoutStream: true}),
	}
	if class != insiders {
		options = append(options, grpc.StaticStreamWindowSize(window), grpc.StaticConnWindowSize(window),
			grpc.ReadBufferSize(readBuffer), grpc.WriteBufferSize(writeBuffer))
	}
	if calls != nil {
		options = append(options, grpc.StatsHandler(calls))
	}
	return grpc.NewServer(options...)
}

// bounds are the limits of connections. Beyond them a connection is closed, and its caller comes back a bit later.
type bounds struct {
	// handshake is how long a connection may take to its first call, stranger how long it lasts without a certificate.
	handshake, stranger time.Duration
	// openings are connections of which nothing is known yet, not even whether they came through the public port.
	openings int
	// public and inside are handshakes, and as many connections of strangers: about 30 KiB each. Whoever has a leaf that is
	// good is neither any more. Those that came through the public port can't take the place of the others. Half of each is
	// reserved for addresses from which an edge has come lately.
	public, inside int
	// perAddress is how many of those one address may have. Many machines may share one.
	perAddress int
	// fair is how long each of those has at least before it gives way to somebody who holds as much as itself: a handshake over
	// a bad line, or an enrolment, takes less.
	fair time.Duration
	// known are connections of edges, perNode how many one certificate may have: one for each thing that an agent does, and
	// those that it lost and that nobody has found dead yet.
	known, perNode int
	// perTunnel is how many the edges of one tunnel may have: ten for each of the 100 edges that a Tunnel's status lists. Each
	// costs about 100 KiB. When all that are known are in use, the tunnel that has most gives way.
	perTunnel int
	// sources is how many addresses are remembered that have shown an edge's certificate, recent for how long. An edge shows its
	// leaf anew at least once in the leaf's life, which is 24 h.
	sources int
	recent  time.Duration
	// perShown is how many of the reserved places an address may have for each edge that it has shown: an edge has two
	// connections, and may have lost both. mostShown bounds that for one address.
	perShown, mostShown int
	// connects is how often one address may begin a handshake, which costs a signature. 1,000 edges behind one address that all
	// lost their connection are back within seconds.
	connects limit.Rate
	// networkConnects is that for a network of IPv6, of whose addresses a single machine may use all.
	networkConnects limit.Rate
	// addresses is how many addresses and networks are remembered for that.
	addresses int
	// calls is how often one certificate may begin a call, other than those that enrol/server counts. An agent has two, begins
	// them anew every 4 s if its leaves live for 6 s, and after an outage tries each again after 250 ms, 500 ms, and so on up to
	// 3 s. It has several connections at most, for a short time.
	calls limit.Rate
	// tunnelCalls is that for all edges of one tunnel: 1,000 edges that come at once do not reach it.
	tunnelCalls limit.Rate
	// nodes is how many certificates are remembered for that.
	nodes int
	// nodeStreams and tunnelStreams are how many calls may go on at a time: an agent has two, on each of its connections.
	nodeStreams, tunnelStreams int
}

func defaultBounds() bounds {
	return bounds{
		handshake: handshakeTime, stranger: strangerTime,
		openings: 4096, public: 4096, inside: 1024, perAddress: 64, known: 40_000, perNode: 32, perTunnel: 1024,
		sources: 16_384, recent: 48 * time.Hour, perShown: 4, mostShown: 1024,
		fair:     2 * time.Second,
		connects: limit.Rate{Every: 20 * time.Millisecond, Burst: 400}, addresses: 16_384,
		networkConnects: limit.Rate{Every: 2500 * time.Microsecond, Burst: 3200},
		calls:           limit.Rate{Every: 200 * time.Millisecond, Burst: 100}, nodes: 40_000,
		tunnelCalls: limit.Rate{Every: 5 * time.Millisecond, Burst: 4000}, nodeStreams: 64, tunnelStreams: 2048,
	}
}
