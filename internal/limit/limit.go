// Package limit bounds how often, and how many at a time, things are done for callers of whom there may be any number. In
// go keys that callers may choose, out come decisions; what is remembered is bounded, and whoever makes up keys pushes
// out nothing but what was not used for longest.
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

// Rate is Burst times at once, and then once per Every.
type Rate struct {
	Every time.Duration
	Burst int
}

// Rates counts by key. It is safe for concurrent use.
type Rates struct {
	max int

	mu     sync.Mutex
	keys   map[string]*list.Element
	recent *list.List // of *bucket, that which was used last in front
}

type bucket struct {
	key     string
	limiter *rate.Limiter
}

// NewRates returns one that remembers at most that many keys.
func NewRates(keys int) *Rates {
	return &Rates{max: keys, keys: map[string]*list.Element{}, recent: list.New()}
}

// Take counts one more for a key and returns 0, or counts nothing and returns after how long it may be tried again.
func (r *Rates) Take(key string, by Rate) time.Duration {
	r.mu.Lock()
	defer r.mu.Unlock()
	limiter, now := r.of(key, by), time.Now()
	if limiter.AllowN(now, 1) {
		return 0
	}
	return wait(limiter, now)
}

// Reserve counts one more for a key, and returns after how long the caller may go on. Where that is longer than most it counts nothing
// and returns false. Callers go on in the order in which they came.
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

// Look returns what Take would, and counts nothing.
func (r *Rates) Look(key string, by Rate) time.Duration {
	r.mu.Lock()
	defer r.mu.Unlock()
	limiter, now := r.of(key, by), time.Now()
	if limiter.TokensAt(now) >= 1 {
		return 0
	}
	return wait(limiter, now)
}

// Len is how many keys are remembered.
func (r *Rates) Len() int {
	r.mu.Lock()
	defer r.mu.Unlock()
	return len(r.keys)
}

// of returns the bucket of a key, which a rate that has changed changes.
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

// wait is how long it takes until there is a whole token, rounded up so that whoever waits for it finds it.
func wait(limiter *rate.Limiter, now time.Time) time.Duration {
	missing := 1 - limiter.TokensAt(now)
	return time.Duration(math.Ceil(missing/float64(limiter.Limit())*1e3))*time.Millisecond + time.Millisecond
}

// Slots counts what goes on at the same time, in total and by key. It is safe for concurrent use.
type Slots struct {
	total, each int

	mu   sync.Mutex
	used int
	by   map[string]int // never more keys than slots are used
}

// NewSlots returns one that lets so many go on in total, and so many of them for each key.
func NewSlots(total, each int) *Slots {
	return &Slots{total: total, each: each, by: map[string]int{}}
}

// Take returns what gives the slot back, or nil when there is none left for the key. The result may be called more than
// once.
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

// Used is how many slots are taken.
func (s *Slots) Used() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.used
}

// Address is the key of whoever has an address: IPv4 as a whole, of IPv6 the /64, because a single machine may use all
// addresses of one.
func Address(address net.Addr) string { return prefix(address, 64) }

// Network is the key of whoever may have all of a network to himself: IPv4 as Address, of IPv6 the /48, which is what a single
// customer gets at most.
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
