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

// readAhead is room for a PROXY header; what else comes is read into TLS' own buffer.
const readAhead = 512

// retryAccept is the wait after a failure to accept that passes, such as too many open files.
var retryAccept = retry.Backoff{Min: 5 * time.Millisecond, Max: time.Second}

// logRate is how often the same trouble is logged.
var logRate = limit.Rate{Every: time.Minute, Burst: 1}

// door turns connections of a listener into connections of the gRPC servers.
type door struct {
	domain model.TunnelDomain
	tls    *tls.Config // which accepts any client certificate
	verify func(tls.ConnectionState) error
	// refused is Config.Refused.
	refused func(address string, why error)
	log     *slog.Logger
	bounds  bounds
	inner   [classes]*inner

	openings, trusted *limit.Slots
	known             *limit.Shares        // of edges, by tunnel
	group             func(*caller) string // the tunnel of an edge
	sources           *sources
	public, inside    pools
	connects, said    *limit.Rates
	turnedAway        atomic.Int64
	figures           *figures

	ctx    context.Context // ends with the door
	close  context.CancelFunc
	within sync.WaitGroup // handshakes
}

// pools are the connections of whom nothing is known but the address.
type pools struct{ handshakes, strangers *limit.Pool }

func newPools(total, each int, b bounds) pools {
	pool := func() *limit.Pool { return limit.NewPool(total, limit.NewCrowd(total, each, b.fair)) }
	return pools{pool(), pool()}
}

// pools are those for a caller.
func (d *door) pools(who *caller) pools {
	if who.public {
		return d.public
	}
	return d.inside
}

func newDoor(config Config, b bounds) *door {
	accepting := config.TLS.Clone()
	accepting.VerifyConnection = nil
	ctx, closeDoor := context.WithCancel(context.Background())
	d := &door{
		domain: config.Domain, tls: accepting, verify: config.TLS.VerifyConnection, refused: config.Refused, log: config.Log, bounds: b,
		openings: limit.NewSlots(b.openings, b.openings),
		public:   newPools(b.public, b.perAddress, b),
		inside:   newPools(b.inside, b.inside, b),
		known:    limit.NewShares(b.known, b.perNode, b.perTunnel),
		group:    func(who *caller) string { return who.id },
		sources:  newSources(b.sources, b.recent),
		trusted:  limit.NewSlots(b.known, b.perNode), // so that edges can't take the place of gateways
		connects: limit.NewRates(b.addresses),
		said:     limit.NewRates(16), // more than there are troubles
		ctx:      ctx, close: closeDoor,
	}
	for class := range d.inner {
		d.inner[class] = newInner([classes]string{"strangers", "edges", "insiders"}[class])
	}
	return d
}

// accept lets connections in until the door is closed. It returns an error if the listener ends by itself.
func (d *door) accept(listener net.Listener) error {
	for failures := 0; ; {
		raw, err := listener.Accept()
		switch {
		case err == nil:
			failures = 0
			d.within.Go(func() { d.open(raw) })
		case d.ctx.Err() != nil:
			return nil
		case errors.Is(err, net.ErrClosed):
			return err
		default:
			d.say("connection not accepted, trying again", err)
			_ = retry.Sleep(d.ctx, retryAccept.Wait(failures))
			failures++
		}
	}
}

// wait returns when no handshake goes on any more.
func (d *door) wait() { d.within.Wait() }

// open does everything that comes before the first call, and hands the connection over or closes it.
func (d *door) open(raw net.Conn) {
	setReset(raw, true) // however it ends before it is admitted
	ctx, cancel := context.WithTimeout(d.ctx, d.bounds.handshake)
	defer cancel()
	// Whatever blocks ends with ctx; a deadline alone would not end with the door.
	defer context.AfterFunc(ctx, func() { abort(raw) })()
	c, err := d.handshake(ctx, raw)
	if err != nil {
		if errors.Is(err, errTooMany) {
			abort(raw)
			d.turnAway(err)
			return
		}
		time.AfterFunc(hangUpTime, func() { abort(raw) }) // when an alert of TLS has arrived
		d.log.Debug("connection ended before its first call", "address", raw.RemoteAddr().String(), "error", err)
		return
	}
	d.inner[c.caller.class].hand(c)
}

// abort closes a connection by a reset. After an ordinary close the gateway's Envoy keeps its side until the caller closes too, and a
// hostile caller does not.
func abort(raw net.Conn) {
	setReset(raw, true)
	_ = raw.Close()
}

// setReset says whether the end of a connection is a reset.
func setReset(raw net.Conn, reset bool) {
	linger := -1 // what is usual
	if reset {
		linger = 0
	}
	if tcp, ok := raw.(*net.TCPConn); ok {
		_ = tcp.SetLinger(linger)
	}
}

// errTooMany is wrapped by an error that says of what.
var errTooMany = errors.New("there are too many")

// turnAway counts a connection that is ended for others.
func (d *door) turnAway(why error) {
	d.say("connections turned away", why, "connections", d.turnedAway.Add(1))
}

