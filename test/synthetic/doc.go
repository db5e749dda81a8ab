// Package synthetic simulates thousands of edges in one process. Each uses the protocol of reverse tunnels with a real
// gateway, over both layers of TLS: it dials the public port with its leaf, requests a tunnel like Envoy, and is the
// server in the tunnel, for an apiserver that exists only in memory. Its input is identities and an address. Its output
// is tunnels and figures. It knows no test framework.
//
// Trade-offs: an idle tunnel has a socket and no goroutine. One epoll watches all of them, so that an edge with two
// idle tunnels costs about 6 KB of memory, and 10,000 edges cost tens of megabytes. Edges reconnect like Envoy's
// (tuning.go of pkg/envoy): at a jittered interval, and after a failure with a pause of 1 to 1.5 s. Unlike real edges,
// they send no HTTP/2 pings of their own, connect to an xds-server only if Follow is called, and do not apply its
// resources.
package synthetic
