package report

import (
	"context"
	"errors"
	"io"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/fairlead/fairlead/internal/ending"
	"github.com/fairlead/fairlead/internal/retry"
	"github.com/fairlead/fairlead/pkg/model"
	reportv1 "github.com/fairlead/fairlead/pkg/report/v1"
)

// Edge implements the service. There are thousands of these streams, on which something is said once in a while, so each has one goroutine alone.
func (h *Hub) Edge(stream grpc.BidiStreamingServer[reportv1.EdgeReport, reportv1.EdgeOrders]) error {
	subject, err := caller(stream.Context(), h.domain, model.RoleEdge, h.now())
	if err == nil {
		err = ending.Serve(stream.Context(), func(ctx context.Context, end func(error)) error {
			return h.edge(ctx, stream, &session{subject: subject, end: end, asked: asked{
				tell: func(q *reportv1.Question) error { return stream.Send(&reportv1.EdgeOrders{Question: q}) },
			}})
		})
	}
	h.refused(subject, err)
	return err
}

// edge serves the stream of an edge to its end.
func (h *Hub) edge(ctx context.Context, stream grpc.BidiStreamingServer[reportv1.EdgeReport, reportv1.EdgeOrders], s *session) error {
	// Before anything of it is known: one that is not admitted must not end another stream.
	if err := h.admission.Admit(s.subject); err != nil {
		return err
	}
	h.watching.Do(func() { go h.watchEdges() })
	h.begin(s)
	defer h.finish(s)
	// Whoever was revoked or shut out since then was not told by those who look at all.
	if err := h.admission.Admit(s.subject); err != nil {
		return err
	}
	if h.open.Err() != nil {
		return errShutdown
	}
	first := time.AfterFunc(firstTime, func() { s.end(status.Error(codes.DeadlineExceeded, "nothing was reported")) })
	defer first.Stop()
	for {
		r, err := stream.Recv()
		if errors.Is(err, io.EOF) {
			return nil
		}
		if err != nil {
			return err
		}
		first.Stop()
		if err := h.edgeReport(s, r); err != nil {
			return err
		}
		if err := retry.Sleep(ctx, edgePace); err != nil {
			return status.FromContextError(err).Err()
		}
	}
}

// watchEdges ends the streams of edges that are let in no more, and all when the hub is closed. One goroutine does so for all of them.
func (h *Hub) watchEdges() {
	for {
		_, changed := h.admission.Denied()
		h.endEdges(func(s *session) error { return h.admission.Admit(s.subject) })
		select {
		case <-changed:
		case <-h.open.Done():
			h.endEdges(func(*session) error { return errShutdown })
			return
		}
	}
}

// endEdges ends the streams of edges for which there is an error.
func (h *Hub) endEdges(why func(*session) error) {
	h.mu.Lock()
	var all []*session
	for subject, s := range h.sessions {
		if subject.Role == model.RoleEdge {
			all = append(all, s)
		}
	}
	h.mu.Unlock()
	for _, s := range all {
		if err := why(s); err != nil {
			s.end(err)
		}
	}
}
