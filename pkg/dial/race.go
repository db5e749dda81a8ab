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
	// maxAnswers bounds how many addresses of one name and family are tried.
	maxAnswers = 8
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

// lookup is a part of the result of a lookup: the addresses of one family, or an error, or both.
type lookup struct {
	host  string
	addrs []netip.Addr
	err   error
	last  bool // of this host
}

type attempt struct {
	target target
	conn   net.Conn
	err    error
}

// candidate is a target and its rank.
type candidate struct {
	target
	depth, place int // index of the address in the answer for its name and family, and of the endpoint in race.to
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
			if l.last {
				r.lookups--
			}
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
			cmp.Compare(a.place, b.place), cmp.Compare(b.hop.Addr().BitLen(), a.hop.Addr().BitLen()), // IPv6 first
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

// lookUp starts the lookups of every name that will be dialled, once each.
func (r *race) lookUp(ctx context.Context) {
	var hosts []string
	for _, e := range r.to {
		if host := r.way.hop(e).Host; !slices.Contains(hosts, host) {
			hosts = append(hosts, host)
		}
	}
	r.lookups = len(hosts)
	for _, host := range hosts {
		go r.way.lookUp(ctx, host, func(l lookup) {
			select {
			case r.resolved <- l:
			case <-r.over:
			}
		})
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

// family is a family of addresses, as a resolver names it.
type family string

const (
	ipv4 family = "ip4"
	ipv6 family = "ip6"
)

// question is what DNS is asked.
type question struct {
	host string
	of   family
}

// answer is the answer to a question. If err is not nil, addrs are the last known ones.
type answer struct {
	question
	addrs []netip.Addr
	none  bool // the name has no address of this family
	err   error
}

// lookUp looks up the addresses of a host, of both families at the same time. It reports the addresses of a family as
// soon as they are known, because some resolvers do not answer questions about IPv6. If a lookup fails, it reports the
// last known addresses and the error. A family without addresses is an error only if the other one has none either.
func (d *Dialer) lookUp(ctx context.Context, host string, report func(lookup)) {
	if addr, err := netip.ParseAddr(host); err == nil {
		report(lookup{host: host, addrs: []netip.Addr{addr.Unmap()}, last: true})
		return
	}
	ctx, cancel := context.WithTimeout(ctx, lookupTime)
	defer cancel()
	answers := make(chan answer, 2)
	for _, of := range []family{ipv6, ipv4} {
		go func() { answers <- d.ask(ctx, question{host, of}) }()
	}
	first := <-answers
	if !first.none {
		report(lookup{host: host, addrs: first.addrs, err: first.err})
	}
	second := <-answers
	switch {
	case first.none && second.none:
		second.addrs = append(second.addrs, first.addrs...)
	case second.none:
		d.forgetUnless(first.err, second.question)
		second.addrs, second.err = nil, nil
	case first.none:
		d.forgetUnless(second.err, first.question)
	case first.err != nil:
		second.err = nil // one error is enough
	}
	report(lookup{host: host, addrs: second.addrs, err: second.err, last: true})
}

// ask asks DNS.
func (d *Dialer) ask(ctx context.Context, q question) answer {
	resolver := d.resolver
	if resolver == nil {
		resolver = net.DefaultResolver
	}
	addrs, err := resolver.LookupNetIP(ctx, string(q.of), q.host)
	d.mu.Lock()
	defer d.mu.Unlock()
	if err != nil {
		var dns *net.DNSError
		var unsuitable *net.AddrError // the hosts file has an address of the other family
		none := errors.As(err, &dns) && dns.IsNotFound || errors.As(err, &unsuitable)
		return answer{q, d.known[q], none, fmt.Errorf("%s: %w", q.host, explainDial(err))}
	}
	addrs = addrs[:min(len(addrs), maxAnswers)]
	for i, addr := range addrs {
		addrs[i] = addr.Unmap()
	}
	if d.known == nil {
		d.known = map[question][]netip.Addr{}
	}
	d.known[q] = addrs
	return answer{q, addrs, false, nil}
}

// forgetUnless removes a last known answer, unless err is not nil.
func (d *Dialer) forgetUnless(err error, q question) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if err == nil {
		delete(d.known, q)
	}
}
