// Package decision decides what each Tunnel is granted. The input is Clusters and Tunnels, or plain candidates from
// the files of `fairlead render`. The output is the names, id, addresses and limits that each Tunnel is granted, the
// claims that are rejected with their reasons, and the record of this for Tunnel.status. The controller is the only
// process that writes this record; the xds-servers serve what is recorded. All functions are pure: the package reads
// no clock, does no I/O and knows neither the apiserver nor Envoy.
package decision
