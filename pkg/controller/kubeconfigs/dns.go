package kubeconfigs

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"slices"
	"sync"
	"time"

	"github.com/fairlead/fairlead/pkg/controller/config"
)

const (
	// lookupTimeout bounds how long one Cluster may hold up a worker.
	lookupTimeout = 2 * time.Second
	// lookupPause follows a lookup without an answer: when DNS is down, workers wait once in a while, not for every
	// Cluster.
	lookupPause = 30 * time.Second
	// lookupInterval is how often a hostname is looked up again.
	lookupInterval = 10 * time.Minute
)

// answer is what is known of a hostname.
type answer int

const (
	unknown answer = iota
	yes
	no
)

// resolver finds out whether hostnames resolve to the gateways. Its zero value does not work: mode, lookup and now
// are needed.
type resolver struct {
	mode   config.TunnelDNS
	lookup func(ctx context.Context, host string) ([]string, error)
	now    func() time.Time

	mu          sync.Mutex
	pausedUntil time.Time
}

// resolves says whether clients reach the gateways when they dial a tunnel hostname by its name: as was said for all
// of them, or else as leadsTo finds out.
func (r *resolver) resolves(ctx context.Context, hostname, gateway string) answer {
	switch r.mode {
	case config.TunnelDNSYes:
		return yes
	case config.TunnelDNSNo:
		return no
	}
	return r.leadsTo(ctx, hostname, gateway)
}

// leadsTo says whether clients reach the gateways when they dial a host by its name: whether it has no address that
// gateway, a name or an IP address, does not have. An answer alone proves nothing: a wildcard record, or a resolver
// that knows no NXDOMAIN, gives one for every name. The answer is unknown while DNS does not work.
func (r *resolver) leadsTo(ctx context.Context, hostname, gateway string) answer {
	if r.paused() {
		return unknown
	}
	ctx, cancel := context.WithTimeout(ctx, lookupTimeout)
	defer cancel()
	// First, because without it no answer for the hostname means anything.
	gateways, err := r.addresses(ctx, gateway)
	if err != nil {
		if !notFound(err) {
			r.pause()
		}
		return unknown
	}
	found, err := r.addresses(ctx, hostname)
	switch {
	case err != nil && !notFound(err):
		r.pause()
		return unknown
	case err != nil || len(found) == 0:
		return no
	}
	if slices.ContainsFunc(found, func(a netip.Addr) bool { return !slices.Contains(gateways, a) }) {
		return no
	}
	return yes
}

// addresses looks a host up; an IP address stands for itself.
func (r *resolver) addresses(ctx context.Context, host string) ([]netip.Addr, error) {
	if a, err := netip.ParseAddr(host); err == nil {
		return []netip.Addr{a.Unmap()}, nil
	}
	found, err := r.lookup(ctx, host)
	if err != nil {
		return nil, err
	}
	all := make([]netip.Addr, 0, len(found))
	for _, s := range found {
		a, err := netip.ParseAddr(s)
		if err != nil {
			return nil, fmt.Errorf("reading address of %s: %w", host, err)
		}
		all = append(all, a.Unmap())
	}
	return all, nil
}

// notFound says whether DNS works and has no such name.
func notFound(err error) bool {
	var dnsErr *net.DNSError
	return errors.As(err, &dnsErr) && dnsErr.IsNotFound
}

func (r *resolver) paused() bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.now().Before(r.pausedUntil)
}

func (r *resolver) pause() {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.pausedUntil = r.now().Add(lookupPause)
}
