// Package inspectv1 is the protocol of inspection: generated from inspect.proto, but for the names of metadata.
package inspectv1

// Keys of a node's metadata in its ClientConfig. All values are strings.
const (
	MetadataRole      = "role"            // gateway or edge
	MetadataTunnelID  = "tunnel_id"       // Tunnel.spec.id of an edge
	MetadataVersion   = "version"         // of its agent, by its own report
	MetadataProfile   = "profile"         // short name of the profile that the node is served
	MetadataConnected = "connected_since" // RFC 3339
)
