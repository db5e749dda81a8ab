package hub

import (
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"

	"github.com/fairlead/fairlead/pkg/report"
	reportv1 "github.com/fairlead/fairlead/pkg/report/v1"
)

const (
	// maxEdgeAnswer and maxGatewayAnswer bound one answer. An edge's Envoy has some listeners and Envoy clusters; a
	// gateway's has 10,000, which gzip compresses to a tenth.
	maxEdgeAnswer, maxGatewayAnswer = 1 << 20, 32 << 20
)

var (
	errAway     = status.Error(codes.NotFound, "its agent does not report to this server")
	errBusy     = status.Error(codes.ResourceExhausted, "its agent has too many open requests: try again")
	errTooLarge = status.Error(codes.ResourceExhausted, "its agent's answer is too large")
)

// asked has the pending messages of a session, and the questions without an answer yet. The hub's lock guards it.
type asked struct {
	last    uint64
	open    map[uint64]*question
	send    func(q *reportv1.Question, denied bool) error
	sending bool        // a goroutine is sending: only a session with pending messages has one
	next    []*question // to be sent
	denied  bool        // the denials must be sent
}

// ask sends a question on a session and returns it with a function that removes it; an error is a gRPC status.
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
	if max(len(s.asked.open), len(s.asked.next)) >= report.MaxQuestions { // it may hold an abandoned question
		return nil, nil, errBusy
	}
	for _, other := range s.asked.open {
		if other.GetDump() != nil && q.GetDump() != nil {
			return nil, nil, errBusy
		}
	}
	s.asked.last++
	q.Number = s.asked.last
	a := &question{Question: q, most: most, changed: make(chan struct{}, 1)}
	if s.asked.open == nil {
		s.asked.open = map[uint64]*question{}
	}
	s.asked.open[q.GetNumber()] = a
	s.asked.next = append(s.asked.next, a)
	h.startSending(s)
	return a, func() {
		h.mu.Lock()
		defer h.mu.Unlock()
		delete(s.asked.open, q.GetNumber())
	}, nil
}

// order sends the denials to a gateway.
func (h *Hub) order(s *session) {
	h.mu.Lock()
	defer h.mu.Unlock()
	s.asked.denied = true
	h.startSending(s)
}

// startSending starts a goroutine that sends the pending messages of a session, unless one is running.
func (h *Hub) startSending(s *session) {
	if !s.asked.sending {
		s.asked.sending = true
		go h.sendAll(&s.asked)
	}
}

// sendAll sends until nothing is pending, or the stream has ended.
func (h *Hub) sendAll(a *asked) {
	for {
		h.mu.Lock()
		if len(a.next) == 0 && !a.denied {
			a.sending, a.next = false, nil
			h.mu.Unlock()
			return
		}
		var q *reportv1.Question
		if len(a.next) > 0 {
			q, a.next = a.next[0].Question, a.next[1:]
		}
		denied := a.denied
		a.denied = false // before send reads the denials
		h.mu.Unlock()
		if a.send(q, denied) != nil {
			return
		}
	}
}

// answer appends a part to the answer of an open question. It drops the part of a question that is not open.
func (h *Hub) answer(s *session, a *reportv1.Answer) error {
	size := proto.Size(a) // without the lock, because it may have many parts
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
	if q.size += size; q.size > q.most {
		q.parts, q.ended = nil, errTooLarge
		delete(s.asked.open, a.GetNumber())
	} else {
		q.parts = append(q.parts, a)
	}
	if a.GetLast() {
		delete(s.asked.open, a.GetNumber())
	}
	notify(q.changed)
	return nil
}

// drop ends all questions of a session with errAway.
func (s *session) drop() {
	for number, q := range s.asked.open {
		q.mu.Lock()
		q.ended = errAway
		q.mu.Unlock()
		notify(q.changed)
		delete(s.asked.open, number)
	}
}
