package kubeconfigs

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"net"
	"net/netip"
	"slices"
	"sync"
	"time"

	"github.com/fairlead/fairlead/pkg/controller/config"
)

const (
	// lookupTimeout bounds how long one Cluster may block a worker.
	lookupTimeout = 2 * time.Second
	// lookupPause follows a lookup without an answer. It pauses all lookups if the name belongs to the installation,
	// otherwise those of one owner.
	lookupPause = 30 * time.Second
	// maxAsking is how many workers may wait for lookupTimeout for names that owners have chosen, because their servers
	// may never answer. Further ones wait for busyTimeout, within which DNS that works answers.
	maxAsking   = kubeconfigWorkers / 4
	busyTimeout = 250 * time.Millisecond
	// lookupInterval is how often a hostname is looked up again.
	lookupInterval = 10 * time.Minute
)

// answer is the state of a hostname.
type answer int

const (
	unknown answer = iota
	yes
	no
)

// resolver determines whether hostnames resolve to the gateways. The fields mode, lookup and now are required.
type resolver struct {
	mode   config.TunnelDNS
	lookup func(ctx context.Context, host string) ([]string, error)
	now    func() time.Time

	mu          sync.Mutex
	pausedUntil map[string]time.Time // by the owner of the names; empty: the installation, and with it all others
	asking      int                  // lookups of names that owners have chosen
}

// resolves reports whether clients reach the gateways by a tunnel hostname: by the setting for all of them, otherwise
// as leadsTo finds.
func (r *resolver) resolves(ctx context.Context, hostname, gateway string) answer {
	switch r.mode {
	case config.TunnelDNSYes:
		return yes
	case config.TunnelDNSNo:
		return no
	}
	return r.leadsTo(ctx, "", hostname, gateway)
}

// leadsTo reports whether clients that dial a host by its name reach the gateways: every address of hostname must also
// be an address of gateway, which is a name or an IP address. The mere existence of an answer proves nothing: wildcard
// records, and resolvers without NXDOMAIN, answer for every name. The result is unknown while DNS does not work.
//
// owner is the namespace that has chosen hostname, or empty for a tunnel hostname. The servers of a name that a
// namespace chooses may never answer, which must not stop the lookups of others.
func (r *resolver) leadsTo(ctx context.Context, owner, hostname, gateway string) answer {
	timeout, ok := r.begin(owner)
	if !ok {
		return unknown
	}
	defer r.finish(owner)
	caller := ctx
	ctx, cancel := context.WithTimeout(ctx, timeout)
	defer cancel()
	// First, because without the gateways' addresses an answer for the hostname is meaningless.
	gateways, err := r.addresses(ctx, gateway)
	if err != nil {
		if !notFound(err) && timeout == lookupTimeout {
			r.pause(caller, "")
		}
		return unknown
	}
	found, err := r.addresses(ctx, hostname)
	switch {
	case err != nil && !notFound(err):
		r.pause(caller, owner)
		return unknown
	case err != nil || len(found) == 0:
		return no
	}
	if slices.ContainsFunc(found, func(a netip.Addr) bool { return !slices.Contains(gateways, a) }) {
		return no
	}
	return yes
}

// addresses resolves a host. An IP address resolves to itself.
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

// notFound reports whether DNS works and the name does not exist.
func notFound(err error) bool {
	var dnsErr *net.DNSError
	return errors.As(err, &dnsErr) && dnsErr.IsNotFound
}

// begin reports whether a name of an owner may be looked up now, and for how long: lookups must not be paused. If so,
// finish must follow.
func (r *resolver) begin(owner string) (timeout time.Duration, ok bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	now := r.now()
	if now.Before(r.pausedUntil[""]) || now.Before(r.pausedUntil[owner]) {
		return 0, false
	}
	if owner == "" {
		return lookupTimeout, true
	}
	r.asking++
	if r.asking > maxAsking {
		return busyTimeout, true
	}
	return lookupTimeout, true
}

func (r *resolver) finish(owner string) {
	if owner == "" {
		return
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	r.asking--
}

// pause pauses lookups of an owner's names, unless the caller ended this one before its timeout.
func (r *resolver) pause(caller context.Context, owner string) {
	if caller.Err() != nil {
		return
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	now := r.now()
	maps.DeleteFunc(r.pausedUntil, func(_ string, until time.Time) bool { return !now.Before(until) })
	if r.pausedUntil == nil {
		r.pausedUntil = map[string]time.Time{}
	}
	r.pausedUntil[owner] = now.Add(lookupPause)
}
