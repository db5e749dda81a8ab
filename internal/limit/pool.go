package limit

import (
	"math"
	"net"
	"sync"
)

// Pool is a Crowd of which half is reserved for addresses that have an allowance. While those don't need their half
// the others may use it, and give it back at once. It is safe for concurrent use.
type Pool struct {
	total int

	mu             sync.Mutex
	reserved, open *Crowd
}

// NewPool returns a pool with so many places in total. Open has its rules for the addresses without an allowance,
// as NewCrowd.
func NewPool(total int, open *Crowd) *Pool {
	return &Pool{total: total, open: open, reserved: NewCrowd(total/2, math.MaxInt, open.fair)}
}

// Join is Crowd.Join for an address that may have so many of the reserved places, 0 for none. Beyond its allowance
// an address is like any other.
func (p *Pool) Join(address net.Addr, allowance int, end func()) (leave func()) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if allowance > 0 && p.reserved.of(address) < allowance {
		if leave = p.reserved.Join(address, end); leave != nil {
			p.open.shrink(p.total - p.reserved.Used())
			return leave
		}
	}
	p.open.shrink(p.total - p.reserved.Used())
	return p.open.Join(address, end)
}

// Used is how many are here.
func (p *Pool) Used() int { return p.reserved.Used() + p.open.Used() }

// of is how many are here of an address.
func (c *Crowd) of(address net.Addr) int {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.addresses[Address(address)]
}

// Shares is what known callers of several groups hold at the same time. When all is taken, a group that has less
// than others takes the oldest of the one that has most: so a group never loses what it has while it has less than
// an equal share of the total. It is safe for concurrent use.
type Shares struct{ crowd *Crowd }

// NewShares returns shares of so many in total, so many for one caller, and so many for one group.
func NewShares(total, each, group int) *Shares {
	c := NewCrowd(total, each, math.MaxInt64) // nothing gives way to a group that has as much, however old it is
	c.group = group
	return &Shares{c}
}

// Join returns what ends the stay, or nil when there is no room for the caller or its group. End is called when the
// place has gone to another group; it must not block. The result may be called more than once, and after that.
func (s *Shares) Join(caller, group string, end func()) (leave func()) {
	return s.crowd.join(caller, group, end)
}

// Used is how many are taken.
func (s *Shares) Used() int { return s.crowd.Used() }