// The reasons for which a connection gives way to one of a network or a tunnel that holds fewer.
var (
	errNetwork = fmt.Errorf("%w connections without a certificate, of one network", errTooMany)
	errTunnels = fmt.Errorf("%w connections of edges, and one tunnel has most of them", errTooMany)
)

// giveWay ends a connection, whatever is done on it, for one that has more right to its place. It does not block: TLS would say goodbye
// first.
func (d *door) giveWay(raw net.Conn, why error) func() {
	return func() {
		abort(raw)
		d.figures.displaced(why)
		d.turnAway(why)
	}
}

// handshake reads the PROXY header, does TLS, and decides what the caller is. The slots that it takes on the way are given
// back when it fails, or by closing the connection.
func (d *door) handshake(ctx context.Context, raw net.Conn) (_ *conn, err error) {
	opening := d.openings.Take("")
	if opening == nil {
		return nil, fmt.Errorf("%w connections that have said nothing", errTooMany)
	}
	defer opening()
	reader := bufio.NewReaderSize(raw, readAhead)
	who, err := readHeader(raw, reader)
	if err != nil {
		return nil, err
	}
	opening()
	leave, err := d.strange(who, d.giveWay(raw, errNetwork))
	if err != nil {
		return nil, err
	}
	defer leave()
	secure := tls.Server(&buffered{raw, reader}, d.tls)
	if err := secure.HandshakeContext(ctx); err != nil {
		if d.refused != nil {
			d.refused(who.String(), err)
		}
		return nil, fmt.Errorf("doing TLS with %s: %w", who, err)
	}
	if protocol := secure.ConnectionState().NegotiatedProtocol; protocol != "h2" {
		return nil, fmt.Errorf("doing TLS with %s: its protocol is %q, not h2", who, protocol)
	}
	return d.admit(secure, who, raw)
}

// readHeader reads the PROXY header, if there is one.
func readHeader(raw net.Conn, reader *bufio.Reader) (*caller, error) {
	who := &caller{Addr: raw.RemoteAddr()}
	header, err := proxyproto.Read(reader)
	switch {
	case errors.Is(err, proxyproto.ErrNoProxyProtocol):
		return who, nil
	case err != nil:
		return nil, fmt.Errorf("reading PROXY header of %s: %w", who, err)
	}
	who.public = true
	// A header without an address is what a proxy says of connections of its own.
	if from, ok := header.SourceAddr.(*net.TCPAddr); ok && header.Command.IsProxy() {
		who.Addr = from
	}
	return who, nil
}

// strange counts a handshake of whom nothing is known but the address, and returns what ends that.
func (d *door) strange(who *caller, giveWay func()) (leave func(), err error) {
	allowance := 0
	if who.public {
		allowance = d.allowance(who)
		if d.tooFast(who, allowance) {
			return nil, fmt.Errorf("%w new connections of one address", errTooMany)
		}
	}
	if leave = d.pools(who).handshakes.Join(who.Addr, allowance, giveWay); leave == nil {
		return nil, fmt.Errorf("%w handshakes", errTooMany)
	}
	return leave, nil
}

// tooFast counts a new connection of an address, and says whether there were too many. An address of edges has some more, for the
// case that others behind it have used up what each address has.
func (d *door) tooFast(who *caller, allowance int) bool {
	address := limit.Address(who.Addr)
	if d.connects.Take(address, d.bounds.connects) == 0 &&
		d.connects.Take("network "+limit.Network(who.Addr), d.bounds.networkConnects) == 0 {
		return false
	}
	return allowance == 0 || d.connects.Take("edges "+address, limit.Rate{Every: d.bounds.connects.Every, Burst: allowance}) > 0
}

// admit makes the connection that gRPC gets.
func (d *door) admit(secure *tls.Conn, who *caller, raw net.Conn) (*conn, error) {
	now, state := time.Now(), secure.ConnectionState()
	leaf := d.know(who, state, now)
	leave, err := d.place(who, raw, now)
	if err != nil {
		return nil, err
	}
	c := &conn{Conn: secure, caller: who, ends: []func(){leave, d.figures.connected(who.class)}}
	who.hangUp = sync.OnceFunc(c.closeSoon)
	setReset(raw, who.class == strangers) // whose last answer has arrived by then: see closeSoon
	if who.class == strangers {
		c.closeAfter(d.bounds.stranger)
	} else {
		// Nothing else in a connection tells the holder to come back with the leaf that it has by then.
		c.closeAfter(leaf.NotAfter.Sub(now))
	}
	if who.refusal != nil {
		state.PeerCertificates, state.VerifiedChains = nil, nil // no service shall take it for somebody
	}
	c.auth = credentials.TLSInfo{State: state, CommonAuthInfo: credentials.CommonAuthInfo{SecurityLevel: credentials.PrivacyAndIntegrity}}
	return c, nil
}

// say logs a trouble, once in a while.
func (d *door) say(what string, err error, more ...any) {
	if d.said.Take(what+err.Error(), logRate) == 0 {
		d.log.With(more...).Warn(what, "error", err)
	}
}
