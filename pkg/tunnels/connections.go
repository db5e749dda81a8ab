package tunnels

import (
	"net/netip"
	"time"

	"github.com/fairlead/fairlead/pkg/model"
	"github.com/fairlead/fairlead/pkg/tunnels/ledger"
)

// connections are the connections of nodes that are not tunnels: of apiservers to networks, of edges for the machines
// of their networks, and of other gateways. The id of a node determines the owner of its connections. The table's mu
// guards them.
//
// Envoy records each request on such a connection, but not the end of the connection: the table compares them with the
// kernel's sockets, like tunnels. Until the first request Claim has recorded its owner.
type connections struct {
	all    map[string]*entry // by key
	counts map[string]counts // by owner
	owners map[string]int
}

func newConnections() connections {
	return connections{
		all: map[string]*entry{}, counts: map[string]counts{ownerEgress: newCounts(), ownerForward: newCounts()},
		owners: map[string]int{},
	}
}

// connection is a connection of a node in the state file.
type connection struct {
	tunnel
	Owner      string `json:"owner"`
	Connection string `json:"connection"`
}

// ofNode reports whether connections of an owner are recorded with the node that has opened them.
func ofNode(owner string) bool {
	return owner == ownerEgress || owner == ownerForward || owner == ownerPeer
}

// connection adds a record of a connection. The caller holds t.mu.
func (t *Table) connection(e event) {
	before := t.conns.all[e.Key]
	same := before != nil && before.connection == e.connection && before.owner == e.owner
	switch {
	case e.name == eventEnd:
		if same {
			t.disconnect(before)
		}
		return
	case same:
		return
	case before != nil && before.claims(e):
		before.connection = e.connection
		return
	case before != nil:
		t.disconnect(before)
	case len(t.conns.all) >= ledger.MaxOwned:
		t.lose("there are more connections than the record can hold")
		return
	}
	c := &entry{tunnel: e.tunnel, owner: e.owner, connection: e.connection}
	t.conns.all[c.Key], t.unbound[c] = c, true
	t.countConnection(c, 1)
}

// claims reports whether a record is the first one of a connection that was claimed.
func (e *entry) claims(first event) bool {
	return e.connection == "" && e.owner == first.owner && e.sameEdge(first.tunnel)
}

// Claim records the owner of a connection that carries streams, when TLS has authenticated it and before its first
// request. Otherwise a connection without requests would outlive the denial of its node, and carry some later.
// permitted is false if the node is denied, or it is not known what is denied. Else ofNode and ofID are how many others
// its node has, and all nodes of its id. If one of them is not below its maximum, nothing is recorded.
//
// Envoy records no end of connections. So with half of a maximum in the table, Run compares it with the kernel soon.
//
// With Config.Envoy the addresses may be those of a PROXY header instead of the socket, so nothing is recorded before
// the first request.
func (t *Table) Claim(
	subject model.Subject, remote, local netip.AddrPort, mostOfNode, mostOfID int,
) (ofNode, ofID int, permitted bool) {
	of := tunnel{Tunnel: Tunnel{
		Key: ledger.Key(remote, local), Node: subject.Node, ID: subject.ID, Since: time.Now().UTC(),
	}, Remote: remote, Local: local}
	owner := ownerForward
	if subject.Role == model.RoleEgress {
		owner = ownerEgress
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.unread || t.denied.has(of.Tunnel) {
		return 0, 0, false
	}
	if before := t.conns.all[of.Key]; before != nil && t.config.Envoy == nil {
		t.disconnect(before) // an earlier connection with the same addresses
	}
	ofNode, ofID = t.conns.counts[owner].of(model.EdgeRef{Node: of.Node, ID: of.ID})
	if 2*ofNode >= mostOfNode || 2*ofID >= mostOfID {
		notify(t.notifyCheck)
	}
	if ofNode < mostOfNode && ofID < mostOfID && t.config.Envoy == nil {
		t.connection(event{name: eventRequest, owner: owner, tunnel: of})
	}
	return ofNode, ofID, true
}

// disconnect removes a connection, unless it was removed already. The caller holds t.mu.
func (t *Table) disconnect(c *entry) {
	if t.conns.all[c.Key] != c {
		return
	}
	delete(t.conns.all, c.Key)
	delete(t.unbound, c)
	t.countConnection(c, -1)
}

func (t *Table) countConnection(c *entry, n int) {
	if c.owner == ownerPeer {
		return // gateways are neither reported as edges nor limited like them
	}
	t.conns.counts[c.owner].add(c.Tunnel, n)
	t.conns.owners[c.owner] += n
	if t.history.Version > 0 {
		t.history.Add([]string{statusKey})
	}
}

// Connections returns the number of open connections of each node that are not tunnels.
func (t *Table) Connections() map[model.EdgeRef]int {
	t.mu.Lock()
	defer t.mu.Unlock()
	nodes := map[model.EdgeRef]int{}
	for _, c := range t.conns.counts {
		for node, n := range c.edges {
			nodes[node] += n
		}
	}
	return nodes
}

// ConnectionPlaces returns all connections of apiservers and edges that are not tunnels, in no particular order.
func (t *Table) ConnectionPlaces() []Placed { return t.connectionPlaces(false) }

// PeerPlaces returns all connections of other gateways, in no particular order. The node of each is the gateway.
func (t *Table) PeerPlaces() []Placed { return t.connectionPlaces(true) }

func (t *Table) connectionPlaces(peers bool) []Placed {
	t.mu.Lock()
	defer t.mu.Unlock()
	all := make([]Placed, 0, len(t.conns.all))
	for _, c := range t.conns.all {
		if (c.owner == ownerPeer) == peers {
			all = append(all, Placed{Tunnel: c.Tunnel, From: c.Remote.Addr(), Owner: c.owner})
		}
	}
	return all
}
