package agent

import (
	"context"

	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	"google.golang.org/grpc"
	"google.golang.org/protobuf/types/known/anypb"

	"github.com/fairlead/fairlead/pkg/certs"
	"github.com/fairlead/fairlead/pkg/dial"
	"github.com/fairlead/fairlead/pkg/model"
	"github.com/fairlead/fairlead/pkg/report"
)

// role is what the memberships of an edge and of a gateway do differently.
type role interface {
	// enrol tries once to get a first identity, and the trust bundle (PEM) to go with it. It reads its credential anew at
	// each call, because somebody may have replaced it. An error that wraps certs.ErrRefused is the server's last word.
	enrol(ctx context.Context) (certs.Identity, []byte, error)
	// cure is what a person can do when enrolment is refused.
	cure() string
	// expected is what the credential is for now: the id of a tunnel, empty if it does not say, and the CA (PEM) of the
	// control channel. It is read anew at each call.
	expected() (id string, ca []byte, err error)
	// control is the domain whose names the control channel has, and the way there.
	control() (model.TunnelDomain, *dial.Way)
	// owns returns an error for a subject that is not of this role.
	owns(subject model.Subject) error
	// node is whom to be at the xds-server.
	node(subject model.Subject) *corev3.Node
	// check returns what refuses resources of a subject before Envoy gets them.
	check(subject model.Subject) func(typeURL string, resource *anypb.Any) error
	// over forgets what belonged to an identity that is over.
	over()
	// report says how this membership is until ctx ends, or until it is never heard again. dump answers who asks what Envoy runs.
	report(ctx context.Context, conn grpc.ClientConnInterface, dump report.Dump) error
}
