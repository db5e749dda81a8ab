package tunnels

import "net/netip"

// finder looks up sockets of tunnels at one time: it asks for all of them once at most.
type finder struct {
	kernel *kernel
	all    map[netip.AddrPort][]socket // nil: not asked for yet
}

// socket returns the socket of a tunnel, errGone if there is none.
func (f *finder) socket(e *entry) (socket, error) {
	if e.Local.IsValid() {
		s, err := f.kernel.get(e.Local, e.Remote)
		if err != nil {
			return socket{}, err
		}
		return pick([]socket{s}, e)
	}
	if f.all == nil {
		all, err := f.kernel.dump(connected)
		if err != nil {
			return socket{}, err
		}
		f.all = byRemote(all)
	}
	return pick(f.all[e.Remote], e)
}

// destroy destroys the socket of a tunnel, errGone if there is none.
func (f *finder) destroy(e *entry) error {
	if e.socket == nil {
		s, err := f.socket(e)
		if err != nil {
			return err
		}
		e.socket = &s
	}
	return f.kernel.destroy(*e.socket)
}

func byRemote(all []socket) map[netip.AddrPort][]socket {
	sockets := make(map[netip.AddrPort][]socket, len(all))
	for _, s := range all {
		sockets[s.remote] = append(sockets[s.remote], s)
	}
	return sockets
}

// pick returns the socket of a tunnel among those of one remote address. One that was found before stays the one. Where there were
// several, the last that is left is not known to be the one either: the tunnel may be the one that went.
func pick(sockets []socket, e *entry) (socket, error) {
	var found []socket
	for _, s := range sockets {
		if e.socket != nil && s.cookie() != e.socket.cookie() || e.Local.IsValid() && s.local != e.Local {
			continue
		}
		found = append(found, s)
	}
	if len(found) == 0 {
		return socket{}, errGone
	}
	if e.ambiguous = e.ambiguous || len(found) > 1; e.ambiguous {
		return socket{}, errAmbiguous
	}
	return found[0], nil
}
