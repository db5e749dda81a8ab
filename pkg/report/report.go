// Package report holds what the ends of the report streams share: what a report may contain, the times that reports are
// judged by, the latest boot reports, and the loop that keeps a stream open. Its parts are agent (what edges and
// gateways send), hub (the xds-server's side) and view (the controller's side): reports go in, and a view of the fleet
// comes out that is exact after any restart, because each agent sends all of its state whenever it connects. None of
// them knows Kubernetes.
//
// No report is stored on disk, so conclusions depend on time. These rules make the view exact within 15 s of the return
// of whatever was away, and never wrong in between, only unknown:
//
//   - An agent is back at an xds-server within Reopen.Max of its return, with all of its state. The newest stream of
//     an edge or a gateway counts, and the end of an older one means nothing.
//   - A hub sends synced no sooner than Times.Settle after the first stream that it admitted, which is longer than
//     that. So after the restart of an xds-server, or of all of them, a controller keeps what it had, and one that
//     restarted with them concludes nothing, until every live agent has reported.
//   - An agent that moves from one xds-server to another is with the one to which it connected last, whatever the
//     other has not noticed yet. Times of several servers are compared by the view's clock: each stream begins with
//     the server's.
//   - A gateway that ends its stream is silent for Times.Silent: its agent restarts, or moves to another server. Its
//     last report counts, but nothing is concluded from what is absent. After that it is down.
//   - What a server that went away had reported holds for Times.Hold, because the agents may still be with it; or for
//     Times.Settle, when all servers that exist are synced, because then every agent has had time to move to another
//     one.
//   - While no server is synced, time stands still: nothing is known, and nothing is forgotten.
//
// A gateway that starts asks the hubs which tunnels the others have: see agent.Peers and agent.MergePeers.
//
// All that a gateway reports is applied in one step, since its counts come before its state; so a tunnel never seems to
// be away because its gateway has changed the server or came back.
package report

import (
	"context"
	"time"

	"google.golang.org/grpc/metadata"

	"github.com/fairlead/fairlead/internal/retry"
	"github.com/fairlead/fairlead/pkg/model"
	reportv1 "github.com/fairlead/fairlead/pkg/report/v1"
)

// Times are the times that a hub and a view judge reports by: see the package comment.
type Times struct {
	// Settle exceeds the time that an agent takes to reconnect: Reopening.Max, the same for the connection, and a
	// handshake.
	Settle time.Duration
	// Silent exceeds a restart of a gateway-agent, or of a gateway with its Envoy.
	Silent time.Duration
	// Hold exceeds the time that a rescheduled xds-server stays in DNS.
	Hold time.Duration
	// Keep is how long an absent agent is stored, so that a controller that was down too still learns when it
	// disconnected.
	Keep time.Duration
	// Tick is the precision with which a view keeps these times.
	Tick time.Duration
	// Reopen is the wait before a view opens a stream again.
	Reopen retry.Backoff
}

// DefaultTimes are the times of the product. Tests use shorter ones.
var DefaultTimes = Times{
	Settle: 7 * time.Second, Silent: 30 * time.Second, Hold: time.Minute, Keep: time.Hour, Tick: time.Second,
	Reopen: Reopening,
}

// Reopening is the wait before a stream is opened again.
var Reopening = retry.Backoff{Min: 250 * time.Millisecond, Max: 3 * time.Second}

// Limits that an agent and a hub share.
const (
	// EdgePace is the least time between two messages that a hub reads from one stream of an edge. An agent that sends
	// faster is blocked by the flow control of HTTP/2.
	EdgePace = 250 * time.Millisecond
	// GatewayPace is the same for a gateway.
	GatewayPace = 50 * time.Millisecond
	// MaxQuestions is how many questions one agent is asked at a time; of dumps it is one.
	MaxQuestions = 4
	// DumpTime is how long an agent has to send all that its Envoy runs.
	DumpTime = 20 * time.Second
)

// keepsDenied is the key of the gRPC metadata of KeepDenied.
const keepsDenied = "fairlead-keeps-denied"

// KeepDenied returns the context for the stream of a gateway-agent that keeps what it denies until a message contains
// denials. An agent of an earlier version takes a message without denials for one that denies nothing.
func KeepDenied(ctx context.Context) context.Context {
	return metadata.AppendToOutgoingContext(ctx, keepsDenied, "true")
}

// KeepsDenied reports whether the stream of a hub is of an agent that used KeepDenied.
func KeepsDenied(ctx context.Context) bool {
	return len(metadata.ValueFromIncomingContext(ctx, keepsDenied)) > 0
}

// DeniedMessage and DeniedOf are the inverse of each other.
func DeniedMessage(d model.Denied) *reportv1.Denied {
	message := &reportv1.Denied{TunnelIds: d.IDs}
	for _, e := range d.Edges {
		message.Edges = append(message.Edges, &reportv1.Edge{Node: e.Node, TunnelId: e.ID})
	}
	return message
}

// DeniedOf returns the denials in a message.
func DeniedOf(message *reportv1.Denied) model.Denied {
	d := model.Denied{IDs: message.GetTunnelIds()}
	for _, e := range message.GetEdges() {
		d.Edges = append(d.Edges, model.EdgeRef{Node: e.GetNode(), ID: e.GetTunnelId()})
	}
	return d
}
