// Package envoy translates one model value into Envoy resources: the listeners and Envoy clusters of a gateway
// (Envoy's term is responder) and of an edge (initiator), and the bootstrap of each. Its functions are pure: equal
// values give equal bytes. The package does not know the origin of the values, how resources are sent to an Envoy, or
// how a certificate is created: certificates are named by SDS secret, and appear only in IdentitySecret and
// TrustSecret.
//
// The values must have passed model's Validate functions. The caller must check what Envoy itself does not check, such
// as references to Envoy clusters that do not exist, with package references and StaticClusters.
//
// The package has more than 2,500 lines because the two ends of a reverse tunnel, and the listener that both use, share
// names and times that must match.
package envoy
