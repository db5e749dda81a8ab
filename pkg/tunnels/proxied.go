package tunnels

import (
	"errors"
	"net/netip"

	"github.com/fairlead/fairlead/pkg/sockets"
)

// errNoFD is returned for a tunnel of which the log does not have the file descriptor.
var errNoFD = errors.New("the log does not have the file descriptor of the tunnel's socket")

// proxied returns the socket of a tunnel whose recorded addresses may be those of a PROXY header: see Config.Envoy.
//
// The kernel identifies it by Envoy's file descriptor. A descriptor may belong to a newer connection if the tunnel has
// ended and the log does not have that yet. Its event follows within the time for which Envoy buffers events, and
// removes the tunnel, so no other tunnel is mistaken for it for longer.
func (f *finder) proxied(e *entry) (sockets.Socket, error) {
	if err := f.list(); err != nil {
		return sockets.Socket{}, err
	}
	if e.socket != nil {
		for _, s := range f.all[e.socket.Remote] {
			if s.Cookie == e.socket.Cookie {
				return s, nil
			}
		}
		return sockets.Socket{}, sockets.ErrGone
	}
	if e.FD == 0 {
		return sockets.Socket{}, errNoFD
	}
	if f.pid == 0 {
		pid, err := f.envoy()
		if err != nil {
			return sockets.Socket{}, err
		}
		f.pid = pid
	}
	inode, err := sockets.Inode(f.pid, e.FD)
	if err != nil {
		return sockets.Socket{}, err
	}
	for _, all := range f.all {
		for _, s := range all {
			if s.Inode() == inode && sockets.AcceptedAt(f.public, s.Local) {
				return s, nil
			}
		}
	}
	return sockets.Socket{}, sockets.ErrGone
}

// bound records the socket of a tunnel.
func (t *Table) bound(e *entry, s sockets.Socket) {
	e.socket = &s
	if t.config.Envoy == nil || e.owner != "" {
		return
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.live[e.Key] == e {
		e.cookie = s.Cookie
		t.cookies[s.Cookie] = e
	}
}

// find returns a finder for a kernel.
func (t *Table) find(k *sockets.Kernel) finder {
	return finder{kernel: k, envoy: t.config.Envoy, public: []netip.AddrPort{t.config.Public}}
}
