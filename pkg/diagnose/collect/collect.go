// Package collect observes an installation, once for everything that shows it: status, check, config, the status page. In go questions;
// out come the types of this file: which xds-servers, gateways, edges and tunnels there are, what was sent to which Envoy, and what
// that made of it. Sources are the xds-servers and the records in Tunnel objects. It changes nothing, and does not know what an
// observation means for a Cluster: that is decided in pkg/diagnose/check and pkg/diagnose/summary.
//
// It has both ends: the gRPC service that each xds-server has on a loopback address, and the client that asks all of them, through
// port-forwarding of the management cluster. There is no password: users that may forward ports to the Pods of the xds-servers may
// look, and no others reach the address. No key and no token can be seen through it, for the xds-servers have none of others.
package collect

import (
	"encoding/json"
	"time"

	"google.golang.org/protobuf/types/known/anypb"

	"github.com/fairlead/fairlead/pkg/model"
	"github.com/fairlead/fairlead/pkg/observed"
)

// Server is an xds-server that was asked.
type Server struct {
	Name    string // of its Pod, or its address
	Version string // empty: not known
	// Settled is false while agents may not have had time to report to it since it started.
	Settled bool
	Err     error // why it did not answer; nil: it did
}

// Fleet is what all servers together observe of the agents that report. All lists are in order of their names.
type Fleet struct {
	Domain   model.TunnelDomain // empty: no server answered
	Servers  []Server           // that were asked
	Gateways []Gateway
	Tunnels  []Tunnel
	Edges    []observed.Edge
	Holes    []Hole
	Refusals []Refusal // of the last minutes, the newest first
}

// Gateway is one of the installation, or one that has reported.
type Gateway struct {
	Name      string
	Server    string // to which it reports, or did last; empty: to none
	Installed bool   // the installation has it
	Connected bool   // its agent reports
	Ready     bool   // it takes clients
	Hang      string // the parts of its Envoy that do not answer its agent; empty: all do
	// Incomplete is why it may have tunnels that it does not report, and the cure; empty: it has none.
	Incomplete string
	Since      time.Time // when Connected became what it is; zero: not known
	Problem    string    // why Worker, Since and RTT of its tunnels are not known; empty: they are, or were not asked for
	// Resources has one entry for each name that Observe was asked for; nil: its agent has no xDS stream, or none was asked for.
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

// Hole is an edge that has no tunnel on some workers of a gateway, though it has others.
type Hole struct {
	Gateway, Node, ID string
	Workers           int
}

// Status is what became of a resource.
type Status string

const (
	// Synced is a resource that Envoy has accepted as it is now.
	Synced Status = "SYNCED"
	// Stale is a resource of which a newer version was published than Envoy is known to have: it is on its way, or Envoy does not answer.
	Stale Status = "STALE"
	// Rejected is a resource that Envoy, or its agent, refuses: it goes on with what it had.
	Rejected Status = "NACK"
	// Missing is a resource that was asked for and that the node was not sent.
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
	// Updated is when that version was published or sent, at the latest. Since is since when it waits for an answer or is refused; both
	// zero: not known.
	Updated, Since time.Time
	Refusal        string     // the reason of Envoy, or its agent
	Refused        string     // the version that this is about
	Config         *anypb.Any // what was published; nil: not asked for
}

// Dump is what a node's Envoy runs of what came by xDS.
type Dump struct {
	Node   string
	Server string // through which it was asked
	// Running are all of Envoy's Envoy clusters and listeners that came by xDS, in order. Those that it refused last have Refusal.
	Running []Running
}

// Running is a listener or an Envoy cluster that an Envoy has.
type Running struct {
	TypeURL string
	Name    string
	Version string // that its agent gave it
	// Form says that the agent gave it another form than was sent, as that of an Envoy cluster without tunnels; empty: the usual one.
	Form    string
	State   string // active, warming, draining or error
	Updated time.Time
	Refusal string          // Envoy's last refusal of a newer one
	Config  json.RawMessage // as Envoy prints it
}
