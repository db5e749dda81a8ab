package limit

import (
	"math"
	"net"
	"sync"
	"time"
)

// Pool is a Crowd with half of its places reserved for addresses that have an allowance. Other addresses may use
// reserved places while they are free, and lose them at once when they are needed. Pool is safe for concurrent use.
type Pool struct {
	total int

	mu             sync.Mutex
	reserved, open *Crowd
}

// NewPool returns a Pool with total places. open is a Crowd, made by NewCrowd, whose limits apply to the addresses
// without an allowance.
func NewPool(total int, open *Crowd) *Pool {
	return &Pool{total: total, open: open, reserved: NewCrowd(total/2, math.MaxInt, open.fair)}
}

// Join is Crowd.Join for an address that may use up to allowance reserved places; 0 means none. Beyond its allowance an
// address is treated like any other.
func (p *Pool) Join(address net.Addr, allowance int, end func()) (leave func()) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if allowance > 0 && p.reserved.of(address) < allowance {
		if leave = p.reserved.Join(address, end); leave != nil {
			p.open.resize(p.total - p.reserved.Used())
			return leave
		}
	}
	p.open.resize(p.total - p.reserved.Used())
	return p.open.Join(address, end)
}

// Used returns the number of members.
func (p *Pool) Used() int { return p.reserved.Used() + p.open.Used() }

// of returns the number of members with an address.
func (c *Crowd) of(address net.Addr) int {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.addresses[Address(address)]
}

// Shares limits what known callers of several groups hold at the same time. When all places are taken, a group that has
// fewer than others takes the oldest place of the group that has most. So a group never loses a place while it has less
// than an equal share of the total. A few spare places beyond the total are for callers that have a place, such as an
// edge that renews its certificate by a second connection. They do not count in the shares, so that a caller with a
// spare place loses nothing by it, and no other gets a place by it. A member that stays in one gives no
// right to another one. Shares is safe for concurrent use.
type Shares struct{ places, spare *Crowd }

const (
	// sharesSpare is the number of places of Shares for which there is a spare one.
	sharesSpare = 32
	// spareTime is how long a spare place cannot be taken by a group that has as many. A renewal takes at most 25 s.
	spareTime = 30 * time.Second
)

// NewShares returns Shares of total places, with at most each for one caller and group for one group.
func NewShares(total, each, group int) *Shares {
	c := NewCrowd(total, each, math.MaxInt64) // no age makes a member give way to a group that has as many
	c.group = group
	return &Shares{c, NewCrowd(total/sharesSpare, 1, spareTime)}
}

// Join adds a member and returns a function that removes it, or nil if there is no room for the caller or its group.
// end is called when another group has taken the place; it must not block. The returned function may be called more
// than once, and after end.
func (s *Shares) Join(caller, group string, end func()) (leave func()) {
	if leave = s.places.join(caller, group, end); leave == nil && s.places.needsSpare(caller, group) {
		leave = s.spare.join(caller, group, end)
	}
	return leave
}

// Resize sets the number of places from now on. Members in excess lose theirs at once: the oldest of the groups that
// have most.
func (s *Shares) Resize(total int) {
	s.places.resize(total)
	s.spare.resize(total / sharesSpare)
}

// Used returns the number of places that are taken.
func (s *Shares) Used() int { return s.places.Used() + s.spare.Used() }
