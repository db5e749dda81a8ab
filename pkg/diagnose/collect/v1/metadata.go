// Package inspectv1 is the protocol of inspection: generated from inspect.proto, but for the names of metadata.
package inspectv1

// What an xds-server says of a node in the metadata of its ClientConfig, all as strings.
const (
	MetadataRole      = "role"            // gateway or edge
	MetadataTunnelID  = "tunnel_id"       // Tunnel.spec.id of an edge
	MetadataVersion   = "version"         // of its agent, as it says itself
	MetadataProfile   = "profile"         // the short name of the profile that it is served
	MetadataConnected = "connected_since" // RFC 3339
)
