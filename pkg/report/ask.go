package report

import (
	"context"
	"errors"
	"slices"
	"sync"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	reportv1 "github.com/fairlead/fairlead/pkg/report/v1"
)

const (
	// maxQuestions is how many questions one agent is asked at a time; of dumps it is one.
	maxQuestions = 4
	// maxEdgeAnswer and maxGatewayAnswer are how much one answer may have. An edge's Envoy has some listeners and Envoy clusters, a
	// gateway's 10,000 of them, which gzip packs into a tenth.
	maxEdgeAnswer, maxGatewayAnswer = 1 << 20, 32 << 20
)

var (
	errAway     = status.Error(codes.NotFound, "its agent does not report to this server")
	errBusy     = status.Error(codes.ResourceExhausted, "its agent is being asked by somebody else: try again")
	errTooLarge = status.Error(codes.ResourceExhausted, "its agent's answer is larger than an answer may be")
	errUnknown  = errors.New("this agent does not know the question")
)

// question is one that an agent has been asked. What comes in answer is kept until who asked takes it, so that nobody who is slow holds
// the agent's stream.
type question struct {
	*reportv1.Question
	most int // bytes of the answer

	mu    sync.Mutex
	parts []*reportv1.Answer
	size  int
	ended error         // nil: not yet, or by the last part
	wake  chan struct{} // holds one if there is something new
}

// asked are the questions that wait for their answers, of one session. The hub's lock guards it.
type asked struct {
	last    uint64
	open    map[uint64]*question
	queue   chan *question                 // to be sent, of a gateway; nil: an edge's
	tell    func(*reportv1.Question) error // of an edge
	telling bool                           // there is a goroutine that does, which only those edges have that are asked something
	next    []*question                    // for it
}

// ask has a question sent on a session, and returns nil and why if that can't be.
func (h *Hub) ask(of func(*session) bool, q *reportv1.Question, most int) (*question, func(), error) {
	h.mu.Lock()
	defer h.mu.Unlock()
	var s *session
	for _, candidate := range h.sessions {
		if candidate.reported && of(candidate) {
			s = candidate
			break
		}
	}
	if s == nil {
		return nil, nil, errAway
	}
	if len(s.asked.open) >= maxQuestions {
		return nil, nil, errBusy
	}
	for _, other := range s.asked.open {
		if other.GetDump() != nil && q.GetDump() != nil {
			return nil, nil, errBusy
		}
	}
	s.asked.last++
	q.Number = s.asked.last
	a := &question{Question: q, most: most, wake: make(chan struct{}, 1)}
	if s.asked.open == nil {
		s.asked.open = map[uint64]*question{}
	}
	if !h.put(s, a) {
		return nil, nil, errBusy // what was given up is still to be sent
	}
	s.asked.open[q.GetNumber()] = a
	return a, func() {
		h.mu.Lock()
		defer h.mu.Unlock()
		delete(s.asked.open, q.GetNumber())
	}, nil
}

// put has a question sent.
func (h *Hub) put(s *session, q *question) bool {
	a := &s.asked
	if a.queue == nil {
		if len(a.next) >= maxQuestions {
			return false
		}
		if a.next = append(a.next, q); !a.telling {
			a.telling = true
			go h.tell(a)
		}
		return true
	}
	select {
	case a.queue <- q:
		return true
	default:
		return false
	}
}

// tell asks an edge until there is no more to ask.
func (h *Hub) tell(a *asked) {
	for {
		h.mu.Lock()
		if len(a.next) == 0 {
			a.telling, a.next = false, nil
			h.mu.Unlock()
			return
		}
		q := a.next[0]
		a.next = a.next[1:]
		h.mu.Unlock()
		if err := a.tell(q.Question); err != nil {
			return // the stream has ended
		}
	}
}

// answer takes over a part of an answer. One that nobody waits for is dropped.
func (h *Hub) answer(s *session, a *reportv1.Answer) error {
	h.mu.Lock()
	defer h.mu.Unlock()
	if err := h.current(s); err != nil {
		return err
	}
	q := s.asked.open[a.GetNumber()]
	if q == nil {
		return nil
	}
	q.mu.Lock()
	defer q.mu.Unlock()
	size := len(a.GetDump())
	for _, t := range a.GetTunnels() {
		size += len(t.GetTunnel().GetKey()) + len(t.GetTunnel().GetNode()) + len(t.GetTunnel().GetTunnelId()) + len(t.GetTunnel().GetWorker()) + 64
	}
	if q.size += size; q.size > q.most {
		q.parts, q.ended = nil, errTooLarge
		delete(s.asked.open, a.GetNumber())
	} else {
		q.parts = append(q.parts, a)
	}
	if a.GetLast() {
		delete(s.asked.open, a.GetNumber())
	}
	poke(q.wake)
	return nil
}

// drop tells who waits for answers on a session that there will be none.
func (s *session) drop() {
	for number, q := range s.asked.open {
		q.mu.Lock()
		q.ended = errAway
		q.mu.Unlock()
		poke(q.wake)
		delete(s.asked.open, number)
	}
}

// next waits for a part of the answer.
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
		case <-q.wake:
		case <-ctx.Done():
			return nil, status.Error(codes.DeadlineExceeded, "its agent has not answered in time")
		}
	}
}

// all hands on every part of an answer, until the last.
func (q *question) all(ctx context.Context, take func(*reportv1.Answer) error) error {
	for {
		part, err := q.next(ctx)
		if err != nil {
			return err
		}
		if err := take(part); err != nil {
			return err
		}
		if said := text(part.GetError(), maxText); said != "" {
			return status.Error(codes.Unavailable, "its agent says: "+said)
		}
		if part.GetLast() {
			return nil
		}
	}
}

// poke signals a channel of capacity 1.
func poke(to chan struct{}) {
	select {
	case to <- struct{}{}:
	default:
	}
}
