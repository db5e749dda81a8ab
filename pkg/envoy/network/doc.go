// Package network renders the parts of Envoy resources that decide which destinations apiservers reach in networks: on
// gateways the routes from an apiserver to the networks of its Cluster, on the edges of a network the filters that
// reject every other destination. It also reads these parts, and narrows them, for the agents of edges. Its functions
// are pure. The package does not know listeners, tunnels or certificates, or how a connection is authenticated: package
// envoy sets IdentityHeader from the certificate of an apiserver.
package network
