// Package envoy turns one model value into Envoy resources: the listeners and Envoy clusters of a gateway (Envoy's word
// is responder) and of an edge (initiator), and the bootstrap that each starts with. Its functions are pure: equal
// values give equal bytes. It does not know where the values come from, who sends the resources to an Envoy, or how a
// certificate is made: certificates are named by SDS secret and never appear here but in IdentitySecret and TrustSecret.
//
// The values must have passed model's Validate functions. What Envoy itself does not check, such as a name that no Envoy
// cluster has, is for the caller to check, with References and StaticClusters.
package envoy
