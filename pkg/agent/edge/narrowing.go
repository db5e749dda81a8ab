package edge

import (
	"crypto/sha256"
	"encoding/hex"
	"fmt"

	"google.golang.org/protobuf/types/known/anypb"

	"github.com/fairlead/fairlead/pkg/envoy/network"
)

// Narrowing limits what an Envoy dials in networks to what the owner of the machine allows, whatever its xds-servers
// send. It implements xdsproxy.Override, so it also applies to resources on disk.
type Narrowing struct {
	allowed network.Allowed
	form    string
}

// NarrowingOf returns the Narrowing of an agent: that of the first enrolment with a restriction, because flags about
// the machine apply to all; nil: there is none.
func NarrowingOf(edges []Config) *Narrowing {
	for _, e := range edges {
		if e.Allowed.Restricts() {
			return NewNarrowing(e.Allowed)
		}
	}
	return nil
}

// NewNarrowing returns a Narrowing to destinations.
func NewNarrowing(allowed network.Allowed) *Narrowing {
	sum := sha256.Sum256(fmt.Append(nil, allowed.CIDRs, allowed.Ports, allowed.Targets))
	return &Narrowing{allowed: allowed, form: "allowed-" + hex.EncodeToString(sum[:8])}
}

// Form implements xdsproxy.Override. It differs for each set of destinations, so that Envoy gets the resources again
// when the owner changes it.
func (n *Narrowing) Form(string) string { return n.form }

// Apply implements xdsproxy.Override.
func (n *Narrowing) Apply(_, _ string, resource *anypb.Any) *anypb.Any {
	return network.Narrow(resource, n.allowed)
}
