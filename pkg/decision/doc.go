// Package decision decides what each Tunnel is granted. Clusters and Tunnels (or plain candidates, from the files of
// `fairlead render`) go in; out comes which names, id, addresses and limits each one is granted, which are refused and
// why, and the record of that for Tunnel.status. The controller is the only process that writes this record; the
// xds-servers serve what is recorded. All functions are pure: the package reads no clock, does no I/O and knows neither
// the apiserver nor Envoy.
package decision
