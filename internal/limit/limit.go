// Package limit bounds how often, and how many at the same time, things are done for an unbounded number of callers.
// Its input is keys that callers may choose. Its output is decisions. Its memory is bounded: a caller that invents keys
// displaces only the keys that were used least recently.
package limit

import (
	"container/list"
	"math"
	"net"
	"net/netip"
	"sync"
	"time"

	"golang.org/x/time/rate"
)

// Rate allows Burst events at once, and then one per Every.
type Rate struct {
	Every time.Duration
	Burst int
}

// Rates limits the rate of each key. It is safe for concurrent use.
type Rates struct {
	max int

	mu     sync.Mutex
	keys   map[string]*list.Element
	recent *list.List // of *bucket, most recently used first
}

type bucket struct {
	key     string
	limiter *rate.Limiter
}

// NewRates returns Rates that store at most the given number of keys.
func NewRates(keys int) *Rates {
	return &Rates{max: keys, keys: map[string]*list.Element{}, recent: list.New()}
}

// Take counts one event for a key and returns 0, or counts nothing and returns the time after which the caller may try
// again.
func (r *Rates) Take(key string, by Rate) time.Duration {
	r.mu.Lock()
	defer r.mu.Unlock()
	limiter, now := r.of(key, by), time.Now()
	if limiter.AllowN(now, 1) {
		return 0
	}
	return wait(limiter, now)
}

// Reserve counts one event for a key, and returns how long the caller has to wait before it. If that is longer than
// most, Reserve counts nothing and returns false. Callers proceed in the order of their calls.
func (r *Rates) Reserve(key string, by Rate, most time.Duration) (wait time.Duration, ok bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	now := time.Now()
	reservation := r.of(key, by).ReserveN(now, 1)
	if wait = reservation.DelayFrom(now); wait > most {
		reservation.CancelAt(now)
		return wait, false
	}
	return wait, true
}

// Peek returns what Take would return, and counts nothing.
func (r *Rates) Peek(key string, by Rate) time.Duration {
	r.mu.Lock()
	defer r.mu.Unlock()
	limiter, now := r.of(key, by), time.Now()
	if limiter.TokensAt(now) >= 1 {
		return 0
	}
	return wait(limiter, now)
}

// Len returns the number of keys that are stored.
func (r *Rates) Len() int {
	r.mu.Lock()
	defer r.mu.Unlock()
	return len(r.keys)
}

// of returns the bucket of a key, and applies the rate to it if the rate has changed.
func (r *Rates) of(key string, by Rate) *rate.Limiter {
	every := rate.Every(by.Every)
	if e, ok := r.keys[key]; ok {
		r.recent.MoveToFront(e)
		limiter := e.Value.(*bucket).limiter
		if limiter.Limit() != every {
			limiter.SetLimit(every)
		}
		if limiter.Burst() != by.Burst {
			limiter.SetBurst(by.Burst)
		}
		return limiter
	}
	if len(r.keys) >= r.max {
		oldest := r.recent.Back()
		delete(r.keys, r.recent.Remove(oldest).(*bucket).key)
	}
	b := &bucket{key: key, limiter: rate.NewLimiter(every, by.Burst)}
	r.keys[key] = r.recent.PushFront(b)
	return b.limiter
}

// wait returns the time until a whole token is available, rounded up so that a caller that waits for it gets it.
func wait(limiter *rate.Limiter, now time.Time) time.Duration {
	missing := 1 - limiter.TokensAt(now)
	return time.Duration(math.Ceil(missing/float64(limiter.Limit())*1e3))*time.Millisecond + time.Millisecond
}

// Slots counts what is in progress at the same time, in total and by key. It is safe for concurrent use.
type Slots struct {
	total, each int

	mu   sync.Mutex
	used int
	by   map[string]int // has at most as many keys as slots are used
}

// NewSlots returns Slots that allow total tasks at the same time, and each tasks for one key.
func NewSlots(total, each int) *Slots {
	return &Slots{total: total, each: each, by: map[string]int{}}
}

// Take takes a slot and returns a function that releases it, or nil if no slot is left for the key. The function may be
// called more than once.
func (s *Slots) Take(key string) (release func()) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.used >= s.total || s.by[key] >= s.each {
		return nil
	}
	s.used++
	s.by[key]++
	return sync.OnceFunc(func() {
		s.mu.Lock()
		defer s.mu.Unlock()
		s.used--
		if s.by[key]--; s.by[key] == 0 {
			delete(s.by, key)
		}
	})
}

// Used returns the number of slots that are taken.
func (s *Slots) Used() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.used
}

// Address returns the key of a single host: a whole IPv4 address, or the /64 of an IPv6 address, because one machine
// may use all addresses of a /64.
func Address(address net.Addr) string { return prefix(address, 64) }

// Network returns the key of a network that one customer may own: a whole IPv4 address, or the /48 of an IPv6 address,
// the most that one customer usually gets.
func Network(address net.Addr) string { return prefix(address, 48) }

func prefix(address net.Addr, bits int) string {
	if address == nil {
		return ""
	}
	parsed, err := netip.ParseAddrPort(address.String())
	if err != nil {
		return address.String()
	}
	ip := parsed.Addr().Unmap().WithZone("")
	if ip.Is4() {
		return ip.String()
	}
	within, err := ip.Prefix(bits)
	if err != nil {
		return ip.String()
	}
	return within.String()
}
