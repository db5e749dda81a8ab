package tunnels

import (
	"errors"
	"net/netip"

	"github.com/fairlead/fairlead/pkg/sockets"
)

// Placed is a tunnel with the address that its edge dialled from.
type Placed struct {
	Tunnel
	From netip.Addr
}

// Places returns all tunnels, in no order.
func (t *Table) Places() []Placed {
	t.mu.Lock()
	defer t.mu.Unlock()
	all := make([]Placed, 0, len(t.live))
	for _, e := range t.live {
		all = append(all, Placed{e.Tunnel, e.Remote.Addr()})
	}
	return all
}

// Has says whether the table has the tunnel on a connection.
func (t *Table) Has(remote, local netip.AddrPort) bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.live[key(remote, local)] != nil
}

// Close ends the tunnels with some keys, and returns how many. The edges see a reset. It takes the right of Permitted.
func (t *Table) Close(keys []string) (closed int, err error) {
	t.mu.Lock()
	var found []*entry
	for _, key := range keys {
		if e := t.live[key]; e != nil {
			found = append(found, &entry{tunnel: e.tunnel}) // the socket of e belongs to the goroutine of Run
		}
	}
	t.mu.Unlock()
	var k sockets.Kernel
	defer k.Close()
	find := finder{kernel: &k}
	for _, e := range found {
		switch err := find.destroy(e); {
		case err == nil:
			closed++
		case !errors.Is(err, sockets.ErrGone):
			return closed, err
		}
	}
	return closed, nil
}
