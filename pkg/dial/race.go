package dial

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"slices"
	"time"

	"github.com/fairlead/fairlead/pkg/model"
)

const (
	// pace is how long after an attempt the next one begins if there is no answer (RFC 8305, section 5).
	pace = 250 * time.Millisecond
	// proxiedPace is longer, because the proxy must dial before it answers.
	proxiedPace = time.Second
	// lookupHead is how long known addresses wait for lookups of names that precede them.
	lookupHead = 100 * time.Millisecond
	// lookupTime bounds a lookup. After that the last known answer is used, so that edges stay connected while DNS is
	// down.
	lookupTime = 3 * time.Second
	// maxAnswers bounds how many addresses of one name are tried.
	maxAnswers = 16
)

// errNoAddress is the error of a Dialer without addresses.
var errNoAddress = errors.New("no address to dial")

// race is one dial: concurrent lookups and attempts.
type race struct {
	way      *Dialer
	to       []model.Endpoint
	resolved chan lookup
	ended    chan attempt
	over     chan struct{} // closed when no further results are received

	lookups, attempts int // in progress
	waiting           []candidate
	errs              []error
}

type lookup struct {
	host  string
	addrs []netip.Addr
	err   error
}

type attempt struct {
	target target
	conn   net.Conn
	err    error
}

// candidate is a target and its rank.
type candidate struct {
	target
	depth, place int // index of the address in the answer for its name, and of the endpoint in race.to
}

func (d *Dialer) race(ctx context.Context) (net.Conn, target, error) {
	ctx, cancel := context.WithTimeout(ctx, dialTime)
	defer cancel()
	r := &race{way: d, to: d.all(), resolved: make(chan lookup), ended: make(chan attempt), over: make(chan struct{})}
	defer close(r.over)
	r.lookUp(ctx)
	due := false // whether the next attempt may begin although others are in progress
	clock := time.NewTimer(lookupHead)
	defer clock.Stop()
	for {
		if len(r.waiting) > 0 && (due || r.lookups+r.attempts == 0) {
			clock.Reset(r.begin(ctx))
			due = false
		}
		if len(r.waiting)+r.lookups+r.attempts == 0 {
			return nil, target{}, r.err(ctx)
		}
		select {
		case <-clock.C:
			due = true
		case l := <-r.resolved:
			r.lookups--
			r.add(l)
		case a := <-r.ended:
			r.attempts--
			if a.err == nil {
				return a.conn, a.target, nil
			}
			r.errs = append(r.errs, a.err)
			due = true
		}
	}
}

// err joins the errors, one line per address.
func (r *race) err(ctx context.Context) error {
	if len(r.errs) == 0 {
		return errNoAddress
	}
	if err := context.Cause(ctx); errors.Is(err, context.Canceled) {
		return err
	}
	return errors.Join(r.errs...)
}

// begin starts the best attempt, and returns how long the next one waits for it.
func (r *race) begin(ctx context.Context) time.Duration {
	best := slices.MinFunc(r.waiting, func(a, b candidate) int {
		return cmp.Or(
			cmp.Compare(r.way.rank(a.target), r.way.rank(b.target)), cmp.Compare(a.depth, b.depth),
			cmp.Compare(a.place, b.place),
		)
	})
	r.waiting = slices.DeleteFunc(r.waiting, func(c candidate) bool { return c == best })
	r.attempts++
	go func() {
		conn, err := r.way.connect(ctx, best.target)
		select {
		case r.ended <- attempt{best.target, conn, err}:
		case <-r.over:
			if conn != nil {
				_ = conn.Close()
			}
		}
	}()
	if best.proxied {
		return proxiedPace
	}
	return pace
}

// lookUp starts a lookup of every name that will be dialled, once each.
func (r *race) lookUp(ctx context.Context) {
	var hosts []string
	for _, e := range r.to {
		if host := r.way.hop(e).Host; !slices.Contains(hosts, host) {
			hosts = append(hosts, host)
		}
	}
	r.lookups = len(hosts)
	for _, host := range hosts {
		go func() {
			addrs, err := r.way.lookUp(ctx, host)
			select {
			case r.resolved <- lookup{host, addrs, err}:
			case <-r.over:
			}
		}()
	}
}

// add adds candidates for the addresses of an answer.
func (r *race) add(l lookup) {
	if l.err != nil {
		r.errs = append(r.errs, l.err)
	}
	for place, e := range r.to {
		hop := r.way.hop(e)
		if hop.Host != l.host {
			continue
		}
		for depth, addr := range l.addrs {
			t := target{endpoint: e, hop: netip.AddrPortFrom(addr, hop.Port), proxied: r.way.Proxy.leadsTo(e)}
			r.waiting = append(r.waiting, candidate{t, depth, place})
		}
	}
}

// hop returns the endpoint to dial for e: e itself, or the proxy.
func (d *Dialer) hop(e model.Endpoint) model.Endpoint {
	if d.Proxy.leadsTo(e) {
		return d.Proxy.address
	}
	return e
}

// lookUp returns the addresses of a host, alternating between families. If the lookup fails, it returns the last known
// addresses and the error.
func (d *Dialer) lookUp(ctx context.Context, host string) ([]netip.Addr, error) {
	if addr, err := netip.ParseAddr(host); err == nil {
		return []netip.Addr{addr.Unmap()}, nil
	}
	ctx, cancel := context.WithTimeout(ctx, lookupTime)
	defer cancel()
	resolver := d.resolver
	if resolver == nil {
		resolver = net.DefaultResolver
	}
	addrs, err := resolver.LookupNetIP(ctx, "ip", host)
	d.mu.Lock()
	defer d.mu.Unlock()
	if err != nil {
		return d.known[host], fmt.Errorf("%s: %w", host, explainDial(err))
	}
	addrs = interleave(addrs)
	if d.known == nil {
		d.known = map[string][]netip.Addr{}
	}
	d.known[host] = addrs
	return addrs, nil
}

// interleave alternates between the family that the resolver prefers and the other one (RFC 8305, section 4).
func interleave(addrs []netip.Addr) []netip.Addr {
	var first, second []netip.Addr
	for _, addr := range addrs {
		addr = addr.Unmap()
		if len(first) == 0 || addr.Is4() == first[0].Is4() {
			first = append(first, addr)
		} else {
			second = append(second, addr)
		}
	}
	var mixed []netip.Addr
	for n := range max(len(first), len(second)) {
		mixed = append(mixed, first[min(n, len(first)):min(n+1, len(first))]...)
		mixed = append(mixed, second[min(n, len(second)):min(n+1, len(second))]...)
	}
	return mixed[:min(len(mixed), maxAnswers)]
}
