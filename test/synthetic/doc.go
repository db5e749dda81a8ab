// Package synthetic plays thousands of edges in one process. Each speaks the protocol of reverse tunnels to a real gateway, over
// both layers of TLS: it dials the public port, shows its leaf, asks for a tunnel as Envoy does, and is the server in it, of an
// apiserver that exists in memory alone. In go identities and an address, out come tunnels and figures. It knows no test framework.
//
// Trade-offs. An idle tunnel has a socket and no goroutine: one epoll watches all of them, so that an edge with two
// idle tunnels costs about 6 KB of memory, and 10,000 of them tens of megabytes. They dial again as Envoy's edges do (tuning.go of
// pkg/envoy): at a jittered interval, and after a second and up to a half when that failed. What they are not:
// they send no HTTP/2 pings of their own, and follow an xds-server only where Follow is called, without doing what it says.
package synthetic
