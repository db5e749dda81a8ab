package check

import (
	"context"
	"time"
)

// Servers are the xds-servers, asked for one workload cluster.
type Servers interface {
	// Sight is what they know of the tunnel with an id, and of the Envoy clusters with these names. The error says that none could be asked;
	// one of several that could not is in the Sight.
	Sight(ctx context.Context, id string, names []string) (Sight, error)
	// Look has the edges of that tunnel look at their apiserver now, and returns what those saw that are connected. The error says that
	// none could be asked.
	Look(ctx context.Context, id string) ([]EdgeLook, error)
}

// EdgeLook is what an edge sees of its apiserver now.
type EdgeLook struct {
	Node      string
	APIServer *APIServerSight // nil: Problem says why
	Problem   string
}

// Sight is what all xds-servers together know of one workload cluster.
type Sight struct {
	Servers  []ServerSight
	Gateways []GatewaySight // in the order of their names
	Edges    []EdgeSight    // in the order of their nodes
	Refusals []RefusalSight // the newest first
}

// RefusalSight is a machine that an xds-server has not let in, or that did not want to come in: it may be anybody's.
type RefusalSight struct {
	Address   string
	Handshake bool   // of TLS; else it was refused a certificate
	Reason    string // in the words of TLS, or of what it was told
	Last      time.Time
}

// ServerSight is one xds-server.
type ServerSight struct {
	Name    string // of its Pod, or its address
	Problem string // why it did not answer; empty: it did
	Settled bool   // every agent that lives has had time to report to it
	Now     time.Time
}

// GatewaySight is one gateway, as the xds-server knows it to which its agent reports.
type GatewaySight struct {
	Name      string
	Installed bool   // the installation is to have it
	Connected bool   // its agent reports
	Ready     bool   // it takes clients
	Hang      string // the parts of its Envoy that do not answer its agent; empty: all do
	Silent    string // why its agent, whose report stream is open, did not answer a question; empty: it did
	// Incomplete says why it may have tunnels that it does not report, and the cure; empty: it has none.
	Incomplete string
	Since      time.Time
	Routes     []RouteSight // one for each name that was asked for
	Tunnels    []TunnelSight
	Holes      []HoleSight
}

// RouteState says whether an Envoy has a resource.
type RouteState string

const (
	// RouteSynced says that it was sent and accepted.
	RouteSynced RouteState = "SYNCED"
	// RouteStale says that it was sent, and there is no answer yet.
	RouteStale RouteState = "STALE"
	// RouteRefused says that Envoy, or its agent, refused it.
	RouteRefused RouteState = "NACK"
	// RouteMissing says that it was not sent.
	RouteMissing RouteState = "MISSING"
)

// RouteSight is one Envoy cluster on one gateway.
type RouteSight struct {
	Name    string
	State   RouteState
	Message string    // Envoy's own, of one that it refused
	Since   time.Time // of the state; zero: not known
}

// TunnelSight is one live tunnel.
type TunnelSight struct {
	Node      string        // of the edge
	Worker    string        // of the gateway's Envoy; empty: not known
	Since     time.Time     // zero: not known
	RoundTrip time.Duration // 0: not known
}

// HoleSight is an edge without a tunnel on some workers of a gateway.
type HoleSight struct {
	Node    string
	Workers int
}

// EdgeSight is one edge, as the xds-server knows it to which its agent reports or has reported last.
type EdgeSight struct {
	Node      string
	Connected bool
	Since     time.Time // of Connected
	LastError string    // what the edge itself complains of

	APIServer *APIServerSight // as it has reported last
	Age       time.Duration   // of that: it reports what changes; 0: not known
}

// APIServerSight is the apiserver as an edge sees it.
type APIServerSight struct {
	Address          string
	Healthy          bool
	Message          string
	Version          string
	CertificateNames []string
	CertificateEnd   time.Time // zero: not known
}
