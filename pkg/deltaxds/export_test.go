package deltaxds

import discoveryv3 "github.com/envoyproxy/go-control-plane/envoy/service/discovery/v3"

// Receive is Request with the claims of the request.
func (s *Stream) Receive(kind int, r *discoveryv3.DeltaDiscoveryRequest) Answer {
	return s.Request(kind, r, ClaimsOf(r))
}
