package controlchannel

import (
	"bufio"
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"sync"
	"sync/atomic"
	"time"

	"github.com/pires/go-proxyproto"
	"google.golang.org/grpc/credentials"

	"github.com/fairlead/fairlead/internal/limit"
	"github.com/fairlead/fairlead/internal/retry"
	"github.com/fairlead/fairlead/pkg/model"
)

// readAhead is the size of the buffer for a PROXY header. TLS has its own buffer for the rest.
const readAhead = 512

// retryAccept is the wait after a temporary error of accept, such as too many open files.
var retryAccept = retry.Backoff{Min: 5 * time.Millisecond, Max: time.Second}

// logRate limits how often the same error is logged.
var logRate = limit.Rate{Every: time.Minute, Burst: 1}

// acceptor turns connections of a listener into connections of the gRPC servers.
type acceptor struct {
	domain model.TunnelDomain
	tls    *tls.Config // accepts any client certificate
	verify func(tls.ConnectionState) error
	// refused is Config.Refused.
	refused func(address string, why error)
	log     *slog.Logger
	bounds  bounds
	inner   [classes]*inner

	openings, trusted *limit.Slots
	known             *limit.Shares        // connections of edges, by tunnel
	group             func(*caller) string // returns the tunnel of an edge
	sources           *sources
	public, inside    pools
	connects, logged  *limit.Rates
	rejected          atomic.Int64
	figures           *figures

	ctx        context.Context // ends when the acceptor is closed
	close      context.CancelFunc
	handshakes sync.WaitGroup // running handshakes
}

// pools are the slots for connections that are identified only by their address.
type pools struct{ handshakes, unauthenticated *limit.Pool }

func newPools(total, each int, b bounds) pools {
	pool := func() *limit.Pool { return limit.NewPool(total, limit.NewCrowd(total, each, b.fair)) }
	return pools{pool(), pool()}
}

// pools returns the pools for a caller.
func (d *acceptor) pools(client *caller) pools {
	if client.public {
		return d.public
	}
	return d.inside
}

func newAcceptor(config Config, b bounds) *acceptor {
	accepting := config.TLS.Clone()
	accepting.VerifyConnection = nil
	ctx, cancel := context.WithCancel(context.Background())
	d := &acceptor{
		domain: config.Domain, tls: accepting, verify: config.TLS.VerifyConnection, refused: config.Refused, log: config.Log,
		bounds:   b,
		openings: limit.NewSlots(b.openings, b.openings),
		public:   newPools(b.public, b.perAddress, b),
		inside:   newPools(b.inside, b.inside, b),
		known:    limit.NewShares(b.known, b.perNode, b.perTunnel),
		group:    func(client *caller) string { return client.id },
		sources:  newSources(b.sources, b.recent),
		trusted:  limit.NewSlots(b.known, b.perNode), // so that edges cannot use the slots of gateways
		connects: limit.NewRates(b.addresses),
		logged:   limit.NewRates(16), // more than there are distinct errors
		ctx:      ctx, close: cancel,
	}
	for class := range d.inner {
		d.inner[class] = newInner([classes]string{"strangers", "edges", "insiders"}[class])
	}
	return d
}

// accept accepts connections until the acceptor is closed. It returns an error if the listener is closed by itself.
func (d *acceptor) accept(listener net.Listener) error {
	for failures := 0; ; {
		raw, err := listener.Accept()
		switch {
		case err == nil:
			failures = 0
			d.handshakes.Go(func() { d.open(raw) })
		case d.ctx.Err() != nil:
			return nil
		case errors.Is(err, net.ErrClosed):
			return err
		default:
			d.warn("cannot accept connection, retrying", err)
			_ = retry.Sleep(d.ctx, retryAccept.Wait(failures))
			failures++
		}
	}
}

// wait returns when no handshake is running.
func (d *acceptor) wait() { d.handshakes.Wait() }

// open does everything before the first call, and delivers the connection or closes it.
func (d *acceptor) open(raw net.Conn) {
	setReset(raw, true) // whatever ends it before it is admitted
	ctx, cancel := context.WithTimeout(d.ctx, d.bounds.handshake)
	defer cancel()
	// All blocking operations end with ctx. A deadline alone would not end when the acceptor is closed.
	defer context.AfterFunc(ctx, func() { abort(raw) })()
	c, err := d.handshake(ctx, raw)
	if err != nil {
		if errors.Is(err, errTooMany) {
			abort(raw)
			d.logRejected(err)
			return
		}
		time.AfterFunc(lingerTime, func() { abort(raw) }) // after a TLS alert has had time to arrive
		d.log.Debug("connection ended before its first call", "address", raw.RemoteAddr().String(), "error", err)
		return
	}
	d.inner[c.caller.class].deliver(c)
}

// abort closes a connection by a reset. After an ordinary close, the gateway's Envoy keeps its side until the caller
// closes too, and a hostile caller does not.
func abort(raw net.Conn) {
	setReset(raw, true)
	_ = raw.Close()
}

// setReset sets whether closing the connection sends a reset.
func setReset(raw net.Conn, reset bool) {
	linger := -1 // the default
	if reset {
		linger = 0
	}
	if tcp, ok := raw.(*net.TCPConn); ok {
		_ = tcp.SetLinger(linger)
	}
}

// errTooMany is wrapped by errors that name the exceeded limit.
var errTooMany = errors.New("too many")

