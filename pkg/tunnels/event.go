package tunnels

import (
	"encoding/json"
	"errors"
	"fmt"
	"net/netip"
	"time"

	"github.com/fairlead/fairlead/pkg/model"
	"github.com/fairlead/fairlead/pkg/sockets"
)

// The events of Envoy's reverse tunnels that matter here.
const (
	eventSetup   = "tunnel_setup"
	eventHandoff = "socket_handoff" // the tunnel is used for the first time
	eventClosed  = "tunnel_closed"

	// Those of a connection that Envoy passes on.
	eventStart = "TcpConnectionStart"
	eventEnd   = "TcpConnectionEnd"
)

// ownerTunnel is the owner of a tunnel in a record. Every other owner is a word that is not interpreted.
const ownerTunnel = "tunnel"

// maxWord is more than Envoy's name of a worker has, worker_<number>, its number of a connection and the name of an owner.
const maxWord = 32

var (
	errNoJSON  = errors.New("it is not an event in JSON")
	errAddress = errors.New("it has no valid address and port of the peer")
	errNode    = errors.New("its node id is not CN= and a node name")
	errID      = errors.New("its cluster id is not a tunnel id of the domain")
	errWorker  = errors.New("its worker is not a name")
	errOwner   = errors.New("it names no owner and connection")
	errEvent   = errors.New("its event is unknown")
)

// event is one line of the log.
type event struct {
	name       string // of the event
	owner      string
	connection string // Envoy's number of it; empty: it is a tunnel
	tunnel
}

// tunnel is a Tunnel, its addresses, and whether it is in use.
type tunnel struct {
	Tunnel
	Used   time.Time      `json:"used,omitzero"` // when it was used for the first time; zero: never
	Remote netip.AddrPort `json:"remote"`
	Local  netip.AddrPort `json:"local"`        // not valid: Envoy did not say
	FD     int            `json:"fd,omitempty"` // of its socket in Envoy; 0: not known
}

// is says whether two events of one key are of one connection. The socket of a newer one with the same addresses has another file
// descriptor while the older one's is open.
func (t tunnel) is(other tunnel) bool {
	return t.Node == other.Node && t.ID == other.ID && (t.FD == other.FD || t.FD == 0 || other.FD == 0)
}

// rawEvent is what Envoy writes, but for what is of no use here. Names and values that it does not know are null.
type rawEvent struct {
	Owner      string          `json:"owner"`
	Event      string          `json:"event"`
	Peer       string          `json:"peer"`
	Local      string          `json:"local"`
	Time       time.Time       `json:"time"`
	ID         string          `json:"id"`
	Node       string          `json:"node"`
	Worker     string          `json:"worker"`
	FD         int             `json:"fd"`
	Connection json.RawMessage `json:"connection"`
}

// parseEvent reads one line.
func parseEvent(d model.TunnelDomain, line []byte) (event, error) {
	var raw rawEvent
	if err := json.Unmarshal(line, &raw); err != nil {
		return event{}, errNoJSON // the error of the parser would quote what nobody has checked
	}
	e := event{name: raw.Event, owner: raw.Owner, connection: string(raw.Connection)}
	var ok bool
	if e.Remote, ok = parseAddress(raw.Peer); !ok {
		return event{}, errAddress
	}
	if e.Local, ok = parseAddress(raw.Local); !ok && raw.Local != "" {
		return event{}, errAddress
	}
	e.Since, e.Key = raw.Time.UTC(), key(e.Remote, e.Local)
	if e.owner == ownerTunnel {
		if err := e.parseTunnel(d, raw); err != nil {
			return event{}, err
		}
		return e, nil
	}
	switch {
	case e.owner == "" || !isWord(e.owner, maxWord) || e.connection == "" || !isWord(e.connection, maxWord) || !e.Local.IsValid():
		return event{}, errOwner
	case e.name != eventStart && e.name != eventEnd:
		return event{}, errEvent
	}
	return e, nil
}

func (e *event) parseTunnel(d model.TunnelDomain, raw rawEvent) error {
	var ok bool
	if e.Node, ok = model.ParseNodeID(raw.Node); !ok {
		return errNode
	}
	if e.ID, ok = d.ParseTunnelID(raw.ID); !ok {
		return errID
	}
	if e.Worker = raw.Worker; !isWord(e.Worker, maxWord) {
		return errWorker
	}
	if e.name != eventSetup && e.name != eventHandoff && e.name != eventClosed {
		return errEvent
	}
	e.FD = raw.FD
	return nil
}

// parseAddress reads an address as Envoy prints it. An IPv4 address that came by an IPv6 socket is an IPv4 address.
func parseAddress(s string) (netip.AddrPort, bool) {
	a, err := netip.ParseAddrPort(s)
	if err != nil || a.Port() == 0 {
		return netip.AddrPort{}, false
	}
	return sockets.Plain(a), true
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
