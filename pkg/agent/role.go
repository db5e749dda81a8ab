package agent

import (
	"context"

	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	"google.golang.org/grpc"
	"google.golang.org/protobuf/types/known/anypb"

	"github.com/fairlead/fairlead/pkg/agent/identity"
	"github.com/fairlead/fairlead/pkg/model"
	"github.com/fairlead/fairlead/pkg/report"
)

// role is what the memberships of an edge and of a gateway do differently.
type role interface {
	identity.Role
	// node is whom to be at the xds-server.
	Node(subject model.Subject) *corev3.Node
	// check returns what refuses resources of a subject before Envoy gets them.
	Check(subject model.Subject) func(typeURL string, resource *anypb.Any) error
	// over forgets what belonged to an identity that is over.
	Over()
	// report says how this membership is until ctx ends, or until it is never heard again. dump answers who asks what Envoy runs.
	Report(ctx context.Context, conn grpc.ClientConnInterface, dump report.Dump) error
}
