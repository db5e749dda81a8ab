package tunnels

import (
	"errors"
	"net/netip"

	"github.com/fairlead/fairlead/pkg/sockets"
)

// errAmbiguous is returned if an address has several connections and it is not known which one is the tunnel.
var errAmbiguous = errors.New("the address has several connections, and the log does not identify the tunnel")

// finder looks up the sockets of tunnels. It lists all sockets at most once.
type finder struct {
	kernel *sockets.Kernel
	all    map[netip.AddrPort][]sockets.Socket // nil: not listed yet
	// The fields below are for sockets that are found by their file descriptors: see Config.Envoy.
	envoy  func() (pid int, err error) // nil: they are found by their addresses
	public []netip.AddrPort
	pid    int // 0: not obtained yet
}

// socket returns the socket of a tunnel, or sockets.ErrGone if there is none.
func (f *finder) socket(e *entry) (sockets.Socket, error) {
	if f.envoy != nil && e.owner == "" { // records of connections have the addresses of the sockets
		return f.proxied(e)
	}
	if e.Local.IsValid() {
		s, err := f.kernel.Get(e.Local, e.Remote)
		if err != nil {
			return sockets.Socket{}, err
		}
		return pick([]sockets.Socket{s}, e)
	}
	if err := f.list(); err != nil {
		return sockets.Socket{}, err
	}
	return pick(f.all[e.Remote], e)
}

// list lists all sockets unless they were listed.
func (f *finder) list() error {
	if f.all != nil {
		return nil
	}
	all, err := f.kernel.Dump(sockets.Connected)
	if err == nil {
		f.all = byRemote(all)
	}
	return err
}

// destroy destroys the socket of a tunnel. It returns sockets.ErrGone if there is none.
func (f *finder) destroy(e *entry) error {
	if e.socket == nil {
		s, err := f.socket(e)
		if err != nil {
			return err
		}
		e.socket = &s
	}
	return f.kernel.Destroy(*e.socket)
}

func byRemote(all []sockets.Socket) map[netip.AddrPort][]sockets.Socket {
	present := make(map[netip.AddrPort][]sockets.Socket, len(all))
	for _, s := range all {
		present[s.Remote] = append(present[s.Remote], s)
	}
	return present
}

// pick returns the socket of a tunnel from the sockets of one remote address. A socket that was found before remains
// the tunnel's. If there were ever several, the last remaining one is ambiguous too, because the tunnel's may be the
// one that ended.
func pick(present []sockets.Socket, e *entry) (sockets.Socket, error) {
	var found []sockets.Socket
	for _, s := range present {
		if e.socket != nil && s.Cookie != e.socket.Cookie || e.Local.IsValid() && s.Local != e.Local {
			continue
		}
		found = append(found, s)
	}
	if len(found) == 0 {
		return sockets.Socket{}, sockets.ErrGone
	}
	if e.ambiguous = e.ambiguous || len(found) > 1; e.ambiguous {
		return sockets.Socket{}, errAmbiguous
	}
	return found[0], nil
}
