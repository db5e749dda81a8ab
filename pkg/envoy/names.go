package envoy

import (
	"fmt"
	"strings"

	"github.com/fairlead/fairlead/pkg/model"
)

// Envoy clusters that are no tunnels. The names of tunnels are DNS names with at least one dot; these have none, so that
// no name which a client sends as SNI or CONNECT authority leads to one of them: see dnsNamePattern.
const (
	xdsServerCluster = "xds_server" // in every bootstrap: the xds-server
	agentCluster     = "agent"      // in every bootstrap: the agent beside this Envoy, for its certificates

	controlCluster      = "control_channel" // gateway: where the control channel of edges is passed to
	noSuchTunnelCluster = "no_such_tunnel"  // gateway: leads nowhere
	peerClusterPrefix   = "peer_"           // gateway: followed by the name of another replica

	apiserverCluster = "apiserver" // edge: the workload cluster's apiserver; its gateways are called gateway-<i>
)

// Listeners of a gateway, and the prefix of those of an edge, which is followed by the name of a gateway.
const (
	publicListener       = "public"
	apiserverListener    = "apiserver"
	connectListener      = "connect"
	tunnelListenerPrefix = "tunnel_"
)

// SDS secrets that the agent serves, and the Unix sockets between it and Envoy. The sockets are relative to Envoy's
// working folder, because the path of a Unix socket may have no more than 107 bytes.
const (
	IdentitySecretName = "identity" // leaf and key
	TrustSecretName    = "trust"    // trust bundle
	AgentSocket        = "agent.sock"
	AdminSocket        = "admin.sock"
)

// StaticClusters are the names of the Envoy clusters that every bootstrap has, in order. Resources that are sent later
// may refer to them, and must not have their names.
func StaticClusters() []string { return []string{agentCluster, xdsServerCluster} }

// dnsNamePattern is a regular expression (RE2) for whole names with a dot. Both routes of a gateway take the name of an
// Envoy cluster from what a client sends; they look only at names of this form, which no Envoy cluster has but tunnels.
const dnsNamePattern = `[a-z0-9-]+(\.[a-z0-9-]+)+`

func peerCluster(gateway string) string { return peerClusterPrefix + gateway }

// reverseAddress is the address of an edge's listener: Envoy dials the Envoy cluster behind the @ instead of listening.
func reverseAddress(edge model.Subject, d model.TunnelDomain, cluster string) string {
	return fmt.Sprintf("rc://%s:%s:%s@%s:%d", edge.NodeID(), d.TunnelID(edge.ID), model.TenantID, cluster, tunnelsPerGateway)
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
