package tunnels

import (
	"encoding/json"
	"errors"
	"fmt"
	"net/netip"
	"time"

	"github.com/fairlead/fairlead/pkg/model"
)

// The events of Envoy's reverse tunnels that matter here.
const (
	eventSetup   = "tunnel_setup"
	eventHandoff = "socket_handoff" // the tunnel is used for the first time
	eventClosed  = "tunnel_closed"
)

// maxWorker is more than Envoy's name of a worker has: worker_<number>.
const maxWorker = 32

var (
	errNoJSON  = errors.New("it is not an event in JSON")
	errAddress = errors.New("it has no address and port of the peer, or none that is one")
	errNode    = errors.New("its node id is not CN= and a node name")
	errID      = errors.New("its cluster id is not a tunnel id of the domain")
	errWorker  = errors.New("its worker is no name")
)

// event is one line of the log.
type event struct {
	name string // of the event
	tunnel
}

// tunnel is a Tunnel, its addresses, and whether it is in use.
type tunnel struct {
	Tunnel
	Used   time.Time      `json:"used,omitzero"` // when it was used for the first time; zero: never
	Remote netip.AddrPort `json:"remote"`
	Local  netip.AddrPort `json:"local"` // not valid: Envoy did not say
}

// rawEvent is what Envoy writes, but for what is of no use here. Names and values that it does not know are null.
type rawEvent struct {
	Peer   string    `json:"peer"`
	Local  string    `json:"local"`
	Time   time.Time `json:"time"`
	Tunnel struct {
		ClusterID string `json:"cluster_id"`
		NodeID    string `json:"node_id"`
		Event     string `json:"event"`
		Worker    string `json:"worker"`
	} `json:"tunnel"`
}

// parseEvent reads one line. Events that don't matter here are no error, and have no key.
func parseEvent(d model.TunnelDomain, line []byte) (event, error) {
	var raw rawEvent
	if err := json.Unmarshal(line, &raw); err != nil {
		return event{}, errNoJSON // the error of the parser would quote what nobody has checked
	}
	e := event{name: raw.Tunnel.Event}
	switch e.name {
	case eventSetup, eventHandoff, eventClosed:
	default:
		return event{}, nil
	}
	var ok bool
	if e.Remote, ok = parseAddress(raw.Peer); !ok {
		return event{}, errAddress
	}
	if e.Local, ok = parseAddress(raw.Local); !ok && raw.Local != "" {
		return event{}, errAddress
	}
	if e.Node, ok = model.ParseNodeID(raw.Tunnel.NodeID); !ok {
		return event{}, errNode
	}
	if e.ID, ok = d.ParseTunnelID(raw.Tunnel.ClusterID); !ok {
		return event{}, errID
	}
	if e.Worker = raw.Tunnel.Worker; !isWord(e.Worker, maxWorker) {
		return event{}, errWorker
	}
	e.Since = raw.Time.UTC()
	e.Key = key(e.Remote, e.Local)
	return e, nil
}

// parseAddress reads an address as Envoy prints it. An IPv4 address that came by an IPv6 socket is an IPv4 address.
func parseAddress(s string) (netip.AddrPort, bool) {
	a, err := netip.ParseAddrPort(s)
	if err != nil || a.Port() == 0 {
		return netip.AddrPort{}, false
	}
	return plain(a), true
}

// plain is the one form of an address: the kernel does not say its zone with it.
func plain(a netip.AddrPort) netip.AddrPort {
	return netip.AddrPortFrom(a.Addr().Unmap().WithZone(""), a.Port())
}

// key names a tunnel: the edge's address alone may have two connections, to two addresses of the gateway.
func key(remote, local netip.AddrPort) string {
	if !local.IsValid() {
		return remote.String()
	}
	return fmt.Sprintf("%s>%s", remote, local)
}

// isWord says whether a text is short and of printable ASCII without spaces, or empty.
func isWord(s string, most int) bool {
	for _, c := range []byte(s) {
		if c <= ' ' || c > '~' {
			return false
		}
	}
	return len(s) <= most
}
