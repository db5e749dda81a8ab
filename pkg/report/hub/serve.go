package hub

import (
	"context"
	"errors"
	"io"
	"maps"
	"slices"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/fairlead/fairlead/internal/ending"
	"github.com/fairlead/fairlead/internal/limit"
	"github.com/fairlead/fairlead/internal/retry"
	"github.com/fairlead/fairlead/pkg/model"
	"github.com/fairlead/fairlead/pkg/report"
	reportv1 "github.com/fairlead/fairlead/pkg/report/v1"
)

const (
	// firstReportTimeout is how long a stream may take to its first report.
	firstReportTimeout = 30 * time.Second
	// maxLoggedRefusals is how many callers and reasons are stored for refusalLogRate.
	maxLoggedRefusals = 4096
)

// refusalLogRate is how often the same rejection is logged.
var refusalLogRate = limit.Rate{Every: time.Hour, Burst: 1}

// Gateway implements the service.
func (h *Hub) Gateway(stream grpc.BidiStreamingServer[reportv1.GatewayReport, reportv1.GatewayOrders]) error {
	c := &conversation[reportv1.GatewayReport]{
		hub: h, role: model.RoleGateway, pace: report.GatewayPace,
		recv: stream.Recv, take: h.gatewayReport,
	}
	keeps := report.KeepsDenied(stream.Context())
	var sent *model.Denied // nil: none were
	return c.serve(stream.Context(), func(q *reportv1.Question, changed bool) error {
		orders := &reportv1.GatewayOrders{Question: q}
		if changed || !keeps {
			denied, _ := h.admission.Denied() // the newest: one sender after the other
			same := sent != nil && denied.Equal(*sent)
			switch {
			case !same, q != nil && !keeps:
				orders.Denied, sent = report.DeniedMessage(denied), &denied
			case q == nil:
				return nil
			}
		}
		return stream.Send(orders)
	})
}

// Edge implements the service.
func (h *Hub) Edge(stream grpc.BidiStreamingServer[reportv1.EdgeReport, reportv1.EdgeOrders]) error {
	c := &conversation[reportv1.EdgeReport]{
		hub: h, role: model.RoleEdge, pace: report.EdgePace, recv: stream.Recv,
		take: h.edgeReport,
	}
	return c.serve(stream.Context(), func(q *reportv1.Question, _ bool) error {
		return stream.Send(&reportv1.EdgeOrders{Question: q})
	})
}

// conversation is one stream of an edge or a gateway. There are thousands, mostly idle, so each has one goroutine,
// which reads. Another one sends, and exists only while messages are pending.
type conversation[M any] struct {
	hub  *Hub
	role model.Role
	pace time.Duration
	recv func() (*M, error)
	take func(*session, *M) error
}

// serve serves a stream to its end, and logs a rejection. send sends orders, with or without a question, and with the
// denials if they may have changed; it is never called concurrently.
func (c *conversation[M]) serve(ctx context.Context, send func(q *reportv1.Question, denied bool) error) error {
	subject, err := caller(ctx, c.hub.domain, c.role, c.hub.now())
	if err == nil {
		err = ending.Serve(ctx, func(end func(error)) error {
			return c.converse(ctx, &session{subject: subject, end: end, asked: asked{send: send}})
		})
	}
	c.hub.refused(subject, err)
	return err
}

func (c *conversation[M]) converse(ctx context.Context, s *session) error {
	h := c.hub
	// Before the session begins: a stream that is not admitted must not end another one.
	if err := h.admission.Admit(s.subject); err != nil {
		return err
	}
	h.watching.Do(func() {
		_, changed := h.admission.Denied()
		go h.watchDenied(changed)
	})
	h.begin(s)
	defer h.finish(s)
	// A revocation since the first check did not find this session.
	if err := h.admission.Admit(s.subject); err != nil {
		return err
	}
	if h.open.Err() != nil {
		return errShutdown
	}
	if c.role == model.RoleGateway {
		h.order(s)
	}
	first := time.AfterFunc(
		firstReportTimeout, func() { s.end(status.Error(codes.DeadlineExceeded, "the stream sent no report in time")) },
	)
	defer first.Stop()
	for {
		m, err := c.recv()
		if errors.Is(err, io.EOF) {
			return nil
		}
		if err != nil {
			return err
		}
		first.Stop()
		if err := c.take(s, m); err != nil {
			return err
		}
		if err := retry.Sleep(ctx, c.pace); err != nil {
			return status.FromContextError(err).Err()
		}
	}
}

// watchDenied ends the streams that are no longer admitted, sends changed denials to gateways, and ends all streams
// when the hub is closed. One goroutine does so for all of them. changed is closed when the denials differ from the
// denials at the first stream. It may be closed for edges that are not among them, and then gateways get nothing: each
// stream compares the denials with those that it has sent, because this goroutine may not see all of them.
func (h *Hub) watchDenied(changed <-chan struct{}) {
	for {
		select {
		case <-changed:
		case <-h.open.Done():
			h.endAll(func(*session) error { return errShutdown })
			return
		}
		_, changed = h.admission.Denied()
		for _, s := range h.endAll(func(s *session) error { return h.admission.Admit(s.subject) }) {
			if s.subject.Role == model.RoleGateway {
				h.order(s)
			}
		}
	}
}

// endAll ends the sessions for which why returns an error, and returns the others.
func (h *Hub) endAll(why func(*session) error) (others []*session) {
	h.mu.Lock()
	all := slices.Collect(maps.Values(h.sessions))
	h.mu.Unlock()
	for _, s := range all {
		if err := why(s); err != nil {
			s.end(err)
		} else {
			others = append(others, s)
		}
	}
	return others
}

// refused logs the rejection of a caller, at refusalLogRate: a rejected caller retries again and again.
func (h *Hub) refused(subject model.Subject, err error) {
	refusals := []codes.Code{
		codes.PermissionDenied, codes.Unauthenticated, codes.InvalidArgument,
		codes.ResourceExhausted, codes.FailedPrecondition,
	}
	code := status.Code(err)
	if slices.Contains(refusals, code) && h.loggedRefusals.Take(string(subject.Role)+" "+subject.Node+" "+code.String(),
		refusalLogRate) == 0 {
		h.log.Warn("report rejected", "role", subject.Role, "node", subject.Node, "error", err)
	}
}
