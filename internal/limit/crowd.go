package limit

import (
	"container/heap"
	"container/list"
	"net"
	"sync"
	"time"
)

// Crowd limits how many callers are present at the same time, when only their addresses are known. When it is full, a
// new caller takes the place of the caller that has been present longest in the largest network. A caller with many
// addresses therefore displaces only its own connections, and never a network with few. Crowd is safe for concurrent
// use.
type Crowd struct {
	total, each int
	group       int // the most members of one network; 0: no limit
	fair        time.Duration

	mu        sync.Mutex
	used      int
	addresses map[string]int // members by address
	networks  map[string]*network
	largest   networks
}

// network holds the members that come from one network.
type network struct {
	key     string
	members *list.List // of *member, oldest first
	index   int        // in the heap
}

type member struct {
	address string
	of      *network
	since   time.Time
	element *list.Element // nil: removed
	end     func()
}

// NewCrowd returns a Crowd with room for total members, and for each members of one address. A member that has been
// present for less than fair is displaced only for a network that has fewer members, even after the new caller has
// joined. Otherwise, when many callers arrive at once, no member would stay long enough.
func NewCrowd(total, each int, fair time.Duration) *Crowd {
	return &Crowd{total: total, each: each, fair: fair, addresses: map[string]int{}, networks: map[string]*network{}}
}

// Join adds a member and returns a function that removes it, or nil if there is no room. end is called when another
// member has taken the place; it must not block. The returned function may be called more than once, and after end.
func (c *Crowd) Join(address net.Addr, end func()) (leave func()) {
	return c.join(Address(address), Network(address), end)
}

func (c *Crowd) join(key, of string, end func()) (leave func()) {
	c.mu.Lock()
	if c.limited(key, of) {
		c.mu.Unlock()
		return nil
	}
	var gone *member
	if c.used >= c.total {
		if gone = c.evictionCandidate(of); gone == nil {
			c.mu.Unlock()
			return nil
		}
		c.remove(gone)
	}
	m := c.add(key, of, end)
	c.mu.Unlock()
	if gone != nil {
		gone.end()
	}
	return func() {
		c.mu.Lock()
		defer c.mu.Unlock()
		c.remove(m)
	}
}

// limited reports whether an address or a network has as many members as it may have. The caller holds the lock.
func (c *Crowd) limited(key, of string) bool {
	n := c.networks[of]
	return c.addresses[key] >= c.each || c.group > 0 && n != nil && n.members.Len() >= c.group
}

// needsSpare reports whether an address has a member, and only the total keeps it from another one.
func (c *Crowd) needsSpare(key, of string) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.addresses[key] > 0 && !c.limited(key, of)
}

// Used returns the number of members.
func (c *Crowd) Used() int {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.used
}

// resize sets the number of members that are allowed from now on, and ends excess members of the largest networks.
func (c *Crowd) resize(total int) {
	var gone []*member
	c.mu.Lock()
	c.total = total
	for c.used > total {
		m := c.largest[0].first()
		c.remove(m)
		gone = append(gone, m)
	}
	c.mu.Unlock()
	for _, m := range gone {
		m.end()
	}
}

// evictionCandidate returns the member that a new member of a network displaces, or nil if there is none.
func (c *Crowd) evictionCandidate(of string) *member {
	if len(c.largest) == 0 {
		return nil
	}
	have := 0
	if n := c.networks[of]; n != nil {
		have = n.members.Len()
	}
	m := c.largest[0].first()
	if c.largest[0].members.Len() > have+1 || time.Since(m.since) >= c.fair {
		return m
	}
	return nil
}

func (c *Crowd) add(address, of string, end func()) *member {
	n := c.networks[of]
	if n == nil {
		n = &network{key: of, members: list.New()}
	}
	m := &member{address: address, of: n, since: time.Now(), end: end}
	m.element = n.members.PushBack(m)
	if n.members.Len() == 1 {
		c.networks[of] = n
		heap.Push(&c.largest, n)
	} else {
		heap.Fix(&c.largest, n.index)
	}
	c.used++
	c.addresses[address]++
	return m
}

func (c *Crowd) remove(m *member) {
	if m.element == nil {
		return
	}
	m.of.members.Remove(m.element)
	m.element = nil
	if m.of.members.Len() == 0 {
		delete(c.networks, m.of.key)
		heap.Remove(&c.largest, m.of.index)
	} else {
		heap.Fix(&c.largest, m.of.index)
	}
	c.used--
	if c.addresses[m.address]--; c.addresses[m.address] == 0 {
		delete(c.addresses, m.address)
	}
}

func (n *network) first() *member { return n.members.Front().Value.(*member) }

// networks is a heap.Interface. The largest network comes first. Of two networks with the same size, the one with the
// older member comes first.
type networks []*network

// Len implements heap.Interface.
func (n networks) Len() int { return len(n) }

// Less implements heap.Interface. It is also called for a network that has just become empty, before its removal.
func (n networks) Less(i, j int) bool {
	a, b := n[i].members.Len(), n[j].members.Len()
	if a != b || a == 0 {
		return a > b
	}
	return n[i].first().since.Before(n[j].first().since)
}

// Swap implements heap.Interface.
func (n networks) Swap(i, j int) {
	n[i], n[j] = n[j], n[i]
	n[i].index, n[j].index = i, j
}

// Push implements heap.Interface.
func (n *networks) Push(x any) {
	added := x.(*network)
	added.index = len(*n)
	*n = append(*n, added)
}

// Pop implements heap.Interface.
func (n *networks) Pop() any {
	last := len(*n) - 1
	removed := (*n)[last]
	(*n)[last] = nil
	*n = (*n)[:last]
	return removed
}
