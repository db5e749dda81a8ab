// Package source turns Cluster and Tunnel objects, or a YAML file, into the plain values of pkg/model, and says what
// changes. Objects go in through watches, workload clusters come out, to a Publisher. It translates what the controller
// has recorded in Tunnel.status and grants nothing by itself; what the spec, the Cluster or the clock withdraws is
// withdrawn at once. It also answers from the same objects which bootstrap tokens there are. It only reads, and does
// not know what is made of the values.
package source
