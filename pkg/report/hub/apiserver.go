package hub

import (
	"context"
	"errors"
	"slices"
	"strings"
	"sync"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/fairlead/fairlead/pkg/model"
	"github.com/fairlead/fairlead/pkg/report"
	reportv1 "github.com/fairlead/fairlead/pkg/report/v1"
)

const (
	// observeTimeout is how long an edge has to observe its apiserver and to answer: pkg/probe takes 2.5 s at most, and
	// the network between may be slow.
	observeTimeout = 4 * time.Second
	// maxObserving is how many edges of one tunnel are asked: a workload cluster has two or three.
	maxObserving = 16
)

// EdgeObservation is an edge's observation of its apiserver now. It is the hub's end of inspectv1.EdgeLook.
type EdgeObservation struct {
	Node      string
	APIServer *reportv1.APIServer // nil: see Problem
	Problem   error
}

// APIServer makes all edges of a tunnel that report here observe their apiserver concurrently. Concurrent calls share
// one question to an edge.
func (h *Hub) APIServer(ctx context.Context, id string) []EdgeObservation {
	var looks []EdgeObservation
	h.mu.Lock()
	for subject, s := range h.sessions {
		if subject.Role == model.RoleEdge && subject.ID == id && s.reported {
			looks = append(looks, EdgeObservation{Node: subject.Node})
		}
	}
	h.mu.Unlock()
	slices.SortFunc(looks, func(a, b EdgeObservation) int { return strings.Compare(a.Node, b.Node) })
	var asked sync.WaitGroup
	for i := range looks {
		to := &looks[i]
		if i >= maxObserving {
			to.Problem = status.Errorf(codes.ResourceExhausted, "already querying %d other edges of this tunnel", maxObserving)
			continue
		}
		asked.Go(func() {
			to.APIServer, to.Problem = h.observe(ctx, model.Subject{Role: model.RoleEdge, Node: to.Node, ID: id})
		})
	}
	asked.Wait()
	return looks
}

// observe asks one edge.
func (h *Hub) observe(ctx context.Context, edge model.Subject) (*reportv1.APIServer, error) {
	return together(ctx, h, "apiserver "+edge.Node+" "+edge.ID, observeTimeout,
		func(ctx context.Context) (seen *reportv1.APIServer, err error) {
			q, forget, err := h.ask(func(s *session) bool { return s.subject == edge },
				&reportv1.Question{Look: &reportv1.LookQuestion{}}, maxEdgeAnswer)
			if err != nil {
				return nil, err
			}
			defer forget()
			err = q.all(ctx, func(a *reportv1.Answer) error {
				if a.GetApiServer() != nil {
					seen = report.CleanAPIServer(a.GetApiServer())
				}
				return nil
			})
			if err == nil && seen == nil {
				err = errors.New("its agent's answer is empty")
			}
			return seen, err
		})
}
