// Package front puts a TCP proxy before a listener whose HTTP connection manager accepts clients. In go that listener
// and its TCP proxy; out come the listener on the port and an internal listener, which keeps everything else. It does
// not know what the HTTP connection manager does.
//
// Envoy 1.40 may lose a connection that it accepts at the moment at which a reverse tunnel in use ends: it receives no
// events for it. A TCP proxy stops reading from a client until it has a connection of its own, and asks for events
// again then, so it loses none. An HTTP connection manager reads at once, and would wait forever.
package front

import (
	clusterv3 "github.com/envoyproxy/go-control-plane/envoy/config/cluster/v3"
	endpointv3 "github.com/envoyproxy/go-control-plane/envoy/config/endpoint/v3"
	listenerv3 "github.com/envoyproxy/go-control-plane/envoy/config/listener/v3"
	tcpproxyv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/network/tcp_proxy/v3"
	"google.golang.org/protobuf/types/known/wrapperspb"

	"github.com/fairlead/fairlead/pkg/envoy/typed"
)

// prefix of the names of internal listeners, and of the Envoy clusters that dial them. A client cannot select such an
// Envoy cluster, because its name has a slash.
const prefix = "clients/"

// Name returns the name of the internal listener behind a listener, and of the Envoy cluster that dials it.
func Name(listener string) string { return prefix + listener }

// Split returns l, on its port, with only the TCP proxy, which leads to the Envoy cluster Name, and an internal
// listener with the filters of l. The first of these has to read the PROXY header with which Cluster sends a client's
// address.
func Split(l *listenerv3.Listener, proxy *tcpproxyv3.TcpProxy) []*listenerv3.Listener {
	inside := typed.InternalListener(Name(l.GetName()), Name(l.GetName()))
	inside.PerConnectionBufferLimitBytes = l.GetPerConnectionBufferLimitBytes()
	inside.ListenerFilters, l.ListenerFilters = l.GetListenerFilters(), nil
	inside.FilterChains, l.FilterChains = l.GetFilterChains(), []*listenerv3.FilterChain{{
		Name:    l.GetName(),
		Filters: []*listenerv3.Filter{typed.NetworkFilter("envoy.filters.network.tcp_proxy", proxy)},
	}}
	return []*listenerv3.Listener{l, inside}
}

// Cluster changes an Envoy cluster that sends the address of each client in a PROXY header such that it dials the
// internal listener behind a listener. buffer is the limit of the buffers of each connection, in bytes.
func Cluster(c *clusterv3.Cluster, listener string, buffer uint32) *clusterv3.Cluster {
	c.Name = Name(listener)
	c.LoadAssignment = typed.LoadAssignment(c.Name, []*endpointv3.LbEndpoint{typed.InternalHost(c.Name)})
	c.PerConnectionBufferLimitBytes = wrapperspb.UInt32(buffer)
	return c
}
