package hub

import (
	"context"
	"slices"
	"sync"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/fairlead/fairlead/internal/printable"
	"github.com/fairlead/fairlead/pkg/report"
	reportv1 "github.com/fairlead/fairlead/pkg/report/v1"
)

// question is a question to an agent. It buffers the parts of the answer until the caller reads them, so that a slow
// caller does not block the agent's stream.
type question struct {
	*reportv1.Question
	most int // bytes of the answer

	mu      sync.Mutex
	parts   []*reportv1.Answer
	size    int
	ended   error         // nil: not yet, or by the last part
	changed chan struct{} // capacity 1: there is something new
}

// next blocks until a part of the answer has arrived, the answer has ended, or ctx has.
func (q *question) next(ctx context.Context) (*reportv1.Answer, error) {
	for {
		q.mu.Lock()
		if len(q.parts) > 0 {
			part := q.parts[0]
			q.parts = slices.Delete(q.parts, 0, 1)
			q.mu.Unlock()
			return part, nil
		}
		ended := q.ended
		q.mu.Unlock()
		if ended != nil {
			return nil, ended
		}
		select {
		case <-q.changed:
		case <-ctx.Done():
			return nil, status.Error(codes.DeadlineExceeded, "its agent has not answered in time")
		}
	}
}

// all passes each part of an answer to take, until the last.
func (q *question) all(ctx context.Context, take func(*reportv1.Answer) error) error {
	for {
		part, err := q.next(ctx)
		if err != nil {
			return err
		}
		if err := take(part); err != nil {
			return err
		}
		if said := printable.Text(part.GetError(), report.MaxText); said != "" {
			return status.Error(codes.Unavailable, "its agent reports: "+said)
		}
		if part.GetLast() {
			return nil
		}
	}
}

// notify signals a channel of capacity 1.
func notify(to chan struct{}) {
	select {
	case to <- struct{}{}:
	default:
	}
}
