// Package lane makes the resources of lanes from those of an edge's usual reverse tunnels. A lane is a further set of
// reverse tunnels of an edge to one gateway, with a node id of its own. A gateway's Envoy makes a host of each node id
// that has reverse tunnels in a worker, and selects the hosts of a tunnel id in turn. So streams spread over lanes,
// while Envoy fills one reverse tunnel of a host before it uses the next, and a lane without reverse tunnels costs no
// request. The package does not know what else listeners and Envoy clusters consist of.
package lane

import (
	"fmt"
	"strings"

	clusterv3 "github.com/envoyproxy/go-control-plane/envoy/config/cluster/v3"
	listenerv3 "github.com/envoyproxy/go-control-plane/envoy/config/listener/v3"
	reversetunnelv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/network/reverse_tunnel/v3"
	tlsv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/transport_sockets/tls/v3"
	"google.golang.org/protobuf/proto"

	"github.com/fairlead/fairlead/pkg/envoy/typed"
	"github.com/fairlead/fairlead/pkg/model"
)

// Names of a lane's resources: they begin and end as the usual ones, because what dials a gateway, and the gateway of a
// listener, is known by that.

// Gateway returns what takes the place of the gateway's name in the name of an Envoy cluster.
func Gateway(gateway string, lane int) string { return fmt.Sprintf("%s-lane-%d", gateway, lane) }

// Node returns what takes the place of the node name in the name of a listener.
func Node(node string, lane int) string { return fmt.Sprintf("%s_lane-%d", node, lane) }

// Listener returns the listener of a lane from the usual one. address is that of model.TunnelDomain.LaneNodeID.
func Listener(usual *listenerv3.Listener, name, address string) *listenerv3.Listener {
	l := proto.CloneOf(usual)
	l.Name, l.StatPrefix = name, name
	l.GetAddress().GetSocketAddress().Address = address
	return l
}

// Cluster returns the Envoy cluster that dials a lane from the one that dials the gateway. sni is the name of the lane;
// the name in the gateway's leaf stays.
func Cluster(usual *clusterv3.Cluster, name, sni string) *clusterv3.Cluster {
	c := proto.CloneOf(usual)
	c.Name, c.LoadAssignment.ClusterName = name, name
	context := &tlsv3.UpstreamTlsContext{}
	must(c.GetTransportSocket().GetTypedConfig().UnmarshalTo(context))
	context.Sni = sni
	c.TransportSocket.GetTypedConfig().Value = typed.Pack(context).GetValue()
	return c
}

// prefix is what the name of the filter chain of lanes begins with.
const prefix = "lanes."

// Chain returns the filter chain that accepts the reverse tunnels of a gateway's lanes, from the one for its usual
// ones, which ends with the filter for reverse tunnels. names are those of the lanes. The node id of a lane is the
// leaf's subject with the name that the edge has selected.
func Chain(usual *listenerv3.FilterChain, names []string) *listenerv3.FilterChain {
	c := proto.CloneOf(usual)
	c.Name = prefix + usual.GetName()
	c.FilterChainMatch.ServerNames = names
	last, tunnels := c.GetFilters()[len(c.GetFilters())-1], &reversetunnelv3.ReverseTunnel{}
	must(last.GetTypedConfig().UnmarshalTo(tunnels))
	tunnels.GetValidation().NodeIdFormat += model.LaneSeparator + "%REQUESTED_SERVER_NAME%"
	last.GetTypedConfig().Value = typed.Pack(tunnels).GetValue()
	return c
}

// Names returns the names of the first lanes of a gateway.
func Names(d model.TunnelDomain, gateway string, lanes int) (names []string) {
	for lane := 1; lane <= lanes; lane++ {
		names = append(names, d.Lane(gateway, lane))
	}
	return names
}

// Of returns how many lanes a listener accepts.
func Of(l *listenerv3.Listener) int {
	for _, chain := range l.GetFilterChains() {
		if strings.HasPrefix(chain.GetName(), prefix) {
			return min(len(chain.GetFilterChainMatch().GetServerNames()), model.MaxLanes)
		}
	}
	return 0
}

// must panics: the resources come from this build.
func must(err error) {
	if err != nil {
		panic(err)
	}
}
