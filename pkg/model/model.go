// Package model holds the plain values between Kubernetes objects and Envoy resources: the installation, its gateways
// and its workload clusters, their names, and every rule that a value must meet. It knows neither Kubernetes nor Envoy.
package model

import (
	"cmp"
	"net"
	"strconv"
)

// Fleet is all that the two Envoys are made from. Its zero value is an empty fleet without a tunnel domain, which
// Installation.Validate refuses.
type Fleet struct {
	Installation Installation
	Clusters     []WorkloadCluster
}

// Installation is what all gateways and edges of one tunnel domain share.
type Installation struct {
	Domain   TunnelDomain
	Public   Endpoint  // where edges reach the gateways' public port
	Control  Endpoint  // where gateways reach the xds-server, to which they pass the control channel
	Gateways []Gateway // the replicas, which come and go by scaling; every edge keeps tunnels to each of them
	// ReplicaAddress is where edges reach one replica, from which Gateway.Public was made; empty: none has its own address.
	ReplicaAddress ReplicaAddress
	Workers        int // worker threads of each gateway's Envoy; 0: one
	// Handshakes are how many tunnels each gateway lets be opened in a second; 0: a default.
	Handshakes int
	// AccessLog is of which connections gateways and edges write a line when they have ended; empty: of none.
	AccessLog AccessLog
}

// AccessLog says of which connections a line is written.
type AccessLog string

const (
	// AccessLogFailed are those that failed on our side or in a tunnel.
	AccessLogFailed AccessLog = "failed"
	// AccessLogAll are all.
	AccessLogAll AccessLog = "all"
)

// Gateway is one replica.
type Gateway struct {
	Name   string   // gateway-<i>
	Peer   Endpoint // where other replicas reach its public listener; needed only when there is more than one
	Public Endpoint // where edges reach this replica and no other; zero: Installation.Public, and another may pass them on
}

// WorkloadCluster is one Cluster and its Tunnel. Key identifies it.
type WorkloadCluster struct {
	Key        Key
	ID         string     // Tunnel.spec.id
	Hostname   string     // the tunnel hostname
	ExtraNames []string   // further names of the same tunnel
	APIServer  Endpoint   // what its edges dial
	Others     []Endpoint // further apiservers, which edges dial in this order while those before are not healthy
	Limits     Limits     // of what its clients may take
	Revoked    []string   // the node names of its edges that are let in no more
	Withheld   bool       // it is not served: of all the others only Key, ID and Revoked count
	Prepared   bool       // it is not served yet: its edges are let in, and get nothing
}

// Denied are those that are let in no more, though they may still have a certificate that has not expired.
type Denied struct {
	Edges []EdgeRef // revoked edges
	IDs   []string  // Tunnel.spec.id of tunnels that have ended
}

// EdgeRef is one edge of one tunnel. Node names alone are no identity: whoever may write a Tunnel can name any in it.
type EdgeRef struct {
	Node string // node name
	ID   string // Tunnel.spec.id
}

// Compare orders edges by tunnel, and then by node name.
func (e EdgeRef) Compare(other EdgeRef) int {
	return cmp.Or(cmp.Compare(e.ID, other.ID), cmp.Compare(e.Node, other.Node))
}

// RevokedEdges are the edges that a workload cluster revokes: they can only be its own.
func (w WorkloadCluster) RevokedEdges() []EdgeRef {
	var edges []EdgeRef
	for _, node := range w.Revoked {
		edges = append(edges, EdgeRef{Node: node, ID: w.ID})
	}
	return edges
}

// Names are all names under which clients reach the workload cluster: its hostname, then its extra names.
func (w WorkloadCluster) Names() []string {
	return append([]string{w.Hostname}, w.ExtraNames...)
}

// Key is the namespace and name that a Cluster and its Tunnel share.
type Key struct{ Namespace, Name string }

// String is namespace/name.
func (k Key) String() string { return k.Namespace + "/" + k.Name }

// Endpoint is a TCP address: an IP address or a DNS name, and a port.
type Endpoint struct {
	Host string
	Port uint16
}

// String is host:port, with brackets around an IPv6 address, and empty for the zero value.
func (e Endpoint) String() string {
	if e == (Endpoint{}) {
		return ""
	}
	return net.JoinHostPort(e.Host, strconv.Itoa(int(e.Port)))
}
