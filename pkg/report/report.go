// Package report is the part of the control channel by which edges and gateways say how they are: the hub in the xds-server,
// the reporters in the agents, and the watcher in the controller. In go reports, out comes a view of the fleet that is
// exact after any restart, because each reporter sends all it knows whenever it connects. It knows no Kubernetes.
//
// Nothing is stored, so all depends on who has had time to say what. These rules make it exact within 15 s of the return of
// whatever was away, and never wrong in between, only not known:
//
//   - An agent is back at an xds-server within retryMax of its return, with all it knows. The newest stream of an edge or a
//     gateway counts, and the end of an older one means nothing.
//   - A hub that has just begun to admit does not say synced before settleTime has passed, which is longer than that. So after
//     the restart of an xds-server, or of all of them, a controller keeps what it had, and one that restarted with them
//     concludes nothing, until every agent that lives has reported.
//   - An agent that goes from one xds-server to another is with the one to which it connected last, whatever the other has
//     not noticed yet. Times of several servers are compared by the watcher's clock: each stream begins with the server's.
//   - A gateway that ends its stream is silent for silentTime: its agent is being restarted, or on its way to another server. What it
//     said last counts, but nothing is concluded from what is absent, be it there or not. After that it is down.
//   - What a server said that went away holds for holdTime, because the agents may still be with it; or for settleTime, when all
//     servers that there are have said all they know, because then every agent has had time to be with another one.
//   - While no server is there that has said all it knows, time stands still: nothing is known, and nothing is forgotten.
//
// A gateway that starts asks the hubs what tunnels the others have: see Peers and MergePeers.
//
// All that a gateway says is applied in one step, since its counts come before its state; so a tunnel is never seen
// to be away because its gateway has changed the server or came back.
package report

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	callers "github.com/fairlead/fairlead/internal/caller"
	"github.com/fairlead/fairlead/internal/retry"
	"github.com/fairlead/fairlead/pkg/certs"
	"github.com/fairlead/fairlead/pkg/model"
)

const (
	// settleTime is longer than an agent needs to be back: retryMax, the same for the connection, and a handshake.
	settleTime = 7 * time.Second
	// silentTime is longer than a restart of a gateway-agent, or of a gateway with its Envoy.
	silentTime = 30 * time.Second
	// holdTime is longer than an xds-server that is rescheduled stays in DNS.
	holdTime = time.Minute
	// keepTime is for how long who went away is remembered, so that a controller that was away too still learns when.
	keepTime = time.Hour
)

// reopening is the wait before a stream is opened again.
var reopening = retry.Backoff{Min: 250 * time.Millisecond, Max: 3 * time.Second}

// Admission decides who may report, and whom gateways deny.
type Admission interface {
	// Admit returns nil, or a gRPC status: codes.FailedPrecondition for an edge that is revoked or whose tunnel has ended,
	// codes.Unavailable while that is not known, or for a tunnel that is not known.
	Admit(subject model.Subject) error
	// Denied returns who is let in no more, and a channel that is closed when that changes.
	Denied() (model.Denied, <-chan struct{})
	// Gateways returns the names of all gateways of the installation, as far as it is known.
	Gateways() []string
}

// caller is who opened a stream, by its certificate alone. It must have the role.
func caller(ctx context.Context, d model.TunnelDomain, role model.Role, now time.Time) (model.Subject, error) {
	_, subject, err := callers.Of(ctx, d, func(state tls.ConnectionState) (*x509.Certificate, error) { return certs.VerifyNow(state, now) })
	if err != nil {
		return model.Subject{}, err
	}
	if subject.Role != role {
		return model.Subject{}, status.Errorf(codes.PermissionDenied, "this is for the role %s, not for %s", role, subject.Role)
	}
	return subject, nil
}
