package controlchannel

import (
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/keepalive"
	"google.golang.org/grpc/stats"

	"github.com/fairlead/fairlead/internal/limit"
)

// Classes of callers. Each has its own gRPC server and limits.
const (
	unauthenticated = iota // without a certificate, or with one that has expired or is rejected
	edges                  // with an edge's leaf
	internal               // gateways and controllers
	classes
)

const (
	// handshakeTime bounds how long a silent or slow client may hold a connection: twice as long as a slow line needs.
	handshakeTime = 10 * time.Second
	// unauthenticatedTime bounds connections of unauthenticated callers, which make one call: a little longer than the
	// longest call.
	unauthenticatedTime = 45 * time.Second
	// messageTime bounds how long the message of a unary call may take after its header: three times as long as the
	// largest request for a certificate needs on a line of 64 kbit/s.
	messageTime = 10 * time.Second
	// lingerTime is when a connection is closed after a call on it was rejected because of its certificate: a caller
	// that has a newer certificate by then can only present it on a new connection.
	lingerTime = time.Second
	// idleTime bounds connections without a stream. Every agent has a stream all the time.
	idleTime = 5 * time.Minute
	// pingTime and pingTimeout detect, within 16 s, agents that disappeared silently or whose process is frozen. The
	// server never pings a live agent, because agents ping every 10 s themselves.
	pingTime, pingTimeout = 12 * time.Second, 4 * time.Second
	// minPing is half of the shortest interval at which gRPC clients ping (10 s). A client that pings more often is
	// disconnected.
	minPing = 5 * time.Second
	// window bounds the unread part of a message, for unauthenticated callers and edges: none of their messages is
	// larger than a few windows.
	window = 64 << 10
	// readBuffer disables gRPC's read buffer, because TLS has its own. By default each connection keeps 32 KiB.
	readBuffer = 0
	// writeBuffer is the size of a write. The buffer exists only during a write.
	writeBuffer = 4 << 10
)

// perClass are the limits of each class.
var perClass = [classes]struct {
	message int    // bytes
	headers uint32 // bytes, far more than gRPC sends
	streams uint32 // concurrent in one connection
	idle    time.Duration
}{
	// A ServiceAccount token of 16 KiB and a signing request of 8 KiB, with reserve. Such a caller makes one call.
	unauthenticated: {message: 32 << 10, headers: 8 << 10, streams: 1, idle: unauthenticatedTime},
	// An edge's requests are small. Its reports contain the names of a serving certificate, and its Envoy's NACKs
	// contain text. An agent has two streams on one connection, for resources and for reports, and renews on another
	// one. Each stream may hold a message of this size that does not end.
	edges: {message: 256 << 10, headers: 16 << 10, streams: 4, idle: idleTime},
	// Leaves room for the first request of a gateway that reconnects: the name and the version of each of its Envoy
	// clusters, about 130 bytes each, so 250,000 of them. Only a program of the installation can send as much.
	internal: {message: 32 << 20, headers: 16 << 10, streams: 16, idle: idleTime},
}

// newServer returns the gRPC server of a class.
func newServer(class int, rules rules, calls stats.Handler) *grpc.Server {
	bounds := perClass[class]
	options := []grpc.ServerOption{
		grpc.Creds(finished{}),
		grpc.InTapHandle(rules.admit),
		grpc.StreamInterceptor(rules.stream), grpc.UnknownServiceHandler(unknown),
		grpc.ConnectionTimeout(handshakeTime),
		grpc.MaxConcurrentStreams(bounds.streams),
		grpc.MaxRecvMsgSize(bounds.message),
		grpc.MaxHeaderListSize(bounds.headers),
		grpc.KeepaliveParams(
			keepalive.ServerParameters{MaxConnectionIdle: bounds.idle, Time: pingTime, Timeout: pingTimeout},
		),
		grpc.KeepaliveEnforcementPolicy(keepalive.EnforcementPolicy{MinTime: minPing, PermitWithoutStream: true}),
	}
	if class != internal {
		options = append(options, grpc.StaticStreamWindowSize(window), grpc.StaticConnWindowSize(window),
			grpc.ReadBufferSize(readBuffer), grpc.WriteBufferSize(writeBuffer))
	}
	if calls != nil {
		options = append(options, grpc.StatsHandler(calls))
	}
	return grpc.NewServer(options...)
}

