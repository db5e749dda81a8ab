package controller

import (
	"context"
	"errors"
	"net"
	"sync"
	"time"
)

const (
	// lookupTimeout bounds how long one Cluster may hold up a worker.
	lookupTimeout = 2 * time.Second
	// lookupPause follows a lookup without an answer: when DNS is down, workers wait once in a while, not for every Cluster.
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

// resolver finds out whether hostnames resolve. Its zero value does not work: mode, lookup and now are needed.
type resolver struct {
	mode   TunnelDNS
	lookup func(ctx context.Context, host string) ([]string, error)
	now    func() time.Time

	mu          sync.Mutex
	pausedUntil time.Time
}

// resolves says whether clients can dial a hostname by its name. The answer is unknown while DNS does not work.
func (r *resolver) resolves(ctx context.Context, hostname string) answer {
	switch r.mode {
	case TunnelDNSYes:
		return yes
	case TunnelDNSNo:
		return no
	}
	if r.paused() {
		return unknown
	}
	ctx, cancel := context.WithTimeout(ctx, lookupTimeout)
	defer cancel()
	_, err := r.lookup(ctx, hostname)
	var dnsErr *net.DNSError
	switch {
	case err == nil:
		return yes
	case errors.As(err, &dnsErr) && dnsErr.IsNotFound:
		return no
	}
	r.pause()
	return unknown
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
