package envoy

import (
	"fmt"
	"strings"

	"github.com/fairlead/fairlead/pkg/envoy/front"
	"github.com/fairlead/fairlead/pkg/envoy/lane"
	"github.com/fairlead/fairlead/pkg/envoy/peers"
	"github.com/fairlead/fairlead/pkg/model"
)

// Envoy clusters that are not tunnels. The names of tunnels are DNS names with at least one dot. A gateway's other
// Envoy clusters have no dot, so that no SNI or CONNECT authority of a client is routed to one of them: see
// dnsNamePattern.
const (
	agentCluster = "agent" // in every bootstrap: the agent of this Envoy

	controlCluster      = "control_channel" // gateway: the destination of the edges' control channel
	noSuchTunnelCluster = "no_such_tunnel"  // gateway: has no endpoints
	peerClusterPrefix   = "peer_"           // gateway: followed by the name of another replica

	// edge: followed by its node name; its gateways are named gateway-<i>_<node name>
	apiserverClusterPrefix = "apiserver_"
	gatewayPrefix          = "gateway-"

	forwardingClusterPrefix = "forward_"  // edge of a network: followed by its node name; all gateways
	egressClusterPrefix     = "gateways_" // beside an apiserver: followed by its node name; all gateways

	// gateway: followed by the tunnel id of a network; its edges, and the apiserver of its Cluster
	networkClusterPrefix = "network/"
	forwardClusterPrefix = "apiserver/"
)

// Listeners of a gateway, and the prefix of an edge's listeners, which is followed by its node name and the name of a
// gateway.
const (
	publicListener       = "public"
	apiserverListener    = peers.SNIListener
	connectListener      = "connect"
	tunnelListenerPrefix = "tunnel_"

	localListenerPrefix  = "local_"  // edge of a network: followed by its node name and an address
	egressListenerPrefix = "egress_" // beside an apiserver: followed by its node name
)

// localAuthority is the authority of every CONNECT to the apiserver of a network. Gateways ignore it.
const localAuthority = "apiserver:443"

// Files between the agent and Envoy, relative to Envoy's working directory, because the path of a Unix socket is
// limited to 107 bytes.
const (
	AgentSocket = "agent.sock" // of the agent: ADS and SDS
	AdminSocket = "admin.sock" // of Envoy
	LoopSocket  = "loop.sock"  // of Envoy's workers: they echo the agent's data
	// of a gateway's agent: rejects connections to workload clusters without a reverse tunnel
	UnreachableSocket = "dark.sock"
)

// StaticClusters returns the names of the Envoy clusters in the bootstrap of a role, in order. Later resources may
// refer to them, and must not have the same names.
func StaticClusters(role model.Role) []string {
	if role == model.RoleGateway {
		return []string{agentCluster, front.Name(connectListener)}
	}
	return []string{agentCluster}
}

// dnsNamePattern is a regular expression (RE2) for whole names with a dot. Both routes of a gateway get the name of an
// Envoy cluster from the client. They accept only names that match, and only tunnels have such names.
const dnsNamePattern = `[a-z0-9-]+(\.[a-z0-9-]+)+`

func peerCluster(gateway string) string { return peerClusterPrefix + gateway }

// PeerOf returns the gateway to which an Envoy cluster of a gateway relays edges. ok is false for any other Envoy
// cluster.
func PeerOf(cluster string) (gateway string, ok bool) {
	return strings.CutPrefix(cluster, peerClusterPrefix)
}

// An Envoy may have the resources of several edges, so each name contains the edge's node name.
func apiserverCluster(node string) string { return apiserverClusterPrefix + node }

func gatewayCluster(gateway, node string) string { return gateway + "_" + node }

func laneCluster(gateway string, i int, node string) string {
	return gatewayCluster(lane.Gateway(gateway, i), node)
}

func tunnelListenerName(gateway, node string) string {
	return tunnelListenerPrefix + node + "_" + gateway
}

// IsTunnelListener reports whether a listener of an edge keeps reverse tunnels to a gateway.
func IsTunnelListener(name string) bool { return strings.HasPrefix(name, tunnelListenerPrefix) }

// GatewayOf returns the gateway to which a listener of an edge keeps reverse tunnels; empty: it keeps none.
func GatewayOf(listener string) string {
	if !IsTunnelListener(listener) {
		return ""
	}
	return listener[strings.LastIndex(listener, "_")+1:]
}

// DialsGateways reports whether an Envoy cluster of an edge, or beside an apiserver, dials gateways.
func DialsGateways(name string) bool {
	return strings.HasPrefix(name, gatewayPrefix) || IsSharedGateways(name)
}

func networkCluster(tunnelID string) string { return networkClusterPrefix + tunnelID }

// NetworkCluster returns the name of a gateway's Envoy cluster of the edges of a network, by Tunnel.spec.id.
func NetworkCluster(d model.TunnelDomain, id string) string { return networkCluster(d.TunnelID(id)) }

func forwardCluster(tunnelID string) string { return forwardClusterPrefix + tunnelID }

func forwardingCluster(node string) string { return forwardingClusterPrefix + node }

func egressCluster(node string) string { return egressClusterPrefix + node }

func localListenerName(node string, at model.Endpoint) string {
	return localListenerPrefix + node + "_" + at.String()
}

// reverseAddress returns the address of an edge's listener: instead of listening, Envoy dials the Envoy cluster after
// the @, as often as the last part states at each of its addresses.
func reverseAddress(nodeID, tunnelID, cluster string, tunnels int) string {
	return fmt.Sprintf("rc://%s:%s:%s@%s:%d", nodeID, tunnelID, model.TenantID, cluster, tunnels)
}
