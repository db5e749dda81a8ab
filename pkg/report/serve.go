package report

import (
	"context"
	"errors"
	"io"
	"slices"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/fairlead/fairlead/internal/limit"
	"github.com/fairlead/fairlead/internal/retry"
	"github.com/fairlead/fairlead/pkg/model"
	reportv1 "github.com/fairlead/fairlead/pkg/report/v1"
)

const (
	// edgePace and gatewayPace are the least time between two messages that are read of one stream. Who sends faster waits, by
	// the flow control of HTTP/2.
	edgePace, gatewayPace = 250 * time.Millisecond, 50 * time.Millisecond
	// firstTime is how long a stream may say nothing at its beginning.
	firstTime = 30 * time.Second
	// maxSaid is how many callers and reasons are remembered for sayRate.
	maxSaid = 4096
)

// sayRate is how often the same refusal is logged.
var sayRate = limit.Rate{Every: time.Hour, Burst: 1}

// Gateway implements the service.
func (h *Hub) Gateway(stream grpc.BidiStreamingServer[reportv1.GatewayReport, reportv1.GatewayOrders]) error {
	c := &conversation[reportv1.GatewayReport]{
		hub: h, role: model.RoleGateway, pace: gatewayPace, recv: stream.Recv, take: h.gatewayReport,
		tell: func(d model.Denied, q *reportv1.Question) error {
			return stream.Send(&reportv1.GatewayOrders{Denied: deniedMessage(d), Question: q})
		},
	}
	return c.serve(stream.Context())
}

// conversation is one stream of an edge or a gateway.
type conversation[M any] struct {
	hub  *Hub
	role model.Role
	pace time.Duration
	recv func() (*M, error)
	take func(*session, *M) error
	tell func(model.Denied, *reportv1.Question) error // who is denied now, and perhaps a question
}

// serve serves a stream to its end, and logs a refusal.
func (c *conversation[M]) serve(ctx context.Context) error {
	subject, err := caller(ctx, c.hub.domain, c.role, c.hub.now())
	if err == nil {
		err = c.converse(ctx, subject)
	}
	c.hub.refused(subject, err)
	return err
}

// refused logs an error that says that a caller does what it may not do: once in a while for each, because who is refused comes
// back.
func (h *Hub) refused(subject model.Subject, err error) {
	refusals := []codes.Code{codes.PermissionDenied, codes.Unauthenticated, codes.InvalidArgument, codes.ResourceExhausted, codes.FailedPrecondition}
	code := status.Code(err)
	if slices.Contains(refusals, code) && h.said.Take(string(subject.Role)+" "+subject.Node+" "+code.String(), sayRate) == 0 {
		h.log.Warn("report refused", "role", subject.Role, "node", subject.Node, "error", err)
	}
}

func (c *conversation[M]) converse(ctx context.Context, subject model.Subject) error {
	h := c.hub
	// Before anything of it is known: one that is not admitted must not end another stream.
	denied, changed := h.admission.Denied()
	if err := h.admission.Admit(subject); err != nil {
		return err
	}
	ctx, end := context.WithCancelCause(ctx)
	defer end(nil)
	defer context.AfterFunc(h.open, func() { end(errShutdown) })()
	s := &session{subject: subject, end: end, asked: asked{queue: make(chan *question, maxQuestions)}}
	h.begin(s)
	defer h.finish(s)
	if err := c.tell(denied, nil); err != nil {
		return err
	}
	messages := make(chan *M)
	go c.read(ctx, end, messages)
	first := time.NewTimer(firstTime)
	defer first.Stop()
	for {
		select {
		case m := <-messages:
			first.Stop()
			if err := c.take(s, m); err != nil {
				return err
			}
		case <-changed:
			denied, changed = h.admission.Denied()
			if err := h.admission.Admit(subject); err != nil {
				return err
			}
			if err := c.tell(denied, nil); err != nil {
				return err
			}
		case q := <-s.asked.queue:
			if err := c.tell(denied, q.Question); err != nil {
				return err
			}
		case <-first.C:
			return status.Error(codes.DeadlineExceeded, "nothing was reported")
		case <-ctx.Done():
			if err := context.Cause(ctx); !errors.Is(err, io.EOF) { // the caller has ended it
				return err
			}
			return nil
		}
	}
}

// read hands on what comes, at a bounded rate, until the stream ends.
func (c *conversation[M]) read(ctx context.Context, end context.CancelCauseFunc, messages chan<- *M) {
	for {
		m, err := c.recv()
		if err != nil {
			end(err)
			return
		}
		select {
		case messages <- m:
		case <-ctx.Done():
			return
		}
		if retry.Sleep(ctx, c.pace) != nil {
			return
		}
	}
}