// bounds are the limits of connections. A connection beyond them is closed, and its caller retries a little later.
type bounds struct {
	// handshake bounds the time until a connection's first call, unauthenticated the lifetime of one without a
	// certificate.
	handshake, unauthenticated time.Duration
	// message bounds the time until the message of a unary call has arrived. Then its connection is closed.
	message time.Duration
	// openings bounds connections before their PROXY header was read: it is not even known whether they use the public
	// port.
	openings int
	// public bounds the handshakes of connections through the public port, and separately their unauthenticated
	// connections. inside does the same for all others. Each connection costs about 30 KiB. A connection with a valid
	// leaf counts in neither. Connections through the public port cannot use the slots of the others. Half of each is
	// reserved for addresses from which an edge has connected recently.
	public, inside int
	// perAddress bounds how many of these one address may have. Many machines may share an address.
	perAddress int
	// fair is how long one of these cannot be displaced by a network that holds as many. A network that holds fewer
	// can always displace it. A handshake over a slow line, or an enrolment, takes less.
	fair time.Duration
	// known bounds connections of edges; perNode bounds those of one certificate: an agent has one, and lost connections
	// that have not been detected as dead.
	known, perNode int
	// perTunnel bounds the connections of all edges of one tunnel: ten for each of the 100 edges that a Tunnel's
	// status lists. Each costs about 100 KiB. When all known slots are in use, the tunnel with the most connections is
	// displaced.
	perTunnel int
	// sources bounds the recorded pairs of an edge and an address from which it has connected; recent is how long they
	// are kept. Each costs about 360 bytes. An edge presents its leaf at least once within the leaf's lifetime, which is
	// 24 h.
	sources int
	recent  time.Duration
	// perShown is how many reserved slots an address may have for each edge that it has presented: an edge has one
	// connection, and may have lost some that have not been detected as dead. mostShown bounds the reserved slots of one
	// address.
	perShown, mostShown int
	// connects limits the handshakes of one address, because each costs a signature. 1,000 edges behind one address
	// that all lost their connection are back within seconds.
	connects limit.Rate
	// networkConnects limits the handshakes of an IPv6 network, because a single machine may use all its addresses.
	networkConnects limit.Rate
	// addresses bounds the number of addresses and networks with a rate.
	addresses int
	// addressCalls limits the calls of one address without an accepted certificate: 1,000 machines that boot behind it,
	// each with a report every 5 s.
	addressCalls limit.Rate
	// otherCalls limits the calls of one node that need no valid certificate, and those that are refused. An agent renews
	// every 4 s if its leaves live for 6 s.
	otherCalls limit.Rate
	// calls limits the other calls of one node, whichever of its certificates is used. An agent makes two calls. It
	// repeats them every 4 s if its leaves live for 6 s, and after an outage it retries each after 250 ms, 500 ms, and so
	// on up to 3 s. For a short time it may have several connections.
	calls limit.Rate
	// tunnelCalls limits the calls of all edges of one tunnel: 1,000 edges that connect at once stay below it.
	tunnelCalls limit.Rate
	// nodes bounds the number of certificates with a rate.
	nodes int
	// nodeStreams and tunnelStreams bound concurrent calls: an agent has two on each of its connections.
	nodeStreams, tunnelStreams int
	// internalStreams is nodeStreams for gateways and controllers, because each of their calls may hold a message of
	// 32 MiB that does not end. A gateway-agent has two, and for moments a renewal and two for the other gateways. A
	// connection that was lost without notice has two more for some seconds.
	internalStreams int
}

func defaultBounds() bounds {
	return bounds{
		handshake: handshakeTime, unauthenticated: unauthenticatedTime, message: messageTime,
		openings: 4096, public: 4096, inside: 1024, perAddress: 64, known: 40_000, perNode: 32, perTunnel: 1024,
		sources: 1 << 16, recent: 48 * time.Hour, perShown: 4, mostShown: 1024,
		fair:     2 * time.Second,
		connects: limit.Rate{Every: 20 * time.Millisecond, Burst: 400}, addresses: 16_384,
		networkConnects: limit.Rate{Every: 2500 * time.Microsecond, Burst: 3200},
		addressCalls:    limit.Rate{Every: 5 * time.Millisecond, Burst: 400},
		otherCalls:      limit.Rate{Every: 200 * time.Millisecond, Burst: 100},
		calls:           limit.Rate{Every: 200 * time.Millisecond, Burst: 100}, nodes: 40_000,
		tunnelCalls: limit.Rate{Every: 5 * time.Millisecond, Burst: 4000}, nodeStreams: 64, tunnelStreams: 2048,
		internalStreams: 8,
	}
}
