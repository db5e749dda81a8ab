package admission

import (
	"container/list"
	"time"
)

// bucket is a token bucket. The zero value is full at its first use.
type bucket struct {
	tokens float64
	at     time.Time // when tokens was updated
}

// fill adds the tokens since the last update.
func (b *bucket) fill(now time.Time, rate, burst float64) {
	switch {
	case b.at.IsZero():
		b.tokens, b.at = burst, now
	case now.After(b.at):
		b.tokens += now.Sub(b.at).Seconds() * rate
		b.at = now
	}
	b.tokens = min(b.tokens, burst)
}

// has reports whether a token is available. It takes none.
func (b *bucket) has(now time.Time, rate, burst float64) bool {
	b.fill(now, rate, burst)
	return b.tokens >= 1
}

// class is whether a source is known.
type class int

const (
	unknownSource class = iota
	knownSource         // an edge has recently opened a reverse tunnel from it
	classes
)

// epoch is how long a source counts as active after a connection: one epoch at least, two at most.
const epoch = time.Second

// pool is the capacity for one kind of connections: one half for each class.
type pool struct {
	halves [classes]bucket
	epoch  int64
	active [classes]int // sources in this epoch
	before [classes]int // sources in the previous epoch
}

// take takes a token, and reports whether there was one. A source within its fair share of its half may take the last
// token of that half. A source beyond its fair share may only take from the upper part of its half, and a known source
// also from that of the other half, so that a source that dials more than others does not displace them.
func (p *pool) take(now time.Time, rate float64, of class, share *bucket, last *int64) bool {
	p.count(now, of, last)
	half := rate / 2
	burst := max(1, half)
	for i := range p.halves {
		p.halves[i].fill(now, half, burst)
	}
	fair := half / float64(max(p.active[of], p.before[of], 1))
	within := share.has(now, fair, max(4, 2*fair))
	own := &p.halves[of]
	switch {
	case within && own.tokens >= 1:
		share.tokens--
	case own.tokens >= max(1, burst/2):
	case of == knownSource && p.halves[unknownSource].tokens >= max(1, burst/2):
		own = &p.halves[unknownSource]
	default:
		return false
	}
	own.tokens--
	return true
}

// count counts the active sources of a class.
func (p *pool) count(now time.Time, of class, last *int64) {
	if e := now.UnixNano() / int64(epoch); e != p.epoch {
		p.before = [classes]int{}
		if e == p.epoch+1 {
			p.before = p.active
		}
		p.epoch, p.active = e, [classes]int{}
	}
	if *last != p.epoch {
		*last = p.epoch
		p.active[of]++
	}
}

// lru is a map that evicts the least recently used key when it is full.
type lru[K comparable, V any] struct {
	max    int
	keys   map[K]*list.Element
	recent *list.List // of item[K, V]; the most recently used is in front
}

type item[K comparable, V any] struct {
	key   K
	value V
}

func newLRU[K comparable, V any](most int) *lru[K, V] {
	return &lru[K, V]{max: most, keys: map[K]*list.Element{}, recent: list.New()}
}

// get returns the value of a key, or the zero value.
func (l *lru[K, V]) get(key K) (v V) {
	if e, ok := l.keys[key]; ok {
		l.recent.MoveToFront(e)
		return e.Value.(item[K, V]).value
	}
	return v
}

// valueOf returns the value of a key, which it adds if there is none.
func valueOf[K comparable, V any](l *lru[K, *V], key K) *V {
	v := l.get(key)
	if v == nil {
		v = new(V)
		l.put(key, v)
	}
	return v
}

// put adds a key that must not exist.
func (l *lru[K, V]) put(key K, value V) {
	if len(l.keys) >= l.max {
		delete(l.keys, l.recent.Remove(l.recent.Back()).(item[K, V]).key)
	}
	l.keys[key] = l.recent.PushFront(item[K, V]{key, value})
}
