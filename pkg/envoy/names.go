package envoy

import (
	"fmt"
	"strings"

	"github.com/fairlead/fairlead/pkg/model"
)

// Envoy clusters that are no tunnels. The names of tunnels are DNS names with at least one dot; those that a gateway has
// beside them have none, so that no name which a client sends as SNI or CONNECT authority leads to one of them: see
// dnsNamePattern.
const (
	agentCluster = "agent" // in every bootstrap: the agent beside this Envoy

	controlCluster      = "control_channel" // gateway: where the control channel of edges is passed to
	noSuchTunnelCluster = "no_such_tunnel"  // gateway: leads nowhere
	peerClusterPrefix   = "peer_"           // gateway: followed by the name of another replica

	apiserverClusterPrefix = "apiserver_" // edge: followed by its node name; its gateways are called gateway-<i>_<node name>
)

// Listeners of a gateway, and the prefix of those of an edge, which is followed by its node name and the name of a gateway.
const (
	publicListener       = "public"
	apiserverListener    = "apiserver"
	connectListener      = "connect"
	tunnelListenerPrefix = "tunnel_"
)

// Files between the agent and Envoy, relative to Envoy's working folder, because the path of a Unix socket may have no more
// than 107 bytes.
const (
	AgentSocket = "agent.sock"  // of the agent: ADS and SDS
	AdminSocket = "admin.sock"  // of Envoy
	LoopSocket  = "loop.sock"   // of Envoy's workers: they send back what the agent sends
	DarkSocket  = "dark.sock"   // of a gateway's agent: says no for workload clusters without a tunnel
	TunnelLog   = "tunnels.log" // to which the Envoy of a gateway appends a line of JSON when a tunnel opens or ends
)

// SecretNames are the names of the SDS secrets by which Envoy knows a subject: its leaf and key, and the trust bundle. The
// Envoy of an edge may have several, one for each of its enrolments, so there the node name is part of them.
func SecretNames(s model.Subject) (identity, trust string) {
	if s.Role != model.RoleEdge {
		return "identity", "trust"
	}
	return "identity_" + s.Node, "trust_" + s.Node
}

// StaticClusters are the names of the Envoy clusters that every bootstrap has, in order. Resources that are sent later
// may refer to them, and must not have their names.
func StaticClusters() []string { return []string{agentCluster} }

// dnsNamePattern is a regular expression (RE2) for whole names with a dot. Both routes of a gateway take the name of an
// Envoy cluster from what a client sends; they look only at names of this form, which no Envoy cluster has but tunnels.
const dnsNamePattern = `[a-z0-9-]+(\.[a-z0-9-]+)+`

func peerCluster(gateway string) string { return peerClusterPrefix + gateway }

// PeerOf returns the gateway to which an Envoy cluster of a gateway passes edges on; ok is false for one that is for something else.
func PeerOf(cluster string) (gateway string, ok bool) {
	return strings.CutPrefix(cluster, peerClusterPrefix)
}

// An Envoy may have the resources of several edges, so the name of each has the edge's node name in it.
func apiserverCluster(node string) string { return apiserverClusterPrefix + node }

func gatewayCluster(gateway, node string) string { return gateway + "_" + node }

func tunnelListenerName(gateway, node string) string {
	return tunnelListenerPrefix + node + "_" + gateway
}

// reverseAddress is the address of an edge's listener: Envoy dials the Envoy cluster behind the @ instead of listening, as often as
// the last part says at each of its addresses.
func reverseAddress(edge model.Subject, d model.TunnelDomain, cluster string, tunnels int) string {
	return fmt.Sprintf("rc://%s:%s:%s@%s:%d", edge.NodeID(), d.TunnelID(edge.ID), model.TenantID, cluster, tunnels)
}

// dialled is the inverse of reverseAddress: the Envoy cluster that is dialled, and false for any other address.
func dialled(address string) (cluster string, ok bool) {
	rest, ok := strings.CutPrefix(address, "rc://")
	if !ok {
		return "", false
	}
	_, target, ok := strings.Cut(rest, "@")
	cluster, _, _ = strings.Cut(target, ":")
	return cluster, ok
}