// logRejected counts and logs a connection that is rejected or displaced.
func (d *acceptor) logRejected(why error) {
	d.warn("connections rejected or displaced", why, "connections", d.rejected.Add(1))
}

// The reasons for which a connection is displaced by one of a network or a tunnel that holds fewer.
var (
	errNetwork = fmt.Errorf("%w connections without a certificate from one network", errTooMany)
	errTunnels = fmt.Errorf("%w connections of edges, most of them of one tunnel", errTooMany)
)

// displace returns a function that aborts a connection, whatever its state, in favour of one with more right to its
// slot. The function does not block: a TLS close would first send close_notify.
func (d *acceptor) displace(raw net.Conn, why error) func() {
	return func() {
		abort(raw)
		d.figures.displaced(why)
		d.logRejected(why)
	}
}

// handshake reads the PROXY header, does TLS, and classifies the caller. The slots that it acquires are released when
// it fails, or when the connection is closed.
func (d *acceptor) handshake(ctx context.Context, raw net.Conn) (_ *conn, err error) {
	opening := d.openings.Take("")
	if opening == nil {
		return nil, fmt.Errorf("%w connections that have sent nothing", errTooMany)
	}
	defer opening()
	reader := bufio.NewReaderSize(raw, readAhead)
	client, err := readHeader(raw, reader)
	if err != nil {
		return nil, err
	}
	opening()
	release, err := d.admitHandshake(client, d.displace(raw, errNetwork))
	if err != nil {
		return nil, err
	}
	defer release()
	secure := tls.Server(&buffered{raw, reader}, d.tls)
	if err := secure.HandshakeContext(ctx); err != nil {
		if d.refused != nil {
			d.refused(client.String(), err)
		}
		return nil, fmt.Errorf("doing TLS with %s: %w", client, err)
	}
	if protocol := secure.ConnectionState().NegotiatedProtocol; protocol != "h2" {
		return nil, fmt.Errorf("doing TLS with %s: its protocol is %q, not h2", client, protocol)
	}
	return d.admit(secure, client, raw)
}

// readHeader reads the PROXY header, if there is one. Without a header, the caller's address is that of the
// connection.
func readHeader(raw net.Conn, reader *bufio.Reader) (*caller, error) {
	client := &caller{Addr: raw.RemoteAddr()}
	header, err := proxyproto.Read(reader)
	switch {
	case errors.Is(err, proxyproto.ErrNoProxyProtocol):
		return client, nil
	case err != nil:
		return nil, fmt.Errorf("reading PROXY header of %s: %w", client, err)
	}
	client.public = true
	// A header without an address is for a proxy's own connections, such as health checks.
	if from, ok := header.SourceAddr.(*net.TCPAddr); ok && header.Command.IsProxy() {
		client.Addr = from
	}
	return client, nil
}

// admitHandshake counts a handshake, for which only the address is known, and returns a function that releases its
// slot.
func (d *acceptor) admitHandshake(client *caller, displace func()) (release func(), err error) {
	allowance := 0
	if client.public {
		allowance = d.allowance(client)
		if d.exceedsRate(client, allowance) {
			return nil, fmt.Errorf("%w new connections from one address", errTooMany)
		}
	}
	if release = d.pools(client).handshakes.Join(client.Addr, allowance, displace); release == nil {
		return nil, fmt.Errorf("%w handshakes", errTooMany)
	}
	return release, nil
}

// exceedsRate counts a new connection of an address, and reports whether there were too many. An address with known
// edges has an additional rate, in case other clients behind it have used up the rate of the address.
func (d *acceptor) exceedsRate(client *caller, allowance int) bool {
	address := limit.Address(client.Addr)
	if d.connects.Take(address, d.bounds.connects) == 0 &&
		d.connects.Take("network "+limit.Network(client.Addr), d.bounds.networkConnects) == 0 {
		return false
	}
	return allowance == 0 ||
		d.connects.Take("edges "+address, limit.Rate{Every: d.bounds.connects.Every, Burst: allowance}) > 0
}

// admit creates the connection that is passed to gRPC.
func (d *acceptor) admit(secure *tls.Conn, client *caller, raw net.Conn) (*conn, error) {
	now, state := time.Now(), secure.ConnectionState()
	leaf := d.identify(client, state, now)
	release, err := d.acquireSlot(client, raw, now)
	if err != nil {
		return nil, err
	}
	c := &conn{Conn: secure, caller: client, ends: []func(){release, d.figures.connected(client.class)}}
	client.disconnect = sync.OnceFunc(c.closeSoon)
	setReset(raw, client.class == unauthenticated) // their last answer has arrived by then: see closeSoon
	if client.class == unauthenticated {
		c.closeAfter(d.bounds.unauthenticated)
	} else {
		// Nothing else makes the holder reconnect with its current leaf.
		c.closeAfter(leaf.NotAfter.Sub(now))
	}
	if client.rejection != nil {
		state.PeerCertificates, state.VerifiedChains = nil, nil // no service may accept it as an identity
	}
	c.auth = credentials.TLSInfo{
		State:          state,
		CommonAuthInfo: credentials.CommonAuthInfo{SecurityLevel: credentials.PrivacyAndIntegrity},
	}
	return c, nil
}

// warn logs an error, at most as often as logRate allows.
func (d *acceptor) warn(what string, err error, more ...any) {
	if d.logged.Take(what+err.Error(), logRate) == 0 {
		d.log.With(more...).Warn(what, "error", err)
	}
}
