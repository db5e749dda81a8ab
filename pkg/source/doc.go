// Package source translates Cluster and Tunnel objects, or a YAML file, into the plain values of pkg/model, and
// publishes changes. Input: objects, through watches. Output: workload clusters, to a Publisher. It translates what
// the controller has recorded in Tunnel.status and grants nothing itself; what the spec, the Cluster or the clock
// withdraws is withdrawn immediately. It also looks up bootstrap tokens in the same objects. It only reads objects,
// and does not know how the values are used.
//
// The package has more than 2,500 lines because files and watched objects become the same values: they share how
// gateways are read, and what withdraws a grant.
package source
