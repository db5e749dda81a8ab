// Package collect observes an installation for all its views: status, check, config and the status page. Its input is
// queries; its output is the types of this file: the xds-servers, gateways, edges and tunnels that exist, what was sent
// to each Envoy, and how Envoy responded. The sources are the xds-servers and the records in Tunnel objects. It changes
// nothing, and does not interpret an observation: pkg/diagnose/check and pkg/diagnose/summary do.
//
// It has both ends: the gRPC service that each xds-server has on a loopback address, and the client that queries all of
// them through port-forwarding of the management cluster. There is no password: only users that may forward ports to
// the Pods of the xds-servers reach the address. It exposes no key or token, because the xds-servers have none of other
// components.
package collect

import (
	"encoding/json"
	"net/netip"
	"strings"
	"time"

	"google.golang.org/protobuf/types/known/anypb"

	"github.com/fairlead/fairlead/pkg/model"
	"github.com/fairlead/fairlead/pkg/observed"
)

// Server is an xds-server that was queried.
type Server struct {
	Name    string // of its Pod, or its address
	Version string // empty: not known
	// Settled is false while agents may not have had time to report to it since it started.
	Settled bool
	Err     error // why it did not answer; nil: it did
	// Unread is why it did not answer with the resources of its gateways, although it answered; nil: it did, or was not
	// queried for them.
	Unread error
}

// Fleet is what all servers together observe of the agents that report. All lists are sorted by name.
type Fleet struct {
	Domain   model.TunnelDomain // empty: no server answered
	Servers  []Server           // that were queried
	Gateways []Gateway
	Tunnels  []Tunnel
	Edges    []observed.Edge
	Unserved []UnservedWorkers
	Refusals []Refusal // of the last minutes, the newest first
}

// Gateway is a gateway of the installation, or one that has reported.
type Gateway struct {
	Name      string
	Server    string // the server of its current or last report; empty: none
	Installed bool   // the installation has it
	Connected bool   // its agent reports
	Ready     bool   // it accepts clients
	Hang      string // the parts of its Envoy that do not answer its agent; empty: all do
	// Incomplete is why it may have tunnels that it does not report, and the cure; empty: it has none.
	Incomplete string
	Since      time.Time // when Connected changed last; zero: not known
	// Zone and Ways are known if it answered. It forwards clients by Ways, the nearest first.
	Zone    string
	Ways    []observed.Way
	Problem string // why Worker, Since and RTT of its tunnels are not known; empty: they are, or were not requested
	// Resources has one entry for each name that Observe received; nil: its agent has no xDS stream, its server has
	// Unread, or no name was given.
	Resources []Resource
}

// Tunnel is one live tunnel.
type Tunnel struct {
	Gateway string
	Key     string // unique in one gateway: addresses and ports of its connection
	Node    string // node name of the edge
	ID      string // Tunnel.spec.id
	Worker  string // of the gateway's Envoy; empty: not known
	Since   time.Time
	RTT     time.Duration // smoothed, of the TCP connection that carries it; 0: not known
}

// Source returns the address from which the tunnel was dialled, as its gateway observes it. It is invalid if the
// gateway has reported none.
func (t *Tunnel) Source() netip.Addr {
	remote, _, _ := strings.Cut(t.Key, ">")
	source, err := netip.ParseAddrPort(remote)
	if err != nil {
		return netip.Addr{}
	}
	return source.Addr().Unmap()
}

// UnservedWorkers is an edge that has no tunnel on some workers of a gateway, though it has others.
type UnservedWorkers struct {
	Gateway, Node, ID string
	Workers           int
}

// Status is the state of a resource.
type Status string

const (
	// Synced is a resource that Envoy has accepted in its current version.
	Synced Status = "SYNCED"
	// Stale is a resource with a newer version than Envoy is known to have: the update is in flight, or Envoy does not
	// answer.
	Stale Status = "STALE"
	// Rejected is a resource that Envoy, or its agent, rejects: the previous version stays in use.
	Rejected Status = "NACK"
	// Missing is a resource that was queried and that the node was not sent.
	Missing Status = "MISSING"
)

// Node is a gateway or an edge whose agent is connected to an xds-server, and what it was sent.
type Node struct {
	Name      string // node name
	Role      model.Role
	ID        string // Tunnel.spec.id of an edge
	Server    string
	Profile   string    // the short name of the profile that it is served; empty: its server knows none
	Version   string    // of the agent; empty: not known
	Connected time.Time // since when
	Resources []Resource
}

// Resource is a listener or an Envoy cluster.
type Resource struct {
	TypeURL string
	Name    string
	Version string // that is published
	Status  Status
	// Updated is when that version was published or sent, at the latest. Since is when it began to wait for an answer, or
	// was rejected. Zero: not known.
	Updated, Since time.Time
	Refusal        string     // the reason of Envoy, or its agent
	Refused        string     // the version that this is about
	Config         *anypb.Any // what was published; nil: not requested
}

// Dump is what a node's Envoy runs of the resources that it received by xDS.
type Dump struct {
	Node   string
	Server string // that forwarded the query
	// Running lists all Envoy clusters and listeners in Envoy that came by xDS, in order. A resource whose last update was
	// rejected has Refusal.
	Running []Running
}

// Running is a listener or an Envoy cluster in Envoy.
type Running struct {
	TypeURL string
	Name    string
	Version string // that its agent passed on
	// Form is the form that the agent passed on if that differs from what was sent, such as an Envoy cluster
	// without tunnels; empty: unchanged.
	Form    string
	State   string // active, warming, draining or error
	Updated time.Time
	Refusal string          // Envoy's last rejection of a newer version
	Config  json.RawMessage // as Envoy prints it
}
