package tunnels

import (
	"encoding/json"
	"errors"
	"net/netip"
	"strings"
	"time"

	"github.com/fairlead/fairlead/pkg/model"
	"github.com/fairlead/fairlead/pkg/sockets"
	"github.com/fairlead/fairlead/pkg/tunnels/ledger"
)

// The events of Envoy's reverse tunnels that the table uses.
const (
	eventSetup   = "tunnel_setup"
	eventHandoff = "socket_handoff" // the first use of the tunnel
	eventClosed  = "tunnel_closed"

	// Events of a connection that Envoy forwards.
	eventStart   = "TcpConnectionStart"
	eventEnd     = "TcpConnectionEnd"
	eventRequest = "DownstreamStart" // a request on a connection of a node
)

// Owners in records: of a tunnel, and of the connections of nodes. Any other owner is a word that is not interpreted.
const (
	ownerTunnel  = "tunnel"
	ownerPeer    = "peer"    // of another gateway, with clients that it forwards
	ownerEgress  = "egress"  // of an apiserver, to networks
	ownerForward = "forward" // of an edge, for machines of its network
)

// maxWord exceeds the length of a worker's name (worker_<number>), of Envoy's number of a connection, and of an
// owner's name.
const maxWord = 32

var (
	errNoJSON  = errors.New("it is not an event in JSON")
	errAddress = errors.New("it has no valid address and port of the peer")
	errNode    = errors.New("its node id is not CN= and a node name")
	errID      = errors.New("its cluster id is not a tunnel id of the domain")
	errName    = errors.New("its certificate has not the name of such a node in the domain")
	errWorker  = errors.New("its worker is not a name")
	errOwner   = errors.New("it names no owner and connection")
	errEvent   = errors.New("its event is unknown")
)

// event is one line of the log.
type event struct {
	name       string // of the event
	owner      string
	connection string // Envoy's number of the connection; empty for a tunnel
	tunnel
}

// tunnel is a Tunnel with its addresses and the time of its first use.
type tunnel struct {
	Tunnel
	Used   time.Time      `json:"used,omitzero"`  // time of the first use; zero: not used yet
	Lane   bool           `json:"lane,omitempty"` // it is in a lane, and not a usual one
	Remote netip.AddrPort `json:"remote"`
	Local  netip.AddrPort `json:"local"`        // not valid if Envoy did not report it
	FD     int            `json:"fd,omitempty"` // file descriptor of its socket in Envoy; 0: not known
}

// sameEdge reports whether two tunnels belong to one edge, and are both in lanes or both not.
func (t tunnel) sameEdge(other tunnel) bool {
	return t.Node == other.Node && t.Lane == other.Lane && t.ID == other.ID
}

// is reports whether two events of one key belong to the same connection. While an older connection is open, the
// socket of a newer one with the same addresses has another file descriptor.
func (t tunnel) is(other tunnel) bool {
	return t.sameEdge(other) && (t.FD == other.FD || t.FD == 0 || other.FD == 0)
}

// rawEvent has the fields of Envoy's event that the table uses. Envoy writes null for a name or value that it does not
// have.
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

// parseEvent parses and validates one line of the log.
func parseEvent(d model.TunnelDomain, line []byte) (event, error) {
	var raw rawEvent
	if err := json.Unmarshal(line, &raw); err != nil {
		return event{}, errNoJSON // The parser's error would quote unvalidated input.
	}
	e := event{name: raw.Event, owner: raw.Owner, connection: string(raw.Connection)}
	var ok bool
	if e.Remote, ok = parseAddress(raw.Peer); !ok {
		return event{}, errAddress
	}
	if e.Local, ok = parseAddress(raw.Local); !ok && raw.Local != "" {
		return event{}, errAddress
	}
	e.Since, e.Key = raw.Time.UTC(), ledger.Key(e.Remote, e.Local)
	if e.owner == ownerTunnel {
		if err := e.parseTunnel(d, raw); err != nil {
			return event{}, err
		}
		return e, nil
	}
	switch {
	case e.owner == "" || !isWord(e.owner, maxWord) || e.connection == "" || !isWord(e.connection, maxWord) ||
		!e.Local.IsValid():
		return event{}, errOwner
	case e.name != eventStart && e.name != eventEnd && (e.name != eventRequest || !ofNode(e.owner)):
		return event{}, errEvent
	}
	return e, e.parseNode(d, raw)
}

// parseNode parses the subject of the certificate with which a node has opened a connection.
func (e *event) parseNode(d model.TunnelDomain, raw rawEvent) error {
	if !ofNode(e.owner) {
		return nil
	}
	var ok bool
	if e.Node, ok = model.ParseNodeID(raw.Node); !ok {
		return errNode
	}
	parse := d.ParseTunnelID
	switch e.owner {
	case ownerEgress:
		parse = d.ParseEgressID
	case ownerPeer: // its leaf has two names, and the node is one of them
		parse = func(string) (string, bool) { return e.Node, model.ValidateGatewayName(e.Node) == nil }
	}
	if e.ID, ok = parse(raw.ID); !ok {
		return errName
	}
	return nil
}

func (e *event) parseTunnel(d model.TunnelDomain, raw rawEvent) error {
	var ok bool
	node, lane := strings.CutSuffix(raw.Node, model.LaneMark)
	if e.Node, ok = model.ParseNodeID(node); !ok {
		return errNode
	}
	id, laneID := strings.CutSuffix(raw.ID, model.LaneMark)
	if e.ID, ok = d.ParseTunnelID(id); !ok || lane != laneID {
		return errID
	}
	e.Lane = lane
	if e.Worker = raw.Worker; !isWord(e.Worker, maxWord) {
		return errWorker
	}
	if e.name != eventSetup && e.name != eventHandoff && e.name != eventClosed {
		return errEvent
	}
	e.FD = raw.FD
	return nil
}

// parseAddress parses an address as Envoy prints it. An IPv4-mapped IPv6 address is returned as IPv4.
func parseAddress(s string) (netip.AddrPort, bool) {
	a, err := netip.ParseAddrPort(s)
	if err != nil || a.Port() == 0 {
		return netip.AddrPort{}, false
	}
	return sockets.Plain(a), true
}

// isWord reports whether s is at most most bytes of printable ASCII without spaces. The empty string is a word.
func isWord(s string, most int) bool {
	for _, c := range []byte(s) {
		if c <= ' ' || c > '~' {
			return false
		}
	}
	return len(s) <= most
}
