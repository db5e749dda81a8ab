package limit

import (
	"container/heap"
	"container/list"
	"net"
	"sync"
	"time"
)

// Crowd is who is here at the same time, of whom nothing is known but the address. When it is full, whoever comes takes the
// place of the one that is here for longest of the network that has most: so whoever has many addresses pushes out himself,
// and nobody who has few. It is safe for concurrent use.
type Crowd struct {
	total, each int
	group       int // how many of one network; 0: any number
	fair        time.Duration

	mu        sync.Mutex
	used      int
	addresses map[string]int // how many are here of each
	networks  map[string]*network
	largest   networks
}

// network is who is here of one network.
type network struct {
	key     string
	members *list.List // of *member, who came first in front
	index   int        // in the heap
}

type member struct {
	address string
	of      *network
	since   time.Time
	element *list.Element // nil: gone
	end     func()
}

// NewCrowd returns one with room for so many in total, and so many of each address. Whoever came less than fair ago gives
// way only to somebody whose network has fewer: else, where many come at once, nobody would stay for long enough.
func NewCrowd(total, each int, fair time.Duration) *Crowd {
	return &Crowd{total: total, each: each, fair: fair, addresses: map[string]int{}, networks: map[string]*network{}}
}

// Join returns what ends the stay, or nil when there is no room. end is called when the place has gone to somebody else; it
// must not block. The result may be called more than once, and after that.
func (c *Crowd) Join(address net.Addr, end func()) (leave func()) {
	return c.join(Address(address), Network(address), end)
}

func (c *Crowd) join(key, of string, end func()) (leave func()) {
	c.mu.Lock()
	if n := c.networks[of]; c.addresses[key] >= c.each || c.group > 0 && n != nil && n.members.Len() >= c.group {
		c.mu.Unlock()
		return nil
	}
	var gone *member
	if c.used >= c.total {
		if gone = c.victim(of); gone == nil {
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

// Used is how many are here.
func (c *Crowd) Used() int {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.used
}

// shrink sets how many may be here in total from now on, and ends the stay of those of the largest networks that are too many.
func (c *Crowd) shrink(total int) {
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

// victim is who gives way to somebody of a network, nil: nobody.
func (c *Crowd) victim(of string) *member {
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

// networks is a heap.Interface: the largest comes first, of those of one size that with the one who is here for longest.
type networks []*network

// Len implements heap.Interface.
func (n networks) Len() int { return len(n) }

// Less implements heap.Interface. It is called for one that has become empty too, before that is removed.
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
