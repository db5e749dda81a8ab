package tunnels

import (
	"errors"
	"net/netip"

	"github.com/fairlead/fairlead/pkg/sockets"
	"github.com/fairlead/fairlead/pkg/tunnels/ledger"
)

// Placed is a tunnel or a connection, with the address from which its node dialled.
type Placed struct {
	Tunnel
	From  netip.Addr
	Owner string // of a connection, as in its record; empty: it is a tunnel
	Lane  bool   // a tunnel of a lane
}

// Places returns all tunnels in no particular order.
func (t *Table) Places() []Placed {
	t.mu.Lock()
	defer t.mu.Unlock()
	all := make([]Placed, 0, len(t.live))
	for _, e := range t.live {
		all = append(all, Placed{Tunnel: e.Tunnel, From: e.Remote.Addr(), Lane: e.Lane})
	}
	return all
}

// Has reports whether the table has a tunnel on the connection.
func (t *Table) Has(remote, local netip.AddrPort) bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.live[ledger.Key(remote, local)] != nil
}

// Close closes the tunnels and connections with the given keys and returns the number of closed ones. It ignores
// unknown keys. The nodes receive a reset. It requires the capability that sockets.Permitted checks.
func (t *Table) Close(keys []string) (closed int, err error) {
	t.mu.Lock()
	var found []*entry
	for _, key := range keys {
		e := t.live[key]
		if e == nil {
			e = t.conns.all[key]
		}
		if e != nil { // the socket of e is used only by Run's goroutine
			found = append(found, &entry{tunnel: e.tunnel, owner: e.owner})
		}
	}
	t.mu.Unlock()
	var k sockets.Kernel
	defer k.Close()
	find := t.find(&k)
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
