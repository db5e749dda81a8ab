// Package model holds the plain values between Kubernetes objects and Envoy resources: the installation, its gateways
// and its workload clusters, their names, and every rule that a value must meet. It knows neither Kubernetes nor
// Envoy.
package model

import (
	"cmp"
	"net"
	"slices"
	"strconv"
)

// Fleet is the complete input of the configuration of all gateways and edges. Its zero value is an empty fleet without
// a tunnel domain, which Installation.Validate rejects.
type Fleet struct {
	Installation Installation
	Clusters     []WorkloadCluster
}

// Installation is the configuration that all gateways and edges of one tunnel domain share.
type Installation struct {
	Domain   TunnelDomain
	Public   Endpoint  // where edges reach the gateways' public port
	Control  Endpoint  // where gateways reach the xds-server, for the control channel
	Gateways []Gateway // the replicas; scaling changes them
	// GatewaysPerTunnel is to how many gateways the edges of a tunnel id keep reverse tunnels: see pkg/assignment. 0: to
	// all, and gateways do not forward clients to each other.
	GatewaysPerTunnel int
	// ReplicaAddress is where edges reach one replica, from which Gateway.Public was made; empty: none has its own
	// address.
	ReplicaAddress ReplicaAddress
	Workers        int // worker threads of each gateway's Envoy; 0: one
	// Handshakes is how many reverse tunnels each gateway accepts per second; 0 means the default.
	Handshakes int
	// Lanes is how many lanes gateways accept of each edge besides its usual reverse tunnels. Edges are sent as many as
	// LanesFor returns, and open them while they have clients. Each reverse tunnel in them carries one connection of a
	// client. 0 means none.
	Lanes int
	// AccessLog selects the connections that gateways and edges log when they end; empty means none.
	AccessLog AccessLog
}

// AccessLog selects the connections that are logged.
type AccessLog string

const (
	// AccessLogFailed selects connections that failed on our side or in a reverse tunnel.
	AccessLogFailed AccessLog = "failed"
	// AccessLogAll selects all connections.
	AccessLogAll AccessLog = "all"
)

// Gateway is one replica.
type Gateway struct {
	Name   string   // gateway-<i>
	Peer   Endpoint // where other replicas reach its public listener; required if there are several
	Public Endpoint // where edges reach only this replica; zero: Installation.Public, which any replica may accept
	// Zone is the topology.kubernetes.io/zone of its node; empty: not known. Gateways prefer others of their zone.
	Zone string
	// Joining is true until a new replica accepts clients, Leaving once it is to end: see pkg/assignment.
	Joining, Leaving bool
}

// WorkloadCluster is one Tunnel, identified by Key: of a Cluster, of a network or, if Egress is true, of the apiservers
// of a Cluster with networks.
type WorkloadCluster struct {
	Key        Key
	ID         string     // Tunnel.spec.id
	Hostname   string     // the tunnel hostname
	ExtraNames []string   // further names of the same tunnel
	APIServer  Endpoint   // the address that its edges dial
	Others     []Endpoint // further apiservers, dialled in this order while the previous ones are unhealthy
	Limits     Limits     // limits of its clients
	Revoked    []string   // node names of its revoked edges, the newest last
	Recorded   int        // how many of Revoked, the last ones, have enrolled; the others may never have existed
	Withheld   bool       // not served: only Key, ID, Revoked and Recorded are meaningful
	Prepared   bool       // not served yet: its edges may connect and get no configuration
	Network    *Network   // of a network: it has no Hostname, ExtraNames, APIServer and Others
	Egress     bool       // of apiservers: its edges open no reverse tunnels, and it has only Key, ID, Limits and Revoked
	Forwards   int        // networks whose machines reach their apiserver by this tunnel: see ForwardsBy
}

// Denied are revoked edges and ended tunnels. They may still have certificates that have not expired.
type Denied struct {
	Edges []EdgeRef // revoked edges
	IDs   []string  // Tunnel.spec.id of tunnels that have ended
}

// Equal reports whether both have the same edges and ids in the same order.
func (d Denied) Equal(other Denied) bool {
	return slices.Equal(d.Edges, other.Edges) && slices.Equal(d.IDs, other.IDs)
}

// EdgeRef is one edge of one tunnel. A node name alone does not identify an edge: anyone with write access to a Tunnel
// can put any name in it.
type EdgeRef struct {
	Node string // node name
	ID   string // Tunnel.spec.id
}

// Compare orders edges by tunnel, and then by node name.
func (e EdgeRef) Compare(other EdgeRef) int {
	return cmp.Or(cmp.Compare(e.ID, other.ID), cmp.Compare(e.Node, other.Node))
}

// RevokedEdges returns the edges that a workload cluster revokes. They always belong to its own tunnel.
func (w WorkloadCluster) RevokedEdges() []EdgeRef {
	var edges []EdgeRef
	for _, node := range w.Revoked {
		edges = append(edges, EdgeRef{Node: node, ID: w.ID})
	}
	return edges
}

// Names returns all names that clients use: the hostname, then the extra names; or the targets of a network.
func (w WorkloadCluster) Names() []string {
	if w.Egress {
		return nil
	}
	if w.Network != nil {
		names := make([]string, 0, len(w.Network.Targets))
		for _, t := range w.Network.Targets {
			names = append(names, t.Name)
		}
		return names
	}
	return append([]string{w.Hostname}, w.ExtraNames...)
}

// ForwardsBy returns Tunnel.spec.id of the tunnel by which the machines of a network reach their apiserver; empty: none
// does.
func (w WorkloadCluster) ForwardsBy() string {
	if w.Prepared || w.Network == nil || len(w.Network.APIServers) > 0 {
		return ""
	}
	return w.Network.APIServerID
}

// Key is the namespace and name that a Cluster and its Tunnel share.
type Key struct{ Namespace, Name string }

// String returns namespace/name.
func (k Key) String() string { return k.Namespace + "/" + k.Name }

// Endpoint is a TCP address: an IP address or a DNS name, and a port.
type Endpoint struct {
	Host string
	Port uint16
}

// String returns host:port, with brackets around an IPv6 address, or "" for the zero value.
func (e Endpoint) String() string {
	if e == (Endpoint{}) {
		return ""
	}
	return net.JoinHostPort(e.Host, strconv.Itoa(int(e.Port)))
}
