package agent

import (
	"context"

	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	"google.golang.org/grpc"
	"google.golang.org/protobuf/types/known/anypb"

	"github.com/fairlead/fairlead/pkg/agent/identity"
	"github.com/fairlead/fairlead/pkg/model"
	reportagent "github.com/fairlead/fairlead/pkg/report/agent"
)

// role is the difference between the memberships of an edge and of a gateway.
type role interface {
	identity.Role
	// Node returns the node for requests to the xds-server.
	Node(subject model.Subject) *corev3.Node
	// Check returns a function that rejects resources of a subject before Envoy gets them.
	Check(subject model.Subject) func(typeURL string, resource *anypb.Any) error
	// Over removes the state of an identity that is over.
	Over()
	// Report sends the reports of this membership until ctx ends, or until the server will never accept them. dump
	// answers queries for Envoy's configuration.
	Report(ctx context.Context, conn grpc.ClientConnInterface, dump reportagent.Dump) error
}
